"""Which dialect a path and a target speak, and so how a call is asked and its answer read: the stages' one door.

Pure. The stages bring the credential and dial; nothing here knows a host.
"""

import orjson

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, PROVIDERS, Target
from proxy.accounting.metering import AnswerReader, DeliveredCounter
from proxy.dialects import answer_text, chat_completions, messages, vendor_c
from proxy.dialects.answer_text import TextExtractor
from proxy.dialects.delivered_text import BodyCounter, NoTextCounter, StreamCounter
from proxy.dialects.request_text import RequestTokens
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
from proxy.dialects.whole_answers import PassThroughReader
from proxy.exchange import Headers, Received
from proxy.json_text.json_edit import Json, edit_members
from proxy.json_text.segmented_body import RequestBody

_SPOKEN = dict.fromkeys(chat_completions.PATHS, CHAT_COMPLETIONS) | {messages.PATH: MESSAGES}
"""The dialect in which a caller speaks on a path; a path that is not here is no inference."""
_TEXTS: dict[str, TextExtractor] = {
    chat_completions.CHAT_PATH: answer_text.chat_texts,
    chat_completions.COMPLETIONS_PATH: answer_text.chat_texts,
    chat_completions.RESPONSES_PATH: answer_text.responses_texts,
    messages.PATH: answer_text.messages_texts,
}
"""Where the text of an answer is, by the path on which the caller gets it; embeddings have none."""
_WANTED = {provider: rules.dialect for provider, rules in PROVIDERS.items()}
"""What a provider's targets speak; those of one that only a newer control plane knows speak what most do."""


def dialect_of(path: str) -> str | None:
    """The dialect in which a caller speaks on `path`; None for a path that is no inference."""
    return _SPOKEN.get(path)


def translate_request(request: Received, target: Target) -> Json | None:
    """Raises what `ask` would, so that a call that cannot be asked is refused before it counts.

    Gives the request in the target's dialect, for `ask`; None where that is the caller's own.
    """
    wanted = _WANTED.get(target.provider, CHAT_COMPLETIONS)
    if _SPOKEN.get(request.head.path) != wanted:
        return _translated(request, target)
    if wanted == CHAT_COMPLETIONS and request.streaming:
        chat_completions.adds_include_usage(request.head.path, request.json)
    return None


def build_request(
    request: Received, target: Target, credential: str | None, translation: Json | None = None
) -> UpstreamRequest:
    """The call as `target` wants it; `translation`: what `check` gave, if it was asked.

    Raises `UntranslatableError` when it cannot be asked there.
    """
    wanted = _WANTED.get(target.provider, CHAT_COMPLETIONS)
    try:
        if translation is None and _SPOKEN.get(request.head.path) != wanted:
            translation = _translated(request, target)
        if wanted == MESSAGES:
            return _ask_messages(request, target, credential, translation)
        return _ask_chat(request, target, credential, translation)
    except orjson.JSONEncodeError as error:  # its one reason here: a body is read deeper than one can be written
        raise UntranslatableError("body", "nested too deeply to be written anew") from error


def translated_for(request: Received, target: Target) -> str | None:
    """The caller's dialect where `target` speaks another one, so that answers are translated; else None."""
    spoken = _SPOKEN.get(request.head.path)
    return spoken if spoken != _WANTED.get(target.provider, CHAT_COMPLETIONS) else None


def answer_reader(
    request: Received, target: Target, status: int, headers: Headers, most: int = MAX_REPORTED_TOKENS
) -> AnswerReader:
    """Who reads this answer. `headers`: upstream's, names in lower case. `most`: the largest figure of a usage report
    that is believed."""
    form = _form(headers, request.streaming)
    if not 200 <= status < 300 or form == "other":
        return PassThroughReader()
    spoken, given = _SPOKEN.get(request.head.path), _WANTED.get(target.provider, CHAT_COMPLETIONS)
    if spoken != given:
        if spoken == CHAT_COMPLETIONS:
            return _told_in_chat(request, form, created_s(headers), MessagesMeter(most))
        return _told_in_messages(request, form, OpenAiMeter(most=most))
    if spoken == MESSAGES:
        return (
            messages.stream_reader(request.slug, most) if form == "stream" else messages.body_reader(request.slug, most)
        )
    if form == "stream":
        return chat_completions.stream_reader(request.head.path, request.json, request.slug, most)
    return chat_completions.body_reader(request.head.path, request.slug, most)


