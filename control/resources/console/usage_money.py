"""The money on the usage page of a group: its spend limits, and its own prepaid balance.

See docs/reference/console.md#usage-page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql.store import Store
from control.errors import BalanceNotFoundError, SpendNotCountedError
from control.records.console import NamedGroup
from control.resources.groups import read_group
from control.resources.spend.balance_source import BalanceSource
from control.resources.spend.balances import BalanceFigures, read_balance
from control.resources.spend.group_spend import BoundSpend, SpendSource, read_spend
from policy.spend.effective import SpendBound


@dataclass(frozen=True, slots=True)
class MoneySources:
    """The sources of the figures. None: there is no Redis, and nothing is counted."""

    store: Store
    spend: SpendSource | None
    balances: BalanceSource | None


@dataclass(frozen=True, slots=True)
class PageMoney:
    """Spend limits in the order in which they are tried, each with its figures, and the balance.

    Figures and balance are None while control counts what the tree has spent. `balance` also where the group has none.
    """

    limits: Sequence[tuple[SpendBound, BoundSpend | None]]
    balance: BalanceFigures | None


async def read_page_money(sources: MoneySources, workspace_id: str, group: NamedGroup) -> PageMoney:
    """Read them. Raises UsageUnavailableError while the counters cannot be read."""
    plan = (await read_group(sources.store, workspace_id, group.id)).spend_plan
    bounds = () if plan is None else plan.bounds
    limits: list[tuple[SpendBound, BoundSpend | None]]
    try:
        limits = [(one.bound, one) for one in await read_spend(sources.spend, plan)]
        balance = await _balance(sources, workspace_id, group.id)
    except SpendNotCountedError:
        return PageMoney([(bound, None) for bound in bounds], None)
    return PageMoney(limits, balance)


async def _balance(sources: MoneySources, workspace_id: str, group_id: str) -> BalanceFigures | None:
    try:
        return await read_balance(sources.store, sources.balances, workspace_id, group_id)
    except BalanceNotFoundError:
        return None
