"""Reads a target's whole Responses answer.

Pure. Lenient: output items of types that the middle does not know are skipped.
"""

from collections.abc import Callable

from policy.endpoints import RESPONSES
from proxy.dialects.middle.answer import END, MAX_TOKENS, REFUSED, Answer, Stop
from proxy.dialects.middle.answer_reading import Json, object_in, objects_in, text_in
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall
from proxy.dialects.middle.stops import stop_of, stop_with
from proxy.dialects.responses.item_reader import native_item, reasoning_text

UNFINISHED = frozenset(("failed", "cancelled"))
"""The statuses of a response that its server gave up."""


def read_answer(body: Json) -> Answer:
    items = objects_in(body, "output")
    parts = [part for item in items for part in item_parts(item)]
    left_out = LeftOut()
    for number, item in enumerate(items):
        note_unread(item, number, left_out)
    logprobs = [one for item in items for part in objects_in(item, "content") for one in objects_in(part, "logprobs")]
    return Answer(
        id=text_in(body, "id"),
        created_s=created_s(body),
        parts=parts,
        stop=response_stop(body, parts),
        logprobs=logprobs or None,
        left_out=left_out,
    )


def note_unread(item: Json, number: int, left_out: LeftOut) -> None:
    """Name an item that nothing here reads, or what its content holds besides text."""
    kind = text_in(item, "type")
    if kind not in _PARTS:
        left_out.add(f"output.{number}", kind or "unknown")
    elif kind == "message":
        for place, part in enumerate(objects_in(item, "content")):
            note_unread_content(part, f"output.{number}.content.{place}", left_out)


def note_unread_content(part: Json, path: str, left_out: LeftOut) -> None:
    if part.get("annotations"):
        left_out.add(f"{path}.annotations")
    if part.get("type") not in _CONTENT and not text_in(part, "text"):
        left_out.add(path, text_in(part, "type") or "unknown")


def item_parts(item: Json) -> list[AnswerPart]:
    """The parts of an output item; none for one of an unknown type."""
    read = _PARTS.get(text_in(item, "type"))
    return [] if read is None else read(item)


def response_stop(response: Json, parts: list[AnswerPart]) -> Stop:
    """Return why this response ended. `parts`: its output."""
    status = text_in(response, "status")
    if status in UNFINISHED:
        return stop_with(status, parts)
    if status == "incomplete":
        return stop_with(text_in(object_in(response, "incomplete_details"), "reason"), parts, otherwise=MAX_TOKENS)
    return stop_of(REFUSED if any(isinstance(part, Refusal) for part in parts) else END, None, parts)


def created_s(response: Json) -> int:
    """Unix seconds; 0 if the vendor does not tell. Some write a fraction."""
    value = response.get("created_at")
    return int(value) if isinstance(value, int | float) and 0 < value < 1e12 else 0


def reasoning_of(item: Json) -> Reasoning:
    """Read a reasoning item. Without encrypted content nothing can be returned later: the vendor keeps no items."""
    native = native_item(item) if text_in(item, "encrypted_content") else None
    return Reasoning(reasoning_text(item), RESPONSES if native else "", native)


def _reasoning_parts(item: Json) -> list[AnswerPart]:
    reasoning = reasoning_of(item)
    return [reasoning] if reasoning.text or reasoning.native else []


def call_of(item: Json) -> ToolCall:
    custom = item.get("type") == "custom_tool_call"
    id = text_in(item, "call_id") or text_in(item, "id")
    return ToolCall(id, text_in(item, "name"), text_in(item, "input" if custom else "arguments"), custom)


def _message_parts(item: Json) -> list[AnswerPart]:
    parts: list[AnswerPart] = []
    for part in objects_in(item, "content"):
        if part.get("type") == "refusal":
            if refusal := text_in(part, "refusal"):
                parts.append(Refusal(refusal))
        elif text := text_in(part, "text"):
            parts.append(Text(text))
    return parts


_CONTENT = ("output_text", "refusal")
_PARTS: dict[str, Callable[[Json], list[AnswerPart]]] = {
    "message": _message_parts,
    "reasoning": _reasoning_parts,
    "function_call": lambda item: [call_of(item)],
    "custom_tool_call": lambda item: [call_of(item)],
}
