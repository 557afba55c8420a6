"""Pages of billing events, in windows that never change once they were served.

A window never reaches beyond *clock − holdback*. The first page fixes its end, and the cursor carries it.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.edges.sql.billing import price_rows
from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.rows import page_of_events
from control.edges.sql.store import Connection, Store
from control.records.events import EventPosition, EventWindow, ShownEvent
from control.resources.billing.event_costs import EventCosts

NOTE_SHARE_OF_HOLDBACK = 8
"""The noted clock may lag by holdback / 8: stamps are up to holdback / 2 behind it, windows end a holdback behind."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some rows of a window, in order. `next`: the position of the last one, when more follow.

    `costs`: by the prices of now, of a window with details.
    """

    window: EventWindow
    limit: int
    rows: Sequence[ShownEvent]
    next: EventPosition | None
    costs: EventCosts | None = None


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads the events of one database."""

    store: Store
    holdback_s: float
    clock: EventClock

    async def first_page(self, window: EventWindow, limit: int) -> EventPage:
        """The window cut to what may be served now, and its first page."""
        return await self._page(await self.fixed(window), None, limit)

    async def fixed(self, window: EventWindow) -> EventWindow:
        """The window cut to what may be served now: it never changes again. An empty one ends where it starts."""
        holdback_ms = int(self.holdback_s * 1000)
        async with self.store.read() as conn:
            moment = await self.clock.read(conn)
        if holdback_ms:
            await self.clock.record(self.store, moment, holdback_ms // NOTE_SHARE_OF_HOLDBACK)
        return replace(window, end_ms=max(window.start_ms, min(window.end_ms, moment.now_ms - holdback_ms)))

    async def look_at_clock(self) -> None:
        """Read the clock for the sake of `clock.behind_s` alone. Nobody may have asked for events for long."""
        async with self.store.read() as conn:
            await self.clock.read(conn)

    async def next_page(self, window: EventWindow, after: EventPosition, limit: int) -> EventPage:
        """The page that follows `after` in a window that was served before."""
        return await self._page(window, after, limit)

    async def _page(self, window: EventWindow, after: EventPosition | None, limit: int) -> EventPage:
        if window.end_ms <= window.start_ms:
            return EventPage(window, limit, (), None)
        async with self.store.read() as conn:
            rows = await page_of_events(conn, window, after, limit + 1)
            costs = await _costs(conn, window, rows) if window.with_details else None
        events = rows[:limit]
        more = len(rows) > limit
        position = (events[-1].timestamp_ms, events[-1].idempotency_key) if more else None
        return EventPage(window, limit, events, position, costs)


async def _costs(conn: Connection, window: EventWindow, rows: Sequence[ShownEvent]) -> EventCosts:
    """The costs of these rows, which are in the order of time."""
    if not rows:
        return EventCosts([])
    slugs = {row.model_slug for row in rows}
    times = (rows[0].timestamp_ms, rows[-1].timestamp_ms)
    return EventCosts(await price_rows.prices_between(conn, window.workspace_id, slugs, *times))
