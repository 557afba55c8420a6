"""Queries on `limit_alerts` and `limit_refusals`. Whoever tells locks the group's tree first, so nothing is told twice.

See docs/decisions/0078-alerts-are-looked-for.md.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, and_, delete, insert, select, text, update

from control.edges.sql.alerts.tables import limit_alerts, limit_refusals
from control.edges.sql.group_rows import balance_of, workspaces_of
from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import groups
from control.edges.sql.webhook_rows import listening_workspaces
from control.records.limits.alerts import BALANCE, SPEND, USAGE, Alert, GroupStamp, LimitFigures
from policy.limits.alerts import LIMIT_ALERT, LimitName, PastAlert, ReachedLimit
from policy.prices import amount_text

AlertsOfLimits = Mapping[tuple[LimitName, int], Sequence[PastAlert]]
"""Alerts of a group, by limit and start of the window."""


# --- what was told ---------------------------------------------------------------------------------------------------


async def past_alerts(
    conn: Connection, group_ids: Collection[str], starts_ms: Collection[int]
) -> dict[str, AlertsOfLimits]:
    """The alerts of these groups in windows that begin at one of these times."""
    table = limit_alerts
    query = select(table).where(one_of(table.c.group_id, group_ids), table.c.window_start_ms.in_(starts_ms))
    alerts: dict[str, dict[tuple[LimitName, int], list[PastAlert]]] = {id: defaultdict(list) for id in group_ids}
    for row in await conn.execute(query):
        one = PastAlert(row.message_type, row.percent, int(row.threshold), int(row.used))
        alerts[row.group_id][LimitName(row.kind, row.slug, row.type, row.unit), row.window_start_ms].append(one)
    return {**alerts}


async def insert_alerts(tx: WriteTx, alerts: Sequence[Alert], now_ms: int) -> None:
    rows = [
        {
            "group_id": alert.group_id,
            **alert.figures.limit._asdict(),
            "window_start_ms": alert.figures.window.start_ms,
            "message_type": alert.message_type,
            "percent": alert.percent,
            "message_id": alert.id,
            "threshold": str(alert.figures.raised_to),
            "used": str(alert.figures.use),
            "told_at_ms": now_ms,
        }
        for alert in alerts
    ]
    if rows:
        await tx.conn.execute(insert(limit_alerts), rows)


async def rearm(tx: WriteTx, group_id: str, figures: LimitFigures, again: Sequence[PastAlert]) -> None:
    """Forget those that may be told again. The others keep being told, as of the limit that was raised."""
    for one in again:
        same = and_(
            _of_limit(group_id, figures),
            limit_alerts.c.message_type == one.message_type,
            limit_alerts.c.percent == one.percent,
        )
        await tx.conn.execute(delete(limit_alerts).where(same))
    change = update(limit_alerts).where(_of_limit(group_id, figures))
    await tx.conn.execute(change.values(threshold=str(figures.raised_to)))


def _of_limit(group_id: str, figures: LimitFigures) -> ColumnElement[bool]:
    table = limit_alerts
    limit = figures.limit
    return and_(
        table.c.group_id == group_id,
        table.c.kind == limit.kind,
        table.c.slug == limit.slug,
        table.c.type == limit.type,
        table.c.unit == limit.unit,
        table.c.window_start_ms == figures.window.start_ms,
    )


async def forget_alerts(tx: WriteTx, before_ms: int, limit: int) -> int:
    """Delete at most `limit` alerts of windows that began before then; returns how many.

    Those on a balance, which has no such window, are kept while its group exists.
    """
    return (await tx.conn.execute(_FORGET, {"before_ms": before_ms, "limit": limit})).rowcount


_PRIMARY_KEY = ", ".join(column.name for column in limit_alerts.primary_key)
_FORGET = text(
    f"DELETE FROM limit_alerts WHERE ({_PRIMARY_KEY}) IN"  # noqa: S608 (ours)
    f" (SELECT {_PRIMARY_KEY} FROM limit_alerts WHERE window_start_ms < :before_ms"
    f" AND (kind <> '{BALANCE}' OR NOT EXISTS (SELECT 1 FROM groups WHERE groups.id = limit_alerts.group_id))"
    " LIMIT :limit)"
)


# --- refusals --------------------------------------------------------------------------------------------------------


async def add_refusals(tx: WriteTx, refusals: Iterable[ReachedLimit], now_ms: int) -> None:
    """Note that these limits have refused, of workspaces with a webhook that is to be told of it.

    Not of a balance that was topped up since.
    """
    workspaces = await listening_workspaces(tx.conn, LIMIT_ALERT)
    limits = {one for one in refusals if one.workspace_id in workspaces}
    if not limits:
        return
    places = (await workspaces_of(tx.conn, {one.group_id for one in limits})).items()
    deposits = await _deposits(tx.conn, {one.group_id for one in limits if _kind(one.slug, one.unit) == BALANCE})
    rows = [
        {"group_id": one.group_id, "slug": one.slug, "type": one.type, "unit": one.unit, "now_ms": now_ms}
        for one in sorted(limits, key=_refusal_key)
        if (one.group_id, one.workspace_id) in places
        and (_kind(one.slug, one.unit) != BALANCE or one.deposited == deposits.get(one.group_id))
    ]
    if rows:
        await tx.conn.execute(_ADD_REFUSAL, rows)


async def _deposits(conn: Connection, group_ids: Collection[str]) -> dict[str, str]:
    """The sum that was paid into the balance of each of these groups that has one, as decimal text.

    A top-up waits until the transaction ends, and then forgets what it noted.
    """
    if not group_ids:
        return {}
    query = select(groups.c.id, groups.c.balance).where(one_of(groups.c.id, group_ids)).order_by(groups.c.id)
    balances = {id: balance_of(text) for id, text in await conn.execute(query.with_for_update(read=True))}
    return {id: amount_text(balance.deposited) for id, balance in balances.items() if balance is not None}


def _refusal_key(one: ReachedLimit) -> tuple[str, ...]:
    return one.group_id, one.slug, one.type, one.unit


_ADD_REFUSAL = text(
    "INSERT INTO limit_refusals (group_id, slug, type, unit, refused_at_ms)"
    " VALUES (:group_id, :slug, :type, :unit, :now_ms) ON CONFLICT (group_id, slug, type, unit) DO NOTHING"
)


async def refusing_groups(conn: Connection, limit: int) -> list[str]:
    """Groups whose limits have refused and were not looked at since, at most `limit` refusals, oldest first."""
    table = limit_refusals
    query = select(table.c.group_id).order_by(table.c.refused_at_ms, table.c.group_id).limit(limit)
    return list(dict.fromkeys((await conn.execute(query)).scalars()))


async def refused_limits(conn: Connection, group_ids: Collection[str]) -> dict[str, frozenset[LimitName]]:
    """The limits of each of these groups that have refused and were not looked at since."""
    query = select(limit_refusals).where(one_of(limit_refusals.c.group_id, group_ids))
    limits: dict[str, set[LimitName]] = {id: set() for id in group_ids}
    for row in await conn.execute(query):
        limits[row.group_id].add(LimitName(_kind(row.slug, row.unit), row.slug, row.type, row.unit))
    return {id: frozenset(names) for id, names in limits.items()}


def _kind(slug: str, unit: str) -> str:
    """Return the kind of a limit that has refused. Spend limits and balances hold for all slugs together."""
    if slug:
        return USAGE
    return SPEND if unit else BALANCE


async def delete_refusals(tx: WriteTx, group_id: str, limits: Iterable[LimitName]) -> None:
    table = limit_refusals
    for limit in limits:
        same = and_(table.c.slug == limit.slug, table.c.type == limit.type, table.c.unit == limit.unit)
        await tx.conn.execute(delete(table).where(table.c.group_id == group_id, same))


async def forget_balance_refusal(tx: WriteTx, group_id: str) -> None:
    """Forget that the group's balance has refused calls: it is topped up."""
    await delete_refusals(tx, group_id, [LimitName(BALANCE, "", "", "")])


async def forget_refusals(tx: WriteTx, group_ids: Collection[str]) -> None:
    await tx.conn.execute(delete(limit_refusals).where(one_of(limit_refusals.c.group_id, group_ids)))


# --- groups ----------------------------------------------------------------------------------------------------------


async def stamps_of(conn: Connection, group_ids: Collection[str]) -> dict[str, GroupStamp]:
    """The stamp of each of these groups that exists."""
    query = select(groups.c.id, groups.c.updated_at_ms, groups.c.balance).where(one_of(groups.c.id, group_ids))
    return {id: GroupStamp(at_ms, balance_of(balance)) for id, at_ms, balance in await conn.execute(query)}
