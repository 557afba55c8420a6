"""Bounds on what is translated, checked before the work starts: a thread cannot be stopped.

Pure. They are far above what agents send: 1 MB of history with 200 tools has some 5000 objects and lists.

See docs/reference/inference.md#translation.
"""

from collections.abc import Iterator
from typing import Any

from proxy.dialects.middle.answer_reading import objects_in, text_in
from proxy.errors import UntranslatableError
from proxy.records.messages import Received

MAX_TOOLS = 2_000
"""Most tools of a call. No vendor takes more than some hundred."""
MAX_CONTAINERS = 25_000
"""Objects and lists. The most expensive ones take 6 µs each."""

Json = dict[str, Any]


def check_bounds(request: Received) -> None:
    """Raise `UntranslatableError` for a call that holds too much to be translated."""
    body = request.json
    text = request.body if request.outline is None else request.outline.text
    if sum(1 for _ in _tools(body)) > MAX_TOOLS:
        raise UntranslatableError("tools", f"holds more than {MAX_TOOLS} tools, too many to be translated; offer fewer")
    if text.count(b"{") + text.count(b"[") <= MAX_CONTAINERS:  # nearly always
        return
    room = MAX_CONTAINERS
    for name, value in body.items():
        room = _left_after(value, room)
        if room < 0:
            reason = (
                f"the body holds more than {MAX_CONTAINERS} objects and lists, too many to be translated; send fewer"
            )
            raise UntranslatableError(name, reason)


def _tools(body: Json) -> Iterator[object]:
    """The tools that a call offers, those in namespaces too."""
    items = [item for item in objects_in(body, "input") if text_in(item, "type") == "additional_tools"]
    for holder in (body, *items):
        for tool in objects_in(holder, "tools"):
            yield tool
            yield from objects_in(tool, "tools")


def _left_after(value: object, room: int) -> int:
    """Return how many objects and lists there may still be after this value; negative if it holds too many."""
    values = [value]
    while values and room >= 0:
        inner = values.pop()
        if isinstance(inner, dict):
            room -= 1
            values += inner.values()
        elif isinstance(inner, list):
            room -= 1
            values += inner
    return room
