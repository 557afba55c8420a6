"""Where the sums of a window come from: hourly sums of what is final, events of the rest."""

from collections.abc import Sequence
from itertools import chain

from control.edges.sql.billing.event_sums import EventSums
from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.billing.hourly_sums import HourlySums
from control.edges.sql.billing.sum_records import UsageSource
from control.edges.sql.store import Connection
from control.resources.records import Window


async def sources_of(conn: Connection, window: Window) -> Sequence[UsageSource]:
    """Sources that together have each call of the window once."""
    parts = (await summed_hours(conn, window.workspace_id)).parts_of(window)
    events = [EventSums(conn, part) for part in (parts.before, parts.after) if part.start_ms < part.end_ms]
    return [HourlySums(conn, parts.hours), *events] if parts.hours.start_ms < parts.hours.end_ms else events


async def entities_after(conn: Connection, window: Window, after: str, limit: int) -> Sequence[str]:
    """The next `limit` entities that may have calls in the window, in order. Fewer if no others follow."""
    found = [await source.entities_after(after, limit) for source in await sources_of(conn, window)]
    return sorted(set(chain.from_iterable(found)))[:limit]
