"""Figures of kind BALANCE: how much calls have drawn of what was credited at the last top-up.

A balance is watched if its group has percents, or if it has refused a call.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from control.edges.sql.alerts.top_ups import TopUp
from control.errors import SpendNotCountedError
from control.records.limits.alerts import BALANCE, ENDLESS, LimitFigures, WatchedGroup
from control.records.spend import BalanceReading
from policy.limits.alerts import LimitName
from policy.prices import units_of
from policy.spend.spend_hash import spend_key

BALANCE_LIMIT = LimitName(BALANCE, "", "", "")


class BalanceReader(Protocol):
    """Reads what is drawn from balances. Raises `UsageUnavailableError`, of which `SpendNotCountedError` is one."""

    async def balance_of(self, tree_key: str, currency: str, group_id: str) -> BalanceReading:
        """See `control.resources.spend.balance_source.BalanceSource`, which is one."""
        ...


async def balance_readings(
    source: BalanceReader, groups: Sequence[WatchedGroup], refused: Mapping[str, Collection[LimitName]]
) -> dict[str, BalanceReading]:
    """Read the balance of each of these groups that has one which is watched.

    None of a tree that is not counted yet: a later look finds them.
    """
    readings: dict[str, BalanceReading] = {}
    for group in groups:
        record = group.record
        is_watched = record.alert_percents or BALANCE_LIMIT in refused.get(group.id, ())
        if record.balance is None or not is_watched:
            continue
        try:
            key = spend_key(record.root_id)
            readings[group.id] = await source.balance_of(key, record.balance.currency, group.id)
        except SpendNotCountedError:
            continue
    return readings


def balance_figures(
    groups: Sequence[WatchedGroup], readings: Mapping[str, BalanceReading], top_ups: Mapping[str, TopUp]
) -> dict[str, LimitFigures]:
    """The figures of each balance that was read.

    `top_ups`: read after it, so that all withdrawals which the reading counts are there.
    """
    figures: dict[str, LimitFigures] = {}
    for group in groups:
        balance = group.record.balance
        if balance is None or group.id not in readings or group.id not in top_ups:
            continue
        reading = readings[group.id]
        top_up = top_ups[group.id]
        deposited = units_of(balance.deposited)
        figures[group.id] = LimitFigures(
            limit=BALANCE_LIMIT,
            percents=group.record.alert_percents,
            threshold=deposited - units_of(top_up.withdrawn(top_up.at_ms)),
            use=reading.drawn - units_of(top_up.withdrawn(reading.counted_ms)),
            window=ENDLESS,
            currency=balance.currency,
            is_hard=True,
            deposited=deposited,
        )
    return figures
