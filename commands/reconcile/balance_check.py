"""Compares what the counters say that calls drew from prepaid balances with the entries of the ledger.

See docs/reference/reconciling.md#spend.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from commands.connection import Client
from commands.errors import RefusedError
from commands.lists import items_of
from commands.reconcile.journal_check import Difference

_GROUPS = "/v1/gateway/groups"
_NOT_FOUND = 404


class _Look(NamedTuple):
    """The figures of a balance: first those of the counters, then the sums of the entries."""

    currency: str
    credited: Decimal
    spent: Decimal
    credits: Decimal
    draws: Decimal


@dataclass(slots=True)
class BalanceCheck:
    """Compares the balances of groups. `compared`: how many have one.

    `looks`, `pause_s`: how often one whose figures differ is read again, and the time between.
    """

    client: Client
    looks: int
    pause_s: float
    compared: int = 0

    async def differences(self, group: Mapping[str, Any]) -> list[Difference]:
        """The differences of the group's own balance; none without one. Raises ManagementError."""
        first = look = await self._look(group["id"])
        if first is None:
            return []
        self.compared += 1
        for _ in range(self.looks - 1):
            if look is None or _is_equal(look):
                return []
            await asyncio.sleep(self.pause_s)
            look = await self._look(group["id"])
        if look is None:  # it was deleted
            return []
        return [*_differences(group, first, look)]

    async def _look(self, group_id: str) -> _Look | None:
        path = f"{_GROUPS}/{group_id}/balance"
        try:
            balance = await self.client.call("GET", path)
            sums = {"CREDIT": Decimal(0), "DRAW": Decimal(0)}
            async for entry in items_of(self.client, f"{path}/entries"):
                sums[entry["type"]] += Decimal(entry["amount"])
        except RefusedError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return _Look(
            currency=balance["currency"],
            credited=Decimal(balance["credited"]),
            spent=Decimal(balance["spent"]),
            credits=sums["CREDIT"],
            draws=-sums["DRAW"],
        )


def _is_equal(look: _Look) -> bool:
    return (look.credited, look.spent) == (look.credits, look.draws)


def _differences(group: Mapping[str, Any], first: _Look, last: _Look) -> Iterator[Difference]:
    where = f"{group['id']} ({group['metadata']['external_entity_id']}), balance, {last.currency}"
    # Calls that go on are entries at once, and counted some seconds later.
    if not first.draws <= last.spent <= last.draws:
        what = "spent differs from what the entries say that calls drew"
        yield Difference(what, where, format(last.draws, "f"), format(last.spent, "f"))
    if last.credited != last.credits:
        what = "credited differs from the sum of the credits"
        yield Difference(what, where, format(last.credits, "f"), format(last.credited, "f"))
