"""Pages through the audit trail, window after window; a sink keeps each page together with the position behind it.

Consecutive windows show each change once. One ends a minute ago by default: then everything in it has committed.

See docs/reference/management-api.md#audit-trail.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from commands.audit.formats import head, lines
from commands.connection import Client

PATH = "/v1/audit_events"
PAGE_CHANGES = 1000
SETTLED = "1m"
"""Older changes have committed."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which changes, and how they are written. `until`: the window's exclusive end, as the API takes it."""

    until: str
    actor: str | None
    format: str


@dataclass(frozen=True, slots=True)
class Position:
    """What comes next: the page of `cursor` in the window that ends at `until`, or a window that begins at `start`."""

    start: str
    until: str | None = None
    cursor: str | None = None
    changes: int = 0
    """How many have been written."""
    has_head: bool = False


def of_settled(selection: Selection, settled: str) -> Selection:
    """The window cut where changes have committed: what comes later would be missing from a file for ever."""
    return replace(selection, until=min(selection.until, settled))


class Sink(Protocol):
    """Where the changes go."""

    def append(self, text: str, position: Mapping[str, Any]) -> None:
        """Keep the text and the position, both or neither over a crash."""
        ...


async def export(client: Client, selection: Selection, at: Position, sink: Sink) -> Position:
    """Write what follows the position, page by page, newest first in each window. Returns the position behind it."""
    if at.cursor is not None:  # end the window in whose middle the last run ended
        at = await _write(client, selection, at, sink)
    if at.start < selection.until:
        at = await _write(client, selection, replace(at, until=selection.until), sink)
    return at


async def _write(client: Client, selection: Selection, at: Position, sink: Sink) -> Position:
    while True:
        answer = await _page(client, selection, at)
        text = "" if at.has_head else head(selection.format)
        changes, cursor = answer["items"], answer["pagination"]["cursor"]
        at = replace(at, cursor=cursor, changes=at.changes + len(changes), has_head=True)
        if cursor is None:
            at = replace(at, start=at.until or at.start, until=None)
        sink.append(text + lines(selection.format, changes), asdict(at))
        if cursor is None:
            return at


async def _page(client: Client, selection: Selection, at: Position) -> Any:
    if at.cursor is not None:
        return await client.call("GET", PATH, cursor=at.cursor)
    window = {"start_time": at.start, "end_time": at.until}
    return await client.call("GET", PATH, limit=PAGE_CHANGES, actor=selection.actor, **window)
