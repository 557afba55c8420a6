"""Reads a Messages target's whole answer.

Pure. Lenient: what a vendor leaves out counts as absent.
"""

import orjson

from policy.endpoints import MESSAGES
from proxy.dialects.middle.answer import Answer, Json
from proxy.dialects.middle.answer_reading import object_in, objects_in, text_in
from proxy.dialects.middle.left_out import LeftOut
from proxy.dialects.middle.request import AnswerPart, Reasoning, Refusal, Text, ToolCall
from proxy.dialects.middle.stops import stop_with

_BLOCKS = frozenset(("text", "thinking", "redacted_thinking", "tool_use"))
"""The types of blocks that are read. All others are told to the caller."""


def read_answer(body: Json) -> Answer:
    blocks = objects_in(body, "content")
    parts = [part for block in blocks if (part := _answer_part(block)) is not None]
    left_out = LeftOut()
    for number, block in enumerate(blocks):
        note_unread(block, number, left_out)
    if (refusal := refusal_in(body)) is not None:
        parts.append(refusal)
    stop = stop_with(text_in(body, "stop_reason"), parts, text_in(body, "stop_sequence") or None)
    return Answer(text_in(body, "id"), 0, parts, stop, left_out=left_out)


def note_unread(block: Json, number: int, left_out: LeftOut) -> None:
    """Name a block that nothing here reads, or the citations of a text."""
    kind = text_in(block, "type")
    if kind not in _BLOCKS:
        left_out.add(f"content.{number}", kind or "unknown")
    elif kind == "text" and block.get("citations"):
        left_out.add(f"content.{number}.citations")


def refusal_in(holder: Json) -> Refusal | None:
    """Return the model's refusal, in its vendor's words. `holder`: a body, or the delta of a `message_delta`."""
    explanation = text_in(object_in(holder, "stop_details"), "explanation")
    return Refusal(explanation) if explanation else None


def _answer_part(block: Json) -> AnswerPart | None:
    kind = block.get("type")
    if kind == "text":
        return Text(block["text"]) if text_in(block, "text") else None
    if kind == "thinking":
        text = text_in(block, "thinking")
        signature = text_in(block, "signature")
        return thinking_of(text, signature) if text or signature else None
    if kind == "redacted_thinking":
        return redacted_of(block)
    if kind == "tool_use":
        arguments = orjson.dumps(object_in(block, "input")).decode()
        return ToolCall(text_in(block, "id"), text_in(block, "name"), arguments)
    return None


def thinking_of(text: str, signature: str) -> Reasoning:
    """A block of thinking. Without a signature there is nothing that the vendor could verify."""
    if not signature:
        return Reasoning(text)
    return Reasoning(text, MESSAGES, {"type": "thinking", "thinking": text, "signature": signature})


def redacted_of(block: Json) -> Reasoning:
    return Reasoning("", MESSAGES, {"type": "redacted_thinking", "data": text_in(block, "data")})
