"""Figures of traffic: proxies add to them, each batch once, and the console's overview shows them by slug.

See docs/reference/management-api.md#traffic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.traffic import rows as traffic_rows
from control.edges.sql.traffic.rows import Points
from control.resources.traffic.steps import STEPS, Period, Steps
from control.time_slices import pause
from policy.traffic import TrafficRow

MAX_SLUGS = 100
"""Of one answer; the others are summed. With all its steps an item has 15 kB."""
_SLUGS_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class SlugTraffic:
    """The steps of a slug that have calls, oldest first. `slug`: None for all calls that have no item of their own."""

    slug: str | None
    points: Points


@dataclass(frozen=True, slots=True)
class Chart:
    """The traffic of a period: busiest slugs first, None last."""

    steps: Steps
    first_ms: int
    slugs: Sequence[SlugTraffic]


async def add_traffic(store: Store, sender: str, number: int, rows: Sequence[TrafficRow]) -> None:
    """Add a batch, unless this sender's batch of this or a later number was added before."""

    async def add(tx: WriteTx) -> None:
        now_ms = await database_ms(tx.conn)
        if await traffic_rows.note_batch(tx, sender, number, now_ms) and rows:
            await traffic_rows.add_rows(tx, rows, now_ms)

    await store.transact(add)


async def read_traffic(store: Store, workspace_id: str, period: Period, slug: str | None) -> Chart:
    """The traffic of the busiest slugs and of the rest; or of one slug alone."""
    steps, found = STEPS[period], list[SlugTraffic]()
    async with store.read() as conn:
        first_ms = steps.first_ms(await database_ms(conn))
        where = (conn, workspace_id, steps, first_ms)
        names = [slug] if slug is not None else await traffic_rows.busiest_slugs(*where, MAX_SLUGS)
        for start in range(0, len(names), _SLUGS_AT_ONCE):
            await pause()
            some = names[start : start + _SLUGS_AT_ONCE]
            points = await traffic_rows.points_of(*where, some)
            found += [SlugTraffic(name, points[name]) for name in some if name in points]
        if slug is None and (rest := await traffic_rows.points_of_others(*where, names)):
            found.append(SlugTraffic(None, rest))
    return Chart(steps, first_ms, found)
