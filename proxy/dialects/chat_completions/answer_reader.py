"""Reads a Chat Completions body of a target into the model in the middle. Lenient, since servers differ.

Pure.
"""

from hashlib import sha256

import orjson

from proxy.dialects.chat_completions.reasoning import answered_reasoning
from proxy.dialects.middle.answer import BROKEN, END, REFUSED, STOP_SEQUENCE, Answer, Stop
from proxy.dialects.middle.answer_reading import integer_in, object_in, objects_in, text_in
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import AnswerPart, Refusal, Text, ToolCall
from proxy.dialects.middle.stops import stop_of, stop_with

MESSAGE_PATH = "choices.0.message"
DELTA_PATH = "choices.0.delta"
READ_MEMBERS = frozenset(
    (
        *("role", "content", "refusal", "tool_calls", "function_call", "extra_content"),
        *("reasoning_content", "reasoning", "reasoning_details"),
    )
)
"""The members of a message or a delta that are read. All others are told to the caller."""
_BESIDE_CHOICES = ("citations", "images", "search_results")


def read_answer(completion: Json) -> Answer:
    """The first choice of a whole answer."""
    choices = objects_in(completion, "choices")
    choice = next(iter(choices), {})
    message = object_in(choice, "message")
    id = text_in(completion, "id")
    left_out = LeftOut()
    note_unread_members(message, MESSAGE_PATH, left_out)
    note_other_members(completion, left_out)
    for number in range(1, len(choices)):
        left_out.add(f"choices.{number}")
    parts = _answer_parts(message, id)
    return Answer(
        id=id,
        created_s=integer_in(completion, "created") or 0,
        parts=parts,
        stop=read_stop(choice, parts, is_refused=any(isinstance(part, Refusal) for part in parts)),
        logprobs=objects_in(object_in(choice, "logprobs"), "content") or None,
        left_out=left_out,
    )


def note_unread_members(message: Json, path: str, left_out: LeftOut) -> None:
    """Name what a message or a delta says in members, or in parts of its content, that nothing here reads."""
    for name in message.keys() - READ_MEMBERS:
        if message[name]:
            left_out.add(f"{path}.{name}")
    content = message.get("content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and not text_in(part, "text") and not part.get("thinking"):
            left_out.add(f"{path}.content.{number}", text_in(part, "type"))


def note_other_members(completion: Json, left_out: LeftOut) -> None:
    """Name members of an answer beside its choices that only some servers send."""
    for name in _BESIDE_CHOICES:
        if completion.get(name):
            left_out.add(name)


def _answer_parts(message: Json, answer_id: str) -> list[AnswerPart]:
    parts: list[AnswerPart] = []
    if (reasoning := answered_reasoning(message)) is not None:
        parts.append(reasoning)
    if text := content_text(message):
        parts.append(Text(text))
    if refusal := text_in(message, "refusal"):
        parts.append(Refusal(refusal))
    parts += [_tool_call(call, number, answer_id) for number, call in enumerate(objects_in(message, "tool_calls"))]
    if legacy := object_in(message, "function_call"):
        parts.append(_tool_call({"function": legacy}, 0, answer_id))
    return parts


def content_text(message: Json) -> str:
    """The text of a message or a delta; some servers send it in parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(text_in(part, "text") for part in objects_in(message, "content"))


def _tool_call(call: Json, number: int, answer_id: str) -> ToolCall:
    name, text, is_custom = read_call(call)
    extra = object_in(call, "extra_content")
    return ToolCall(text_in(call, "id") or made_call_id(answer_id, number), name, text, is_custom, extra or None)


def read_call(call: Json) -> tuple[str, str, bool]:
    """Name, arguments or input, and whether the tool is custom, of a call or of a delta of one."""
    if "custom" in call and "function" not in call:
        custom = object_in(call, "custom")
        return text_in(custom, "name"), text_in(custom, "input"), True
    function = object_in(call, "function")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # some servers do not encode them
        arguments = orjson.dumps(arguments).decode()
    return text_in(function, "name"), arguments if isinstance(arguments, str) else "", False


def made_call_id(answer_id: str, number: int) -> str:
    """An id for a call to which the server gives none; differs from those of other answers."""
    return f"call_{sha256(f'{answer_id}.{number}'.encode()).hexdigest()[:24]}"


def read_stop(choice: Json, parts: list[AnswerPart], *, is_refused: bool) -> Stop:
    """Read why a choice stopped. Some servers name the matched stop sequence in its `stop_reason`."""
    stop = stop_with(text_in(choice, "finish_reason"), parts)
    if is_refused and stop.reason != BROKEN:
        return Stop(REFUSED)
    matched = text_in(choice, "stop_reason")
    return stop_of(STOP_SEQUENCE, matched, parts) if matched and stop == Stop(END) else stop
