"""Which dialect a path and a target speak, and so how a call is asked and its answer read: the stages' one door.

Pure. The stages bring the credential and dial; nothing here knows a host.
"""

import orjson

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, PROVIDERS, Target
from proxy.accounting.metering import AnswerReader, Delivered
from proxy.dialects import answer_text, chat_completions, messages, vendor_c
from proxy.dialects.answer_text import Texts
from proxy.dialects.delivered_text import DeliveredBody, DeliveredStream, NothingDelivered
from proxy.dialects.request_text import RequestText
from proxy.dialects.translation.chat_answer import MessagesAnswer, MessagesStream
from proxy.dialects.translation.chat_request import messages_request
from proxy.dialects.translation.messages_answer import ChatAnswer, ChatStream
from proxy.dialects.translation.messages_request import chat_request
from proxy.dialects.translation.translated_answer import (
    TranslatedBody,
    TranslatedStream,
    created_s,
    json_text_slots,
    objects_in,
    restore_slots,
)
from proxy.dialects.upstream_request import Asked, UntranslatableError
from proxy.dialects.usage import MessagesMeter, OpenAiMeter
from proxy.dialects.whole_answers import Untouched
from proxy.exchange import Headers, Received
from proxy.json_text.json_edit import Json, edit_members
from proxy.json_text.segmented_body import RequestBody

_SPOKEN = dict.fromkeys(chat_completions.PATHS, CHAT_COMPLETIONS) | {messages.PATH: MESSAGES}
"""The dialect in which a caller speaks on a path; a path that is not here is no inference."""
_TEXTS: dict[str, Texts] = {
    chat_completions.CHAT_PATH: answer_text.of_chat,
    chat_completions.COMPLETIONS_PATH: answer_text.of_chat,
    chat_completions.RESPONSES_PATH: answer_text.of_responses,
    messages.PATH: answer_text.of_messages,
}
"""Where the text of an answer is, by the path on which the caller gets it; embeddings have none."""
_WANTED = {provider: rules.dialect for provider, rules in PROVIDERS.items()}
"""What a provider's targets speak; those of one that only a newer control plane knows speak what most do."""


def dialect_of(path: str) -> str | None:
    """The dialect in which a caller speaks on `path`; None for a path that is no inference."""
    return _SPOKEN.get(path)


def check(request: Received, target: Target) -> Json | None:
    """Raises what `ask` would, so that a call that cannot be asked is refused before it counts.

    Gives the request in the target's dialect, for `ask`; None where that is the caller's own.
    """
    wanted = _WANTED.get(target.provider, CHAT_COMPLETIONS)
    if _SPOKEN.get(request.path) != wanted:
        return _translated(request, target)
    if wanted == CHAT_COMPLETIONS and request.streaming:
        chat_completions.asks_usage_itself(request.path, request.json)
    return None


def ask(request: Received, target: Target, credential: str | None, translation: Json | None = None) -> Asked:
    """The call as `target` wants it; `translation`: what `check` gave, if it was asked.

    Raises `UntranslatableError` when it cannot be asked there.
    """
    wanted = _WANTED.get(target.provider, CHAT_COMPLETIONS)
    try:
        if translation is None and _SPOKEN.get(request.path) != wanted:
            translation = _translated(request, target)
        if wanted == MESSAGES:
            return _ask_messages(request, target, credential, translation)
        return _ask_chat(request, target, credential, translation)
    except orjson.JSONEncodeError as error:  # its one reason here: a body is read deeper than one can be written
        raise UntranslatableError("body", "nested too deeply to be written anew") from error


def told_in(request: Received, target: Target) -> str | None:
    """The caller's dialect where `target` speaks another one, so that answers are translated; else None."""
    spoken = _SPOKEN.get(request.path)
    return spoken if spoken != _WANTED.get(target.provider, CHAT_COMPLETIONS) else None


def reader(
    request: Received, target: Target, status: int, headers: Headers, most: int = MAX_REPORTED_TOKENS
) -> AnswerReader:
    """Who reads this answer. `headers`: upstream's, names in lower case. `most`: the largest figure of a usage report
    that is believed."""
    form = _form(headers, request.streaming)
    if not 200 <= status < 300 or form == "other":
        return Untouched()
    spoken, given = _SPOKEN.get(request.path), _WANTED.get(target.provider, CHAT_COMPLETIONS)
    if spoken != given:
        if spoken == CHAT_COMPLETIONS:
            return _told_in_chat(request, form, created_s(headers), MessagesMeter(most))
        return _told_in_messages(request, form, OpenAiMeter(most=most))
    if spoken == MESSAGES:
        return messages.stream(request.slug, most) if form == "stream" else messages.whole(request.slug, most)
    if form == "stream":
        return chat_completions.stream(request.path, request.json, request.slug, most)
    return chat_completions.whole(request.path, request.slug, most)


def delivered(request: Received, reader: AnswerReader) -> Delivered:
    """Who counts what the caller is given of the answer that `reader` reads. Asked while the request is still here."""
    texts, asked = _TEXTS.get(request.path), RequestText(request)
    if texts is None:
        return NothingDelivered(asked)
    return DeliveredStream(asked, texts) if reader.streams else DeliveredBody(asked, texts)


def _ask_messages(request: Received, target: Target, credential: str | None, translation: Json | None) -> Asked:
    if translation is None:
        changes = {} if target.target_model is None else {"model": orjson.dumps(target.target_model)}
        body = edit_members(request.body, request.json, changes, request.outline)
        return Asked(messages.PATH, messages.headers(credential, request.incoming.headers), body)
    return Asked(messages.PATH, messages.headers(credential), _written(request, translation))


def _ask_chat(request: Received, target: Target, credential: str | None, translation: Json | None) -> Asked:
    body: RequestBody
    if translation is not None:
        path, body = chat_completions.CHAT_PATH, _written(request, translation)
    else:
        path = request.path
        changes = chat_completions.changes(path, request.json, target.target_model)
        body = edit_members(request.body, request.json, changes, request.outline)
    place = target.vendor_c_config
    if place is None:
        return Asked(path, chat_completions.headers(credential), body)
    headers = chat_completions.headers(vendor_c.bearer(credential))
    return Asked(vendor_c.path(place, path), headers, body, place.location)


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
        return chat_request(request.json, model, cap)
    if request.path != chat_completions.CHAT_PATH:
        raise UntranslatableError("model", f"the target of this slug has nothing like {request.path}")
    return messages_request(request.json, model)


def _told_in_chat(request: Received, form: str, created: int, meter: MessagesMeter) -> AnswerReader:
    if form == "stream":
        own_usage = chat_completions.asks_usage_itself(request.path, request.json)
        return TranslatedStream(ChatStream(request.slug, created, meter, include_usage=not own_usage))
    return TranslatedBody(ChatAnswer(request.slug, created, meter).translate, meter)


def _told_in_messages(request: Received, form: str, meter: OpenAiMeter) -> AnswerReader:
    stops = request.json.get("stop_sequences")
    sequences = [stop for stop in stops if isinstance(stop, str)] if isinstance(stops, list) else []
    if form == "stream":
        return TranslatedStream(MessagesStream(request.slug, sequences, meter))
    return TranslatedBody(MessagesAnswer(request.slug, sequences, meter).translate, meter)


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
