"""Frees a Messages body of sealed reasoning, for a target whose vendor cannot read our seal.

Pure. A conversation has sealed blocks if its slug had a target of another dialect before.
"""

from collections.abc import Iterator

from policy.endpoints import MESSAGES
from proxy.dialects.messages.turn_writer import has_open_tool_loop
from proxy.dialects.middle.answer_reading import object_in, objects_in, text_in
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.sealing import MARK, Seals

_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}
"""The member of a block that holds a seal."""
_CLEARS_THINKING = "clear_thinking"
"""Begins the type of an edit that the vendor takes only with `thinking`."""


def native_reasoning(native: Json) -> Json | None:
    """The members of an opened block that a vendor of this dialect may get back; None if it is no block of thinking."""
    kind = text_in(native, "type")
    names = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}.get(kind)
    if names is None or not all(isinstance(native.get(name), str) for name in names):
        return None
    return {"type": kind} | {name: native[name] for name in names}


def without_sealed(body: Json, seals: Seals) -> Json:
    """Return `body` with this dialect's own blocks unsealed and the sealed blocks of others removed.

    A message that would be left empty is removed; the vendor merges its neighbours. `thinking` is removed where the
    vendor would miss a block: after tool calls that began with one of another dialect. Changes nothing in place.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    turns: list[object] = []
    for place, message in enumerate(messages):
        turns += _unsealed(message, f"messages.{place}.content", seals)
    freed = body | {"messages": turns}
    thinks = text_in(object_in(body, "thinking"), "type") in ("enabled", "adaptive")
    return _without_thinking(freed) if thinks and turns != messages and _misses_thinking(turns) else freed


def _unsealed(message: object, field: str, seals: Seals) -> Iterator[object]:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list) or not any(map(_seal_of, content)):
        yield message
        return
    blocks: list[object] = []
    for place, block in enumerate(content):
        blocks += _blocks(block, f"{field}.{place}", seals)
    if blocks:
        yield message | {"content": blocks}


def _blocks(block: object, field: str, seals: Seals) -> Iterator[object]:
    sealed = _seal_of(block)
    if not sealed:
        yield block
    elif (native := seals.native(MESSAGES, sealed, field)) is not None:
        yield native


def _seal_of(block: object) -> str:
    """The sealed text of a block; empty if there is none."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        return ""
    opaque = block.get(_OPAQUE.get(kind, ""))
    return opaque if isinstance(opaque, str) and opaque.startswith(MARK) else ""


def _misses_thinking(messages: list[object]) -> bool:
    """Return whether the vendor would refuse to think. Messages of another form are left to it."""
    turns: list[Json] = []
    for message in messages:
        blocks = [{"type": text_in(block, "type")} for block in objects_in(message, "content")]
        turns.append({"role": text_in(message, "role"), "content": blocks or [{"type": "text"}]})
    return has_open_tool_loop(turns)


def _without_thinking(body: Json) -> Json:
    """Return `body` without `thinking` and the edits that need it."""
    members = {name: value for name, value in body.items() if name not in ("thinking", "context_management")}
    management = object_in(body, "context_management")
    edits = objects_in(management, "edits")
    others = [edit for edit in edits if not text_in(edit, "type").startswith(_CLEARS_THINKING)]
    return members | ({"context_management": management | {"edits": others}} if others else {})
