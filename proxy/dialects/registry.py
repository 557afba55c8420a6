"""Chooses the dialects of a path and a target, and so how a request is built and its answer read.

Pure. The stages use the dialects through this module only. They supply the credential and choose the host.

See docs/reference/inference.md#dialects.
"""

import orjson

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, PROVIDERS, Target
from proxy.accounting.metering import AnswerReader, DeliveredCounter
from proxy.dialects import answer_text, passed_paths, token_count, vendor_c
from proxy.dialects.answer_text import TextExtractor
from proxy.dialects.body_readers import PassThroughReader
from proxy.dialects.chat_completions import passing as chat_completions
from proxy.dialects.delivered_text import BodyCounter, NoTextCounter, StreamCounter, UnbilledCounter
from proxy.dialects.messages import passing as messages
from proxy.dialects.request_text import RequestTokens
from proxy.dialects.responses import passing as responses
from proxy.dialects.translation.chat_answer import MessagesAnswerTranslator, MessagesStreamTranslator
from proxy.dialects.translation.chat_request import to_messages_request
from proxy.dialects.translation.messages_answer import ChatAnswerTranslator, ChatStreamTranslator
from proxy.dialects.translation.messages_request import to_chat_request
from proxy.dialects.translation.translated_answer import (
    TranslatingBodyReader,
    TranslatingStreamReader,
    created_s,
    json_text_slots,
    objects_in,
    restore_slots,
)
from proxy.dialects.upstream_request import UntranslatableError, UpstreamRequest
from proxy.dialects.usage import MessagesMeter, OpenAiMeter
from proxy.exchange import Headers, Received
from proxy.json_text.json_edit import Json, edit_members
from proxy.json_text.segmented_body import RequestBody

_PATH_DIALECTS = {
    **dict.fromkeys((*chat_completions.PATHS, responses.PATH, *passed_paths.PATHS), CHAT_COMPLETIONS),
    messages.PATH: MESSAGES,
    token_count.PATH: MESSAGES,
}
"""The caller's dialect by path. Other paths serve no inference."""
_TEXT_EXTRACTORS: dict[str, TextExtractor] = {
    chat_completions.CHAT_PATH: answer_text.chat_texts,
    chat_completions.COMPLETIONS_PATH: answer_text.chat_texts,
    responses.PATH: answer_text.responses_texts,
    messages.PATH: answer_text.messages_texts,
}
"""How to find the text of an answer, by the caller's path. Embeddings have none."""
_PROVIDER_DIALECTS = {provider: rules.dialect for provider, rules in PROVIDERS.items()}
"""The dialect of a provider's targets. A provider that only a newer control plane knows speaks Chat Completions."""


def dialect_of(path: str) -> str | None:
    """The caller's dialect on `path`; None if the path serves no inference."""
    return _PATH_DIALECTS.get(path)


def _dialect_of_target(target: Target) -> str:
    return _PROVIDER_DIALECTS.get(target.provider, CHAT_COMPLETIONS)


def translate_request(request: Received, target: Target) -> Json | None:
    """The body in the target's dialect, for `build_request`; None if the caller speaks that dialect.

    Raises `UntranslatableError` wherever `build_request` would, so that such a call is refused before it is counted.
    """
    target_dialect = _dialect_of_target(target)
    if request.head.path == token_count.PATH:
        return None
    if dialect_of(request.head.path) != target_dialect:
        return _translated(request, target)
    if target_dialect == CHAT_COMPLETIONS and request.streaming:
        chat_completions.adds_include_usage(request.head.path, request.json)
    return None


def build_request(
    request: Received, target: Target, credential: str | None, translation: Json | None = None
) -> UpstreamRequest:
    """The request for `target`. `translation`: the result of `translate_request`, if it was called.

    Raises `UntranslatableError` if the target's dialect cannot express it.
    """
    target_dialect = _dialect_of_target(target)
    if request.head.path == token_count.PATH:
        return token_count.build_request(request, target, credential)
    try:
        if translation is None and dialect_of(request.head.path) != target_dialect:
            translation = _translated(request, target)
        if target_dialect == MESSAGES:
            return _messages_request(request, target, credential, translation)
        return _chat_request(request, target, credential, translation)
    except orjson.JSONEncodeError as error:  # orjson parses deeper nesting than it serializes
        raise UntranslatableError("body", "nested too deeply to be written anew") from error


def translated_for(request: Received, target: Target) -> str | None:
    """The caller's dialect if answers of `target` are translated into it; None if both speak the same."""
    caller_dialect = dialect_of(request.head.path)
    if request.head.path == token_count.PATH:
        return None
    return caller_dialect if caller_dialect != _dialect_of_target(target) else None


def own_answer(request: Received, target: Target) -> bytes | None:
    """The JSON that answers the request without its target; None if the target is asked."""
    is_count = request.head.path == token_count.PATH
    return token_count.estimate(request) if is_count and not token_count.is_asked(target) else None


def stand_in_answer(request: Received, status: int, error: bytes) -> bytes | None:
    """The JSON that answers the request in place of this error of its target; None if the error stands."""
    if request.head.path != token_count.PATH or not token_count.says_no_such_path(status, error):
        return None
    return token_count.estimate(request)


