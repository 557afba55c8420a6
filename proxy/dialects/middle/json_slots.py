"""Finds the members of a long body whose text a translation encodes again, and puts their long strings back.

Pure. Everywhere else a placeholder may stand for a long string (`json_text/large_json.py`).
"""

from typing import Any

import orjson

from proxy.errors import UntranslatableError
from proxy.json_text.exact_numbers import loads_exactly, with_exact_members
from proxy.json_text.large_json import Outline
from proxy.records.messages import Received

_OF_CALLERS = ("messages", "input", "tools", "response_format", "text", "output_config", "output_format")
"""The members of a request that may hold JSON that callers or models wrote: arguments, schemas, inputs."""

Json = dict[str, Any]
Slot = tuple[Json, str]
"""An object and the name of one of its members."""

MAX_SLOT_BYTES = 4 << 20
MAX_SLOT_BRACKETS = 50_000
"""Bounds on all of these members of a body: they are restored and parsed in one step."""

_BY_TYPE = {
    "tool_use": ("input",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "reasoning.encrypted": ("data",),
    "function": ("arguments",),
    "function_call": ("arguments",),
    "custom": ("input",),
    "file": ("file_data",),
    "reasoning": ("encrypted_content",),
    "summary_text": ("text",),
    "reasoning_text": ("text",),
    "input_file": ("file_data",),
}
"""Members of JSON text by the `type` of the block, item or call that has them."""
_SEALED = ("reasoning_content", "reasoning", "reasoning_details", "extra_content")
_TEXT_FILE = "data:text/plain;"
"""The only files that are decoded; images and PDF files stay as they are."""
_FILES = ("file", "input_file")
_HOLDERS = ("function", "custom", "file")
"""The types whose members are in an inner object of that name."""


def json_slots(body: Json) -> list[Slot]:
    """All such members of a request or an answer, of any dialect."""
    slots: list[Slot] = []
    for name in ("messages", "content", "input", "output"):
        for entry in _objects(body.get(name)):
            _add_slots(entry, slots)
    for choice in _objects(body.get("choices")):
        if isinstance(message := choice.get("message"), dict):
            _add_answered(message, slots)
    return slots


def restore_slots(slots: list[Slot], outline: Outline) -> bool:
    """Restore placeholders in these members, in place. False, with nothing changed, if they exceed the bounds."""
    try:
        text = orjson.dumps([holder[name] for holder, name in slots])
        values = loads_exactly(outline.restored_text(text, MAX_SLOT_BYTES))
    except (ValueError, orjson.JSONEncodeError):  # above a bound, or nested too deeply to serialize
        return False
    if sum(value.count("{") + value.count("[") for value in values if isinstance(value, str)) > MAX_SLOT_BRACKETS:
        return False
    for (holder, name), value in zip(slots, values, strict=True):
        holder[name] = value
    return True


def _add_slots(entry: Json, slots: list[Slot]) -> None:
    """Add the slots of a message, an item or a block."""
    _add_own(entry, slots)
    for name in ("content", "tool_calls", "reasoning_details", "summary", "output"):
        for inner in _objects(entry.get(name)):
            _add_own(inner, slots)


def _add_answered(message: Json, slots: list[Slot]) -> None:
    """Add the slots of a Chat Completions answer: its calls, and what is sealed for a caller of another dialect."""
    slots += [(message, name) for name in _SEALED if name in message]
    for call in _objects(message.get("tool_calls")):
        _add_own(call, slots)
        if "extra_content" in call:
            slots.append((call, "extra_content"))
    if isinstance(legacy := message.get("function_call"), dict) and "arguments" in legacy:
        slots.append((legacy, "arguments"))


def _add_own(entry: Json, slots: list[Slot]) -> None:
    kind = entry.get("type", "function" if "function" in entry else None)
    holder = entry.get(kind) if kind in _HOLDERS else entry
    if kind in _FILES and isinstance(holder, dict) and not _is_text_file(holder.get("file_data")):
        return
    if isinstance(holder, dict) and isinstance(kind, str):
        slots += [(holder, name) for name in _BY_TYPE.get(kind, ()) if name in holder]


def _is_text_file(data: object) -> bool:
    return isinstance(data, str) and data.startswith(_TEXT_FILE)


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def readable_members(request: Received) -> Json:
    """The members that hold JSON of callers and models, in which no number was rounded and no placeholder stands where
    a translation encodes anew."""
    outline = request.outline
    text = request.body if outline is None else outline.text
    json = with_exact_members(request.json, text, _OF_CALLERS)
    if outline is not None and not restore_slots(json_slots(json), outline):
        raise UntranslatableError("messages", "the arguments of the tool calls are too much to be translated")
    return {name: json[name] for name in _OF_CALLERS if name in json}
