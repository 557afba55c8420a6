"""Extracts a model's output from an answer: text, reasoning, names and arguments of tool calls.

Pure; one function per dialect, for a whole body or for one event of a stream. Output that an answer repeats (`*.done`
events, reasoning in a second member) is extracted once.
"""

from collections.abc import Callable
from typing import Any

import orjson

Json = dict[str, Any]
TextExtractor = Callable[[Json], list[str]]

_CHOICE = ("delta", "message")
_MESSAGE = frozenset(("content", "refusal"))
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
"""Names of the same member; some servers send more than one of them."""
_BLOCK = frozenset(("text", "thinking", "partial_json", "refusal"))
_CALL = ("name", "arguments", "input", "code")
_TOOLS = frozenset(("tool_use", "server_tool_use"))


def chat_texts(answer: Json) -> list[str]:
    """The texts of a Chat Completions or Completions answer."""
    texts: list[str] = []
    for choice in _objects(answer.get("choices")):
        for name in _CHOICE:
            if isinstance(message := choice.get(name), dict):
                _add_message(message, texts)
        if "text" in choice:
            _add(choice["text"], texts)
    return texts


def messages_texts(answer: Json) -> list[str]:
    """The texts of a Messages answer."""
    texts: list[str] = []
    for name in ("delta", "content_block"):
        if isinstance(block := answer.get(name), dict):
            _add_block(block, texts)
    _add_blocks(answer.get("content"), texts)
    return texts


def responses_texts(answer: Json) -> list[str]:
    """The texts of a Responses answer; in a stream, of its deltas only."""
    texts: list[str] = []
    kind = answer.get("type")
    if isinstance(kind, str):
        if kind.endswith(".delta") and kind != "response.audio.delta":
            _add(answer.get("delta"), texts)
        elif kind == "response.output_item.added" and isinstance(item := answer.get("item"), dict):
            _add(item.get("name"), texts)
        return texts
    for item in _objects(answer.get("output")):
        _add_tool_call(item, texts)
        _add_blocks(item.get("content"), texts)
        _add_blocks(item.get("summary"), texts)
    return texts


def _add_message(message: Json, texts: list[str]) -> None:
    for name, value in message.items():
        if not value or name == "role":
            continue
        if name in _MESSAGE:
            _add_blocks(value, texts)
        elif name in _REASONING:
            if not any(message.get(other) for other in _REASONING[: _REASONING.index(name)]):
                _add_blocks(value, texts)
        elif name == "tool_calls":
            for call in _objects(value):
                _add_tool_call(call.get("function"), texts)
                _add_tool_call(call.get("custom"), texts)
        elif name == "function_call":
            _add_tool_call(value, texts)
        elif name == "audio" and isinstance(value, dict):
            _add(value.get("transcript"), texts)


def _add_blocks(value: object, texts: list[str]) -> None:
    """A string, or a list of content blocks."""
    if isinstance(value, str):
        texts.append(value)
    else:
        for block in _objects(value):
            _add_block(block, texts)


def _add_block(block: Json, texts: list[str]) -> None:
    for name, value in block.items():
        if name in _BLOCK:
            if isinstance(value, list):  # one vendor sends reasoning as a list of blocks
                for inner in _objects(value):
                    _add(inner.get("text"), texts)
            else:
                _add(value, texts)
    kind = block.get("type")
    if isinstance(kind, str) and kind in _TOOLS:
        _add_tool_call(block, texts)


def _add_tool_call(call: object, texts: list[str]) -> None:
    """The name of a tool and its arguments, which are a string or an object."""
    if not isinstance(call, dict):
        return
    for name in _CALL:
        value = call.get(name)
        if isinstance(value, dict) and value:
            _add(_serialized(value), texts)
        else:
            _add(value, texts)


def _serialized(value: Json) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it serializes
        return ""


def _add(value: object, texts: list[str]) -> None:
    if isinstance(value, str) and value:
        texts.append(value)


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
