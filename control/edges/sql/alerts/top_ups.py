"""Queries on the credits of balances, for alerts: percents are of what was credited at the last top-up."""

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import func, select

from control.edges.sql.one_of import one_of
from control.edges.sql.spend.tables import IS_WITHDRAWAL, balance_credits
from control.edges.sql.store import Connection


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The time (epoch ms) of a balance's last credit above 0, and its withdrawals: time and amount, which is above 0.

    A withdrawal's time is stamped as an event's: whether a hash counts it goes by that alone.
    """

    topped_up_ms: int
    withdrawals: tuple[tuple[int, Decimal], ...]


async def withdrawn_of(conn: Connection, group_ids: Collection[str]) -> dict[str, Withdrawn]:
    """Select these of each group that has a balance."""
    if not group_ids:
        return {}
    table = balance_credits
    theirs = one_of(table.c.group_id, group_ids)
    last = select(table.c.group_id, func.max(table.c.timestamp_ms)).where(theirs, ~IS_WITHDRAWAL)
    times = {id: at_ms for id, at_ms in await conn.execute(last.group_by(table.c.group_id))}  # noqa: C416 (Row)
    query = select(table.c.group_id, table.c.timestamp_ms, table.c.amount).where(theirs, IS_WITHDRAWAL)
    withdrawals: dict[str, list[tuple[int, Decimal]]] = {id: [] for id in times}
    for row in await conn.execute(query):
        if row.group_id in withdrawals:
            withdrawals[row.group_id].append((row.timestamp_ms, -Decimal(row.amount)))
    return {id: Withdrawn(at_ms, tuple(withdrawals[id])) for id, at_ms in times.items()}
