"""Reads the list of events in consecutive windows, from a position on.

A window that was answered never changes (docs/reference/events-and-webhooks.md#the-holdback). So the position of the
last delivered event says all: what is listed after it has not been delivered. No cursor needs to be kept.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from commands.connection import Client
from commands.errors import RefusedError
from commands.forward.retries import Retries
from commands.records.billing_events import Event, Position, read_event

PAGE_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in order, and the position after them."""

    events: tuple[Event, ...]
    after: Position


class EventList:
    """The list of events, up to `end` (exclusive) if one is given. `details`: each with its details.

    A cost follows the price list, and what was delivered never changes: events are read without their costs.
    """

    def __init__(self, client: Client, retries: Retries, end: str | None = None, *, details: bool = False) -> None:
        self._client = client
        self._retries = retries
        self._end = end
        self._included = {"include": "details"} if details else {}

    def is_over(self, position: Position) -> bool:
        """Return whether everything up to `end` was read."""
        return self._end is not None and position.timestamp >= self._end

    async def batches(self, position: Position, size: int) -> AsyncIterator[Batch]:
        """All events after `position` that are final now, in batches of at most `size`; the last one may be empty."""
        if self.is_over(position):
            return
        batch: list[Event] = []
        read_to = position
        window_end = position.timestamp
        async for page in self._pages(position):
            window_end = page["window"]["end_time"]
            for event in map(read_event, map(_without_cost, page["items"])):
                if event.position > read_to:
                    batch.append(event)
                    read_to = event.position
            while len(batch) > size:
                yield Batch(tuple(batch[:size]), batch[size - 1].position)
                del batch[:size]
        yield Batch(tuple(batch), max(read_to, Position(window_end)))

    async def _pages(self, position: Position) -> AsyncIterator[Any]:
        """The pages of one window. A cursor that is refused, as after a change of control's key, begins a new one."""
        page = await self._first_page(position.timestamp, self._end)
        while True:
            yield page
            cursor = page["pagination"]["cursor"]
            if cursor is None:
                return
            try:
                page = await self._page(cursor=cursor)
            except RefusedError as error:
                if error.status != 400 or not page["items"]:
                    raise
                last = read_event(page["items"][-1]).timestamp  # shown again from here: `batches` drops what it had
                page = await self._first_page(last, page["window"]["end_time"])

    async def _first_page(self, start: str, end: str | None) -> Any:
        return await self._page(start_time=start, end_time=end, limit=PAGE_ITEMS, **self._included)

    async def _page(self, **query: Any) -> Any:
        return await self._retries.until_done(lambda: self._client.call("GET", "/v1/gateway/events", **query))


def _without_cost(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: member for name, member in item.items() if name != "cost"}
