"""Figures of traffic: proxies add to them, each batch once, and the console's overview shows them by slug.

See docs/reference/management-api.md#traffic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from control.edges.sql.alerts.rows import add_refusals
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.traffic import rows as traffic_rows
from control.edges.sql.traffic.rows import Points
from control.records.traffic import StepRange
from control.resources.traffic.steps import Period, span_of
from policy.limits.alerts import ReachedLimit
from policy.traffic import TrafficRow

MAX_SLUGS = 100
"""The most slugs of one answer; the others are summed. With all its steps an item has 15 kB."""
Figures = Mapping[int, Sequence[int]]
"""The sums of each step that has any, by its start, in the order of the table's columns."""


@dataclass(frozen=True, slots=True)
class TrafficQuery:
    """The traffic to read. `end_ms`: of the period; None is now. `slug`: this one alone; None is the busiest `most`."""

    period: Period
    end_ms: int | None = None
    slug: str | None = None
    most: int = MAX_SLUGS


@dataclass(frozen=True, slots=True)
class SlugTraffic:
    """The traffic of one slug. `slug`: None for all calls that have no item of their own."""

    slug: str | None
    points: Points

    def figures(self) -> Figures:
        """Decode the figures. Call it once: for one slug this takes as long as a turn of the event loop may."""
        return {start_ms: figures for start_ms, *figures in orjson.loads(self.points)}


@dataclass(frozen=True, slots=True)
class Chart:
    """The traffic of a period: busiest slugs first, None last."""

    span: StepRange
    slugs: Sequence[SlugTraffic]


@dataclass(frozen=True, slots=True)
class TrafficBatch:
    """The batch of a sender with this number. `limits_reached`: those that refused calls meanwhile."""

    sender: str
    number: int
    rows: Sequence[TrafficRow]
    limits_reached: Sequence[ReachedLimit] = ()


async def add_traffic(store: Store, batch: TrafficBatch) -> None:
    """Add a batch, unless this sender's batch of this or a later number was added before."""

    async def add(tx: WriteTx) -> None:
        now_ms = await database_ms(tx.conn)
        if not await traffic_rows.note_batch(tx, batch.sender, batch.number, now_ms):
            return
        if batch.rows:
            await traffic_rows.add_rows(tx, batch.rows, now_ms)
        if batch.limits_reached:
            await add_refusals(tx, batch.limits_reached, now_ms)

    await store.transact(add)


async def read_traffic(store: Store, workspace_id: str, query: TrafficQuery) -> Chart:
    """The traffic of the busiest slugs and of the rest; or of one slug alone."""
    slug = query.slug
    async with store.read() as conn:
        span = span_of(query.period, query.end_ms, await database_ms(conn))
        where = (conn, workspace_id, span)
        names = [slug] if slug is not None else await traffic_rows.busiest_slugs(*where, query.most)
        points = await traffic_rows.points_of(*where, names)
        rest = await traffic_rows.points_of_others(*where, names) if slug is None else None
    items = [SlugTraffic(name, points[name]) for name in names if name in points]
    if rest is not None:
        items.append(SlugTraffic(None, rest))
    return Chart(span, items)
