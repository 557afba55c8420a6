"""Figures of kind BALANCE: how much calls have spent of what was credited at the last top-up.

A balance is watched if its group has percents, or if it has refused a call.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Protocol

from control.edges.sql.alerts.top_ups import Withdrawn
from control.errors import SpendNotCountedError
from control.records.limits.alerts import BALANCE, ENDLESS, LimitFigures, WatchedGroup
from control.records.spend import BalanceReading
from policy.limits.alerts import LimitName
from policy.prices import units_of
from policy.spend.balances import Balance, balance_name
from policy.spend.spend_hash import spend_key


class BalanceSource(Protocol):
    """Reads what is drawn from balances. Raises `UsageUnavailableError`, of which `SpendNotCountedError` is one."""

    async def balance_of(self, key: str, currency: str, name: str) -> BalanceReading:
        """One moment of a balance, by its name in the tree's hash."""
        ...


BALANCE_LIMIT = LimitName(BALANCE, "", "", "")


def watched_balances(
    groups: Iterable[WatchedGroup], refused: Mapping[str, Collection[LimitName]]
) -> list[WatchedGroup]:
    """Select the groups whose own balance is watched."""
    return [
        group
        for group in groups
        if group.record.balance is not None
        and (group.record.alert_percents or BALANCE_LIMIT in refused.get(group.id, ()))
    ]


async def balance_figures(
    source: BalanceSource, groups: Sequence[WatchedGroup], withdrawn: Mapping[str, Withdrawn]
) -> dict[str, list[LimitFigures]]:
    """The figures of each of these groups.

    `withdrawn`: of each, read before. A later withdrawal takes a holdback until a hash counts it, and changes the
    group. None of a tree that is not counted yet: a later look finds them.
    """
    figures: dict[str, list[LimitFigures]] = {}
    for group in groups:
        balance = group.record.balance
        if balance is None or group.id not in withdrawn:
            continue
        key = spend_key(group.record.root_id)
        try:
            reading = await source.balance_of(key, balance.currency, balance_name(group.id))
        except SpendNotCountedError:
            continue
        own = withdrawn[group.id]
        spent = reading.drawn - units_of(_withdrawn_by(own, reading.counted_ms))
        figures[group.id] = [_figures(group, balance, own, spent)]
    return figures


def _figures(group: WatchedGroup, balance: Balance, withdrawn: Withdrawn, spent: int) -> LimitFigures:
    deposited = units_of(balance.deposited)
    return LimitFigures(
        limit=BALANCE_LIMIT,
        percents=group.record.alert_percents,
        threshold=deposited - units_of(_withdrawn_by(withdrawn, withdrawn.topped_up_ms)),
        use=spent,
        window=ENDLESS,
        currency=balance.currency,
        is_hard=True,
        deposited=deposited,
    )


def _withdrawn_by(withdrawn: Withdrawn, at_ms: int) -> Decimal:
    return sum((amount for since_ms, amount in withdrawn.withdrawals if since_ms <= at_ms), Decimal(0))