def delivered_counter(request: Received, reader: AnswerReader) -> DeliveredCounter:
    """Counts what the caller is given of an answer. Called while the request is still here."""
    texts, asked = _TEXTS.get(request.head.path), RequestTokens(request)
    if texts is None:
        return NoTextCounter(asked)
    return StreamCounter(asked, texts) if reader.streams else BodyCounter(asked, texts)


def _ask_messages(
    request: Received, target: Target, credential: str | None, translation: Json | None
) -> UpstreamRequest:
    if translation is None:
        changes = {} if target.target_model is None else {"model": orjson.dumps(target.target_model)}
        body = edit_members(request.body, request.json, changes, request.outline)
        return UpstreamRequest(messages.PATH, messages.request_headers(credential, request.head.incoming.headers), body)
    return UpstreamRequest(messages.PATH, messages.request_headers(credential), _written(request, translation))


def _ask_chat(request: Received, target: Target, credential: str | None, translation: Json | None) -> UpstreamRequest:
    body: RequestBody
    if translation is not None:
        path, body = chat_completions.CHAT_PATH, _written(request, translation)
    else:
        path = request.head.path
        changes = chat_completions.changed_members(path, request.json, target.target_model)
        body = edit_members(request.body, request.json, changes, request.outline)
    place = target.vendor_c_config
    if place is None:
        return UpstreamRequest(path, chat_completions.request_headers(credential), body)
    headers = chat_completions.request_headers(vendor_c.bearer_token(credential))
    return UpstreamRequest(vendor_c.api_path(place, path), headers, body, place.location)


def _written(request: Received, translation: Json) -> RequestBody:
    text, outline = orjson.dumps(translation), request.outline
    return text if outline is None else outline.restored_body(text)


def _translated(request: Received, target: Target) -> Json:
    """The request in the dialect that it is not in; with placeholders, where it has them."""
    model = target.target_model or request.slug
    outline, messages = request.outline, objects_in(request.json, "messages")
    if outline is not None and not restore_slots(json_text_slots(messages), outline):
        raise UntranslatableError("messages", "the arguments of the tool calls are too much to be translated")
    if _WANTED.get(target.provider) != MESSAGES:
        cap = "max_completion_tokens" if target.provider == "VENDOR_B" else "max_tokens"
        return to_chat_request(request.json, model, cap)
    if request.head.path != chat_completions.CHAT_PATH:
        raise UntranslatableError("model", f"the target of this slug has nothing like {request.head.path}")
    return to_messages_request(request.json, model)


def _told_in_chat(request: Received, form: str, created: int, meter: MessagesMeter) -> AnswerReader:
    if form == "stream":
        own_usage = chat_completions.adds_include_usage(request.head.path, request.json)
        return TranslatingStreamReader(ChatStreamTranslator(request.slug, created, meter, include_usage=not own_usage))
    return TranslatingBodyReader(ChatAnswerTranslator(request.slug, created, meter).translate, meter)


def _told_in_messages(request: Received, form: str, meter: OpenAiMeter) -> AnswerReader:
    stops = request.json.get("stop_sequences")
    sequences = [stop for stop in stops if isinstance(stop, str)] if isinstance(stops, list) else []
    if form == "stream":
        return TranslatingStreamReader(MessagesStreamTranslator(request.slug, sequences, meter))
    return TranslatingBodyReader(MessagesAnswerTranslator(request.slug, sequences, meter).translate, meter)


def _form(headers: Headers, streaming: bool) -> str:
    """`stream`, `json` or `other`: what upstream says it is; what was asked for when it does not say."""
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
