"""The sources of a window's sums: hourly sums of what is final, events of the rest."""

from collections.abc import Collection, Sequence

from sqlalchemy import text

from control.edges.sql.billing.event_sums import EventSums
from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.billing.hourly_sums import HourlySums
from control.edges.sql.billing.sum_records import Entities, SumSource
from control.edges.sql.store import Connection
from control.records.events import EventWindow


async def sources_of(conn: Connection, window: EventWindow, bounds: Collection[int] = ()) -> Sequence[SumSource]:
    """Sources that together have each call of the window once. `bounds`: of long context, of the prices to be used."""
    parts = (await summed_hours(conn, window.workspace_id)).parts_of(window)
    events = [EventSums(conn, part, bounds) for part in (parts.before, parts.after) if part.start_ms < part.end_ms]
    if parts.hours.start_ms >= parts.hours.end_ms:
        return events
    if conn.dialect.name == "postgresql":
        # The sums of a day lie side by side. The planner expects them anywhere, and would read all other tenants' too.
        await conn.execute(text("SET LOCAL random_page_cost = 1.1"))
    return [HourlySums(conn, parts.hours), *events]


async def next_entities(sources: Sequence[SumSource], after: str, sums: int) -> Entities:
    """The next entities that may have calls in the window, as many as give a day about `sums` sums."""
    ends = [await source.last_entity(after, sums) for source in sources]
    return Entities(after, min((last for last in ends if last is not None), default=None))
