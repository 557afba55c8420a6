"""The trees that have a spend limit or a balance, how far their events are counted, and the events that are next."""

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
from sqlalchemy import case, func, literal_column, null, select, text, union_all, update

from control.edges.sql.billing.event_figures import EVENT_GROUP, EVENT_PATH
from control.edges.sql.events.partitions import part_of, partitions_of
from control.edges.sql.group_rows import balance_of, spend_limits_of
from control.edges.sql.key_rows import later_buckets
from control.edges.sql.one_of import one_of
from control.edges.sql.spend.tables import IS_WITHDRAWAL, balance_credits, spend_progress
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import (
    HAS_BALANCE,
    HAS_OWN_SPEND,
    HAS_SPEND_LIMITS,
    api_keys,
    events,
    groups,
    prices,
)
from control.records.spend import SpendTree, TreeEvent, TreeWithdrawal
from policy.keys.settings import key_settings_from_wire
from policy.limits.groups import Enforcement
from policy.prices import units_of
from policy.spend.limits import SpendEnforcement

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
_OF_TREE = (groups.c.root_id, groups.c.workspace_id, groups.c.enforcement)
_COLUMNS = TreeEvent._fields[TreeEvent._fields.index("model_slug") :]


class TreeEvents(NamedTuple):
    """All events of some trees, and all withdrawals, after a time and through `through_ms`, in the order of time."""

    through_ms: int
    events: Sequence[TreeEvent]
    withdrawals: Sequence[TreeWithdrawal] = ()
    buckets: Mapping[str, str] = {}
    """The prefix of the first key of a rotation, by that of each later key of these events whose spend counts."""


async def price_stamps(conn: Connection) -> dict[str, str]:
    """A text for each workspace with prices: another one whenever one of them was changed."""
    figures = (func.count(), func.max(prices.c.updated_at_ms))
    query = select(prices.c.workspace_id, *figures).group_by(prices.c.workspace_id)
    return {workspace_id: f"{count}:{latest_ms}" for workspace_id, count, latest_ms in await conn.execute(query)}


async def trees_with_limits(conn: Connection, stamps: Mapping[str, str]) -> list[SpendTree]:
    """Each tree with a spend limit, of a group or of a key, or a balance. One of them tells the currency of all.

    `stamps`: `price_stamps`.
    """
    is_hard = case((groups.c.spend_limits.contains(_HARD), 1), else_=0)
    nothing = null().label("balance"), null().label("settings")
    limited = select(*_OF_TREE, groups.c.spend_limits, *nothing, is_hard.label("is_hard"))
    prepaid = select(*_OF_TREE, null(), groups.c.balance, null(), literal_column("1"))
    is_hard_key = case((api_keys.c.settings.contains(_HARD), 1), else_=0)
    by_key = select(*_OF_TREE, null(), null(), api_keys.c.settings, is_hard_key)
    by_key = by_key.join_from(api_keys, groups, groups.c.id == api_keys.c.spend_root_id)
    # Apart, so that each reads its own index, and no group or key that has neither.
    amounts = union_all(
        limited.where(HAS_SPEND_LIMITS), prepaid.where(HAS_BALANCE), by_key.where(HAS_OWN_SPEND)
    ).subquery()
    names = ("workspace_id", "enforcement", "spend_limits", "balance", "settings")
    some: list[Any] = [func.min(amounts.c[name]) for name in names]
    some.append(func.max(amounts.c.is_hard))
    query = select(amounts.c.root_id, *some).group_by(amounts.c.root_id)
    return [
        SpendTree(
            root_id=root_id,
            workspace_id=workspace_id,
            enforcement=Enforcement(enforcement),
            currency=_currency(limits, balance, settings),
            prices=stamps.get(workspace_id, ""),
            is_hard=bool(is_hard),
            counts_keys=settings is not None,
        )
        for root_id, workspace_id, enforcement, limits, balance, settings, is_hard in await conn.execute(query)
    ]


def _currency(limits: str | None, balance: str | None, settings: str | None) -> str:
    if limits is not None:
        return spend_limits_of(limits)[0].currency
    if settings is not None:
        return key_settings_from_wire(orjson.loads(settings)).spend_limits[0].currency
    owned = balance_of(balance)
    assert owned is not None
    return owned.currency


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

    One timestamp may have more than that. Then these come alone. With them come all withdrawals of their time.
    """
    rows = await _events(conn, trees, after_ms, through_ms, limit + 1)
    if len(rows) > limit:
        last_ms = rows[-1].timestamp_ms
        whole = [row for row in rows if row.timestamp_ms < last_ms]
        through_ms = last_ms - 1 if whole else last_ms
        rows = whole or await _events(conn, trees, after_ms, last_ms, None)
    roots = {tree.root_id for tree in trees if tree.counts_keys}
    buckets = await later_buckets(conn, {row.api_key_prefix for row in rows if row.root_id in roots})
    return TreeEvents(through_ms, rows, await _withdrawals(conn, trees, after_ms, through_ms), buckets)


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


async def _withdrawals(
    conn: Connection, trees: Collection[SpendTree], after_ms: int, through_ms: int
) -> list[TreeWithdrawal]:
    credits = balance_credits.c
    query = (
        select(credits.timestamp_ms, credits.key, groups.c.root_id, credits.group_id, credits.amount)
        .join(groups, groups.c.id == credits.group_id)
        .where(IS_WITHDRAWAL, credits.timestamp_ms > after_ms, credits.timestamp_ms <= through_ms)
        .order_by(credits.timestamp_ms, credits.key)
    )
    roots = {tree.root_id for tree in trees}
    return [
        TreeWithdrawal(at_ms, key, root_id, group_id, units_withdrawn(amount))
        for at_ms, key, root_id, group_id, amount in await conn.execute(query)
        if root_id in roots
    ]


def units_withdrawn(amount: str) -> int:
    """The units (10^-22) of a withdrawal, by its amount, which is below 0."""
    return units_of(-Decimal(amount))


async def times_of_events(conn: Connection, keys: Collection[str]) -> dict[str, int]:
    """The timestamps of those of these events and withdrawals that are committed, by key."""
    times: dict[str, int] = {}
    for table, key in ((events, events.c.idempotency_key), (balance_credits, balance_credits.c.key)):
        query = select(key, table.c.timestamp_ms).where(one_of(key, keys))
        times |= dict(map(tuple, await conn.execute(query)))
    return times
