"""Pages through a list of the API, window after window. A sink keeps each page together with the position behind it.

After a crash, the sink's position says which page comes next; what was written behind it is dropped. Consecutive
windows show each item once, so a later run of the same export goes on where the last window ended.

See docs/reference/command-line.md#events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from commands.connection import Client
from commands.exports.listing import Listing

PAGE_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted items and their format. `filters`: members of the API's query."""

    filters: Mapping[str, Any]
    format: str
    until: str | None
    """The exclusive end, as the API takes it. None: as late as the list is final, which the API knows."""


@dataclass(frozen=True, slots=True)
class Position:
    """The next step: the page of `cursor` in the window that ends at `until`, or a window that begins at `start`."""

    start: str
    until: str | None = None
    cursor: str | None = None
    count: int = 0
    """The number of items that have been written."""
    has_head: bool = False

    def state(self, noun: str) -> dict[str, Any]:
        """Return the members that a state file keeps: the count has the items' name."""
        members = {"start": self.start, "cursor": self.cursor, noun: self.count, "has_head": self.has_head}
        return members if self.until is None else members | {"until": self.until}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], noun: str) -> "Position":
        """Read what `state` wrote."""
        members = {name: value for name, value in state.items() if name != noun}
        return cls(**members, count=state.get(noun, 0))


class Sink(Protocol):
    """The destination of the items."""

    def append(self, text: str, position: Mapping[str, Any]) -> None:
        """Keep the text and the position, both or neither over a crash."""
        ...


@dataclass(frozen=True, slots=True)
class Exporter:
    """Writes the selected items of a list to a sink."""

    client: Client
    listing: Listing
    selection: Selection
    sink: Sink

    async def run(self, at: Position) -> Position:
        """Write what follows the position, page by page. Returns the position behind it all."""
        if at.cursor is not None:  # end the window in whose middle the last run ended
            at = await self._write_window(at)
        until = self.selection.until
        if until is None or at.start < until:
            at = await self._write_window(replace(at, until=until))
        return at

    async def _write_window(self, at: Position) -> Position:
        while True:
            answer = await self._page(at)
            text = "" if at.has_head else self.listing.head(self.selection.format)
            text += self.listing.lines(self.selection.format, answer["items"])
            at = _behind(answer, at)
            self.sink.append(text, at.state(self.listing.noun))
            if at.cursor is None:
                return at

    async def _page(self, at: Position) -> Any:
        if at.cursor is not None:
            return await self.client.call("GET", self.listing.path, cursor=at.cursor)
        window = {"start_time": at.start, "end_time": at.until}
        return await self.client.call("GET", self.listing.path, limit=PAGE_ITEMS, **window, **self.selection.filters)


def _behind(answer: Mapping[str, Any], at: Position) -> Position:
    """Return the position behind a page; behind a window's last one, it is the start of the next window."""
    count = at.count + len(answer["items"])
    cursor = answer["pagination"]["cursor"]
    if cursor is not None:
        return replace(at, cursor=cursor, count=count, has_head=True)
    # The API cuts a window of billing events where they are final, and says where.
    end = answer["window"]["end_time"] if "window" in answer else at.until or at.start
    return Position(max(at.start, end), count=count, has_head=True)
