"""What a model has said in an answer: text, reasoning, names and arguments of tools, event by event or as a whole.

Pure; for one dialect each. What repeats what was said before (`*.done` events, a second spelling of the reasoning) is
left out.
"""

from collections.abc import Callable
from typing import Any

import orjson

Json = dict[str, Any]
TextExtractor = Callable[[Json], list[str]]

_CHOICE = ("delta", "message")
_MESSAGE = frozenset(("content", "refusal"))
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
"""Spellings of the same; some servers send more than one."""
_BLOCK = frozenset(("text", "thinking", "partial_json", "refusal"))
_CALL = ("name", "arguments", "input", "code")
_TOOLS = frozenset(("tool_use", "server_tool_use"))


def chat_texts(answer: Json) -> list[str]:
    """Chat Completions and Completions."""
    said: list[str] = []
    for choice in _objects(answer.get("choices")):
        for name in _CHOICE:
            if isinstance(message := choice.get(name), dict):
                _of_message(message, said)
        if "text" in choice:
            _add(choice["text"], said)
    return said


def messages_texts(answer: Json) -> list[str]:
    """Messages."""
    said: list[str] = []
    for name in ("delta", "content_block"):
        if isinstance(block := answer.get(name), dict):
            _of_block(block, said)
    _of_blocks(answer.get("content"), said)
    return said


def responses_texts(answer: Json) -> list[str]:
    """Responses: in a stream, the deltas alone."""
    said: list[str] = []
    kind = answer.get("type")
    if isinstance(kind, str):
        if kind.endswith(".delta") and kind != "response.audio.delta":
            _add(answer.get("delta"), said)
        elif kind == "response.output_item.added" and isinstance(item := answer.get("item"), dict):
            _add(item.get("name"), said)
        return said
    for item in _objects(answer.get("output")):
        _of_call(item, said)
        _of_blocks(item.get("content"), said)
        _of_blocks(item.get("summary"), said)
    return said


def _of_message(message: Json, said: list[str]) -> None:
    for name, value in message.items():
        if not value or name == "role":
            continue
        if name in _MESSAGE:
            _of_blocks(value, said)
        elif name in _REASONING:
            if not any(message.get(other) for other in _REASONING[: _REASONING.index(name)]):
                _of_blocks(value, said)
        elif name == "tool_calls":
            for call in _objects(value):
                _of_call(call.get("function"), said)
                _of_call(call.get("custom"), said)
        elif name == "function_call":
            _of_call(value, said)
        elif name == "audio" and isinstance(value, dict):
            _add(value.get("transcript"), said)


def _of_blocks(value: object, said: list[str]) -> None:
    """A text, or the blocks of one."""
    if isinstance(value, str):
        said.append(value)
    else:
        for block in _objects(value):
            _of_block(block, said)


def _of_block(block: Json, said: list[str]) -> None:
    for name, value in block.items():
        if name in _BLOCK:
            if isinstance(value, list):  # one vendor's reasoning is a list of blocks
                for inner in _objects(value):
                    _add(inner.get("text"), said)
            else:
                _add(value, said)
    kind = block.get("type")
    if isinstance(kind, str) and kind in _TOOLS:
        _of_call(block, said)


def _of_call(call: object, said: list[str]) -> None:
    """The name of a tool and what it is called with, as text or as JSON."""
    if not isinstance(call, dict):
        return
    for name in _CALL:
        value = call.get(name)
        if isinstance(value, dict) and value:
            _add(_written(value), said)
        else:
            _add(value, said)


def _written(value: Json) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it reads deeper than it writes
        return ""


def _add(value: object, said: list[str]) -> None:
    if isinstance(value, str) and value:
        said.append(value)


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
