"""The trees that have a spend limit, how far their events are counted, and the events that are next."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import case, func, select, text, update

from control.edges.sql.billing.event_figures import EVENT_GROUP, EVENT_PATH
from control.edges.sql.events.partitions import part_of, partitions_of
from control.edges.sql.one_of import one_of
from control.edges.sql.spend.tables import spend_progress
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import HAS_SPEND_LIMITS, events, groups, prices
from control.records.spend import SpendTree, TreeEvent
from policy.limits.groups import Enforcement
from policy.spend.limits import SpendEnforcement, spend_limits_from_wire

_ROOT_OF_PATH = {
    "sqlite": "substr({path}, 1, instr({path}, '/') - 1)",
    "postgresql": "split_part({path}, '/', 1)",
}
_TEXTS = {
    "sqlite": "SELECT value AS id FROM json_each(:{})",
    "postgresql": "SELECT json_array_elements_text(CAST(:{} AS json)) AS id",
}
"""The texts of a JSON array, as rows."""
_HARD = f'"{SpendEnforcement.HARD.value}"'
"""The text by which the JSON of spend limits tells that one of them is HARD: nothing else in it can have it."""
_COLUMNS = TreeEvent._fields[TreeEvent._fields.index("model_slug") :]


class TreeEvents(NamedTuple):
    """All events of some trees after a time and through `through_ms`, in the order of time."""

    through_ms: int
    events: Sequence[TreeEvent]


async def price_stamps(conn: Connection) -> dict[str, str]:
    """A text for each workspace with prices: another one whenever one of them was changed."""
    figures = (func.count(), func.max(prices.c.updated_at_ms))
    query = select(prices.c.workspace_id, *figures).group_by(prices.c.workspace_id)
    return {workspace_id: f"{count}:{latest_ms}" for workspace_id, count, latest_ms in await conn.execute(query)}


async def trees_with_limits(conn: Connection, stamps: Mapping[str, str]) -> list[SpendTree]:
    """Each tree of which a group has a spend limit. One limit tells the currency of all. `stamps`: `price_stamps`."""
    some: list[Any] = [func.min(groups.c[name]) for name in ("workspace_id", "enforcement", "spend_limits")]
    some.append(func.max(case((groups.c.spend_limits.contains(_HARD), 1), else_=0)))
    query = select(groups.c.root_id, *some).where(HAS_SPEND_LIMITS).group_by(groups.c.root_id)
    return [
        SpendTree(
            root_id=root_id,
            workspace_id=workspace_id,
            enforcement=Enforcement(enforcement),
            currency=_currency(limits),
            prices=stamps.get(workspace_id, ""),
            is_hard=bool(is_hard),
        )
        for root_id, workspace_id, enforcement, limits, is_hard in await conn.execute(query)
    ]


def _currency(limits: str) -> str:
    return spend_limits_from_wire(orjson.loads(limits))[0].currency


async def counted_ms(conn: Connection) -> int:
    """The time through which events are counted; 0 if none were yet."""
    query = select(spend_progress.c.counted_ms).where(spend_progress.c.id == 1)
    return (await conn.execute(query)).scalar() or 0


async def record_counted(tx: WriteTx, through_ms: int) -> None:
    """Record that events through this time are counted. A later time stays."""
    later = update(spend_progress).where(spend_progress.c.id == 1, spend_progress.c.counted_ms < through_ms)
    await tx.conn.execute(later.values(counted_ms=through_ms))


async def events_of_trees(
    conn: Connection, trees: Collection[SpendTree], after_ms: int, through_ms: int, limit: int
) -> TreeEvents:
    """The events of these trees in this time: the first `limit`, if there are more, and never a part of a timestamp's.

    One timestamp may have more than that. Then these come alone.
    """
    rows = await _events(conn, trees, after_ms, through_ms, limit + 1)
    if len(rows) <= limit:
        return TreeEvents(through_ms, rows)
    last_ms = rows[-1].timestamp_ms
    whole = [row for row in rows if row.timestamp_ms < last_ms]
    if whole:
        return TreeEvents(last_ms - 1, whole)
    return TreeEvents(last_ms, await _events(conn, trees, after_ms, last_ms, None))


async def _events(
    conn: Connection, trees: Collection[SpendTree], after_ms: int, through_ms: int, limit: int | None
) -> list[TreeEvent]:
    """A range of the index for each workspace. SQLite keeps the order of a CROSS JOIN."""
    part = part_of(await partitions_of(conn), after_ms + 1, through_ms + 1)
    if part is None:
        return []
    dialect = conn.dialect.name
    columns = ", ".join(f"e.{name}" for name in _COLUMNS)
    query = (
        f"SELECT e.timestamp_ms, e.idempotency_key, e.workspace_id, {EVENT_PATH}, {columns}"  # noqa: S608 (ours)
        f" FROM ({_TEXTS[dialect].format('workspaces')}) AS w CROSS JOIN {part.sql} AS e"
        f" LEFT JOIN groups ON {EVENT_GROUP}"
        " WHERE e.workspace_id = w.id AND e.timestamp_ms > :after AND e.timestamp_ms <= :through"
        f" AND {_ROOT_OF_PATH[dialect].format(path=EVENT_PATH)} IN ({_TEXTS[dialect].format('roots')})"
        f" ORDER BY e.timestamp_ms, e.idempotency_key{'' if limit is None else f' LIMIT {limit}'}"
    )
    values: dict[str, Any] = {
        "workspaces": orjson.dumps(sorted({tree.workspace_id for tree in trees})).decode(),
        "roots": orjson.dumps([tree.root_id for tree in trees]).decode(),
        "after": after_ms,
        "through": through_ms,
        **part.bounds,
    }
    return [TreeEvent(*row) for row in await conn.execute(text(query), values)]


async def times_of_events(conn: Connection, keys: Collection[str]) -> dict[str, int]:
    """The timestamps of those of these events that are committed, by key."""
    query = select(events.c.idempotency_key, events.c.timestamp_ms).where(one_of(events.c.idempotency_key, keys))
    return dict(map(tuple, await conn.execute(query)))
