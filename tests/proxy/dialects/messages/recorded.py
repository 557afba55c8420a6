"""Answers of the Messages vendor, whole and as the frames of a stream, in the forms its SDK documents."""

from typing import Any

import orjson

Json = dict[str, Any]

_USAGE: Json = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 80,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 3},
}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


def whole(blocks: list[Json], reason: str = "end_turn", **more: Any) -> Json:
    return {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": _USAGE,
        **more,
    }


def frames_of(message: Json) -> list[bytes]:
    """The stream of the same answer, each text in two or more deltas."""
    start = message | {"content": [], "stop_reason": None, "stop_sequence": None}
    start.pop("stop_details", None)
    start["usage"] = {name: count for name, count in _USAGE.items() if name != "output_tokens_details"}
    start["usage"]["output_tokens"] = 1
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        opened, deltas = _opened(block)
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events.append({"type": "ping"})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    last = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details") if name in message}
    events.append({"type": "message_delta", "delta": last, "usage": message["usage"]})
    events.append({"type": "message_stop"})
    return [b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n" for event in events]


def _opened(block: Json) -> tuple[Json, list[Json]]:
    """The block as it begins, and the deltas that complete it."""
    kind = block["type"]
    if kind == "tool_use":
        text = orjson.dumps(block["input"]).decode() if block["input"] else ""
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
    if kind not in _DELTAS:
        return block, []
    name, member = _DELTAS[kind]
    opened = block | {member: ""} | ({"signature": ""} if kind == "thinking" else {})
    deltas: list[Json] = [{"type": name, member: piece} for piece in pieces(block[member])]
    if block.get("signature"):
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    return opened, deltas


def pieces(text: str) -> list[str]:
    return [piece for piece in (text[:2], text[2:5], text[5:]) if piece]


_THINKING: Json = {"type": "thinking", "thinking": "Let me see: 1 < 2 and “ü”.", "signature": "EqQBCgIYAhIM"}
_HIDDEN: Json = {"type": "thinking", "thinking": "", "signature": "EqQBhidden"}
_REDACTED: Json = {"type": "redacted_thinking", "data": "EmwKAhgBEgy"}
_TEXT: Json = {"type": "text", "text": 'Grüße — it is 😀 \\ "fine"\n\nNew line.'}
_CALL: Json = {"type": "tool_use", "id": "toolu_01A", "name": "weather", "input": {"city": "Köln", "days": [1, 2.5]}}
_OTHER_CALL: Json = {"type": "tool_use", "id": "toolu_01B", "name": "time", "input": {}}

WHOLE: dict[str, Json] = {
    "text": whole([_TEXT]),
    "two texts": whole([_TEXT, {"type": "text", "text": "and another"}]),
    "nothing": whole([]),
    "cut": whole([_TEXT], "max_tokens"),
    "context full": whole([_TEXT], "model_context_window_exceeded"),
    "paused": whole([_TEXT], "pause_turn"),
    "stop sequence": whole([_TEXT], "stop_sequence", stop_sequence="END"),
    "refused": whole(
        [],
        "refusal",
        stop_details={"type": "refusal", "category": None, "explanation": "This is about a weapon."},
    ),
    "thinking": whole([_THINKING, _TEXT]),
    "hidden thinking": whole([_HIDDEN, _TEXT]),
    "redacted": whole([_REDACTED, _THINKING, _TEXT]),
    "tool": whole([_TEXT, _CALL], "tool_use"),
    "tools": whole([_THINKING, _TEXT, _CALL, _OTHER_CALL], "tool_use"),
    "tools alone": whole([_OTHER_CALL, _CALL], "tool_use"),
    "interleaved thinking": whole([_THINKING, _CALL, _REDACTED, _OTHER_CALL], "tool_use"),
}
RECORDED: dict[str, tuple[Json, list[bytes]]] = {name: (message, frames_of(message)) for name, message in WHOLE.items()}
"""Body and frames by name."""