def answer_reader(
    request: Received, target: Target, status: int, headers: Headers, most: int = MAX_REPORTED_TOKENS
) -> AnswerReader:
    """The reader for this answer. `headers`: the upstream's, names in lower case. `most`: a usage report with a larger
    figure is rejected."""
    form = _form(headers, request.streaming)
    if not 200 <= status < 300 or form == "other":
        return PassThroughReader()
    if request.head.path == token_count.PATH:
        return messages.body_reader(request.slug, most)
    if (passed := passed_paths.PATHS.get(request.head.path)) is not None:
        return passed_paths.answer_reader(passed, form, request.slug, most)
    caller_dialect, target_dialect = dialect_of(request.head.path), _dialect_of_target(target)
    if caller_dialect != target_dialect:
        if caller_dialect == CHAT_COMPLETIONS:
            return _reader_to_chat(request, form, created_s(headers), MessagesMeter(most))
        return _reader_to_messages(request, form, OpenAiMeter(most=most))
    if caller_dialect == MESSAGES:
        return (
            messages.stream_reader(request.slug, most) if form == "stream" else messages.body_reader(request.slug, most)
        )
    if request.head.path == responses.PATH:
        return (
            responses.stream_reader(request.slug, most)
            if form == "stream"
            else responses.body_reader(request.slug, most)
        )
    if form == "stream":
        return chat_completions.stream_reader(request.head.path, request.json, request.slug, most)
    return chat_completions.body_reader(request.head.path, request.slug, most)


def delivered_counter(request: Received, reader: AnswerReader) -> DeliveredCounter:
    """The counter of what `reader` delivers to the caller. Call it before the request's body is dropped."""
    if request.head.path == token_count.PATH:
        return UnbilledCounter()
    if (passed := passed_paths.PATHS.get(request.head.path)) is not None:
        return passed.count(request, reader)
    texts, asked = _TEXT_EXTRACTORS.get(request.head.path), RequestTokens(request)
    if texts is None:
        return NoTextCounter(asked)
    return StreamCounter(asked, texts) if reader.streams else BodyCounter(asked, texts)


def _messages_request(
    request: Received, target: Target, credential: str | None, translation: Json | None
) -> UpstreamRequest:
    if translation is None:
        changes = {} if target.target_model is None else {"model": orjson.dumps(target.target_model)}
        body = edit_members(request.body, request.json, changes, request.outline)
        return UpstreamRequest(messages.PATH, messages.request_headers(credential, request.head.incoming.headers), body)
    return UpstreamRequest(messages.PATH, messages.request_headers(credential), _restored(request, translation))


def _chat_request(
    request: Received, target: Target, credential: str | None, translation: Json | None
) -> UpstreamRequest:
    body: RequestBody
    config = target.vendor_c_config
    headers = chat_completions.request_headers(credential if config is None else vendor_c.bearer_token(credential))
    if request.upload is not None:
        path, body = request.head.path, b""
        request.upload.rename(target.target_model or request.slug)
        headers["content-type"] = request.upload.content_type
    elif translation is not None:
        path, body = chat_completions.CHAT_PATH, _restored(request, translation)
    else:
        path = request.head.path
        changes = chat_completions.changed_members(path, request.json, target.target_model)
        body = edit_members(request.body, request.json, changes, request.outline)
    if config is None:
        return UpstreamRequest(path, headers, body)
    return UpstreamRequest(vendor_c.api_path(config, path), headers, body, config.location)


def _restored(request: Received, translation: Json) -> RequestBody:
    text, outline = orjson.dumps(translation), request.outline
    return text if outline is None else outline.restored_body(text)


def _translated(request: Received, target: Target) -> Json:
    """The body in the other dialect; placeholders stay where it has them."""
    model = target.target_model or request.slug
    outline, messages = request.outline, objects_in(request.json, "messages")
    if outline is not None and not restore_slots(json_text_slots(messages), outline):
        raise UntranslatableError("messages", "the arguments of the tool calls are too much to be translated")
    if _dialect_of_target(target) != MESSAGES:
        cap = "max_completion_tokens" if target.provider == "VENDOR_B" else "max_tokens"
        return to_chat_request(request.json, model, cap)
    if request.head.path != chat_completions.CHAT_PATH:
        raise UntranslatableError("model", f"the target of this slug has nothing like {request.head.path}")
    return to_messages_request(request.json, model)


def _reader_to_chat(request: Received, form: str, created: int, meter: MessagesMeter) -> AnswerReader:
    if form == "stream":
        usage_added = chat_completions.adds_include_usage(request.head.path, request.json)
        return TranslatingStreamReader(
            ChatStreamTranslator(request.slug, created, meter, include_usage=not usage_added)
        )
    return TranslatingBodyReader(ChatAnswerTranslator(request.slug, created, meter).translate, meter)


def _reader_to_messages(request: Received, form: str, meter: OpenAiMeter) -> AnswerReader:
    stops = request.json.get("stop_sequences")
    sequences = [stop for stop in stops if isinstance(stop, str)] if isinstance(stops, list) else []
    if form == "stream":
        return TranslatingStreamReader(MessagesStreamTranslator(request.slug, sequences, meter))
    return TranslatingBodyReader(MessagesAnswerTranslator(request.slug, sequences, meter).translate, meter)


def _form(headers: Headers, streaming: bool) -> str:
    """`stream`, `json` or `other`, by the upstream's content type; without one, what the caller requested."""
    declared = ""
    for name, value in headers:
        if name == "content-type":
            if value == "application/json":
                return "json"
            declared = value
            break
    media = declared.partition(";")[0].strip().lower()
    if not media:
        return "stream" if streaming else "json"
    if media == "text/event-stream":
        return "stream"
    return "json" if media == "application/json" or media.endswith("+json") else "other"
