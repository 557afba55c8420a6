"""Compares what the counters say that groups have spent, and drawn from balances, with events and entries.

See docs/reference/reconciling.md#spend.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from commands.connection import Client
from commands.lists import items_of
from commands.reconcile.balance_check import BalanceCheck
from commands.reconcile.journal_check import Difference

_GROUPS = "/v1/gateway/groups"
_REPORT = "/v1/gateway/usage_report"
PATIENCE_S = 30
"""Seconds for which figures may differ: the report has an event as soon as it is final, the counters a moment later."""
_PAUSE_S = 1.0
_REPORTED_GROUPS = 100


@dataclass(slots=True)
class SpendCheck:
    """Compares each group that spend limits bind, and each balance. `report`: called now and then with the number of
    groups read.

    `pause_s`: the time between two looks at a group whose figures differ.
    """

    client: Client
    report: Callable[[int], None]
    pause_s: float = _PAUSE_S
    compared: int = 0
    balances_compared: int = 0

    async def differences(self) -> list[Difference]:
        """Raises ManagementError."""
        differences: list[Difference] = []
        balances = BalanceCheck(self.client, PATIENCE_S, self.pause_s)
        number = 0
        async for group in items_of(self.client, _GROUPS):
            number += 1
            if number % _REPORTED_GROUPS == 0:
                self.report(number)
            if group["effective_spend_limits"]:
                differences += await self._patient_look(group)
            differences += await balances.differences(group)
        self.balances_compared = balances.compared
        return differences

    async def _patient_look(self, group: Mapping[str, Any]) -> list[Difference]:
        for _ in range(PATIENCE_S):
            differences = await self._look(group)
            if not differences:
                break
            await asyncio.sleep(self.pause_s)
        self.compared += 1
        return differences

    async def _look(self, group: Mapping[str, Any]) -> list[Difference]:
        spend = await self.client.call("GET", f"{_GROUPS}/{group['id']}/spend")
        items = [item for item in spend["items"] if _is_counted_here(group, item)]
        costs = [await self._cost(group, item) for item in items]
        return [*_differences(group, items, costs)]

    async def _cost(self, group: Mapping[str, Any], item: Mapping[str, Any]) -> Decimal:
        """The cost of the calls that count against the limit, of its window."""
        entity = group["metadata"]["external_entity_id"]
        query = {"start": window_start(item), "group_by": "entity", "external_entity_id": entity, "rollup": "true"}
        is_cascading = _is_cascading(group)
        async for sums in items_of(self.client, _REPORT, **query):
            if sums["group_id"] == group["id"]:
                cost = (sums if is_cascading else sums["own"])["cost"] or {}
                return Decimal(cost.get(item["currency"], 0))
        return Decimal(0)


def _is_cascading(group: Mapping[str, Any]) -> bool:
    return bool(group["hierarchy"]["limit_enforcement"] == "CASCADING")


def _is_counted_here(group: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Return whether the group's own figures count against the limit: one of an ancestor has the ancestor's, where it
    is compared."""
    return not _is_cascading(group) or item["source_group"] == group["id"]


def window_start(item: Mapping[str, Any]) -> str:
    """The start of the window that ends at the item's `reset_at`."""
    last_day = datetime.fromisoformat(item["reset_at"]) - timedelta(days=1)
    first_day = last_day.replace(day=1) if item["unit"] == "MONTH" else last_day
    return f"{first_day:%Y-%m-%d}T00:00:00Z"


def _differences(group: Mapping[str, Any], items: list[Any], costs: list[Decimal]) -> Iterator[Difference]:
    for item, cost in zip(items, costs, strict=True):
        if Decimal(item["spent"]) != cost:
            where = f"{group['id']} ({group['metadata']['external_entity_id']}), {item['unit']}, {item['currency']}"
            yield Difference("spent differs from the cost of the events", where, format(cost, "f"), item["spent"])
