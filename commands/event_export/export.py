"""Pages through billing events and hands each page to a sink, which remembers the position together with the text.

After a crash, the sink's position says which page comes next; what was written behind it is dropped. Consecutive
windows show each event once, so a later run of the same export goes on where the last window ended.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from commands.connection import Client
from commands.event_export.formats import head, lines

PATH = "/v1/gateway/events"
PAGE_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events, and how they are written. `until` is as the API takes it; None: as late as the events are final."""

    until: str | None
    entities: list[str]
    key_prefixes: list[str]
    format: str


@dataclass(frozen=True, slots=True)
class Position:
    """What comes next: the page of `cursor`, or, without one, the window that begins at `start`."""

    start: str
    cursor: str | None = None
    events: int = 0
    """How many have been written."""
    has_head: bool = False


class Sink(Protocol):
    """Where the events go."""

    def append(self, text: str, position: Mapping[str, Any]) -> None:
        """Keep the text and the position, both or neither over a crash."""
        ...


async def export(client: Client, selection: Selection, at: Position, sink: Sink) -> Position:
    """Write what follows the position, page by page. Returns the position behind it all."""
    async for answer in _pages(client, selection, at):
        text = "" if at.has_head else head(selection.format)
        events, pagination = answer["items"], answer["pagination"]
        at = replace(at, cursor=pagination["cursor"], events=at.events + len(events), has_head=True)
        if at.cursor is None:
            at = replace(at, start=max(at.start, answer["window"]["end_time"]))
        sink.append(text + lines(selection.format, events), asdict(at))
    return at


async def _pages(client: Client, selection: Selection, at: Position) -> AsyncIterator[Mapping[str, Any]]:
    """The pages of one window, from the position on."""
    if at.cursor is not None:
        answer = await client.call("GET", PATH, cursor=at.cursor)
    elif selection.until is not None and at.start >= selection.until:
        return
    else:
        window = {"start_time": at.start, "end_time": selection.until}
        filters = {"external_entity_ids": selection.entities, "api_keys": selection.key_prefixes}
        answer = await client.call("GET", PATH, limit=PAGE_EVENTS, **window, **filters)
    while True:
        yield answer
        cursor = answer["pagination"]["cursor"]
        if cursor is None:
            return
        answer = await client.call("GET", PATH, cursor=cursor)
