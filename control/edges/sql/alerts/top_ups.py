"""Queries on the credits of balances, for alerts: percents are of what was credited at the last top-up."""

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import func, select

from control.edges.sql.one_of import one_of
from control.edges.sql.spend.balance_rows import withdrawals_of
from control.edges.sql.spend.tables import IS_WITHDRAWAL, balance_credits
from control.edges.sql.store import Connection


@dataclass(frozen=True, slots=True)
class TopUp:
    """The time (epoch ms) of a balance's last credit above 0, and all withdrawals: time and amount, which is above 0.

    A withdrawal's time is stamped as an event's: whether a hash counts it goes by that alone.
    """

    at_ms: int
    withdrawals: tuple[tuple[int, Decimal], ...]

    def withdrawn(self, through_ms: int) -> Decimal:
        """The sum of the withdrawals through this time."""
        return sum((amount for at_ms, amount in self.withdrawals if at_ms <= through_ms), Decimal(0))


async def last_top_ups(conn: Connection, group_ids: Collection[str]) -> dict[str, TopUp]:
    """Select the last top-up of each of these groups that was credited something."""
    if not group_ids:
        return {}
    table = balance_credits.c
    last_ms = func.max(table.timestamp_ms)
    query = select(table.group_id, last_ms).where(one_of(table.group_id, group_ids), ~IS_WITHDRAWAL)
    times = {id: at_ms for id, at_ms in await conn.execute(query.group_by(table.group_id))}  # noqa: C416 (a Row)
    withdrawals: dict[str, list[tuple[int, Decimal]]] = {id: [] for id in times}
    for one in await withdrawals_of(conn, times):
        withdrawals[one.group_id].append((one.timestamp_ms, -one.amount))
    return {id: TopUp(at_ms, tuple(withdrawals[id])) for id, at_ms in times.items()}
