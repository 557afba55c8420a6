"""The prepaid balances of a run: credits and withdrawals, posted again until they are surely made, and what is left.

All of a reference is known only in the end: control may die before it answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import aiohttp

from tests.journeys.hard_chaos.books import CURRENCY, EVER, HardBooks, HardLimit, WindowCosts

TOP_UP = Decimal("0.25")
WITHDRAWAL = Decimal("-0.1")


@dataclass
class PrepaidBalance:
    """A group's balance. `entities`: who draw from it. `payer`: whose calls can use up what is left, if any.

    `references`: the amount of each credit that was posted, whatever became of it.
    """

    group_id: str
    entities: tuple[str, ...]
    payer: str | None
    references: dict[str, Decimal] = field(default_factory=dict)


@dataclass
class Prepaid:
    """All balances of a run."""

    books: HardBooks
    balances: list[PrepaidBalance] = field(default_factory=list)

    async def add_trees(self, number: int) -> dict[str, str]:
        """Create three trees of groups with balances. Return the keys by entity."""
        books = self.books
        paid, house, guest, own, firm, desk, both = (
            f"{name}-{number}" for name in ("paid", "house", "guest", "own", "firm", "desk", "both")
        )
        await books.group(paid)
        await books.group(house, limit_enforcement="CASCADING")
        for child in (guest, own):
            await books.group(child, parent_group_id=books.groups[house])
        await books.group(firm, limit_enforcement="INDEPENDENT")
        await books.group(desk, parent_group_id=books.groups[firm])
        await books.group(both, ("HARD", "DAY", "1.25"))
        await self._open(paid, (paid,), "1.5", paid)
        await self._open(house, (house, guest), "2", guest)
        await self._open(own, (own,), "0.75", own)
        await self._open(firm, (firm, desk), "1", desk)
        await self._open(both, (both,), "1", None)
        books.bound(both, (both,), "DAY", "1.25", payer=None)
        # The keys last: who knows one knows the balance, too.
        return {entity: await books.operator.key(books.groups[entity]) for entity in (paid, guest, own, desk, both)}

    async def _open(self, group: str, entities: tuple[str, ...], amount: str, payer: str | None) -> None:
        balance = PrepaidBalance(self.books.groups[group], entities, payer, {"first": Decimal(amount)})
        assert await self._post(balance, "first") == 200
        self.balances.append(balance)

    async def change(self, balance: PrepaidBalance, amount: Decimal) -> str:
        """Post a credit once, or a withdrawal; return what became of it. Control may be dead."""
        reference = f"change-{len(balance.references)}"
        balance.references[reference] = amount
        try:
            return str(await self._post(balance, reference))
        except (aiohttp.ClientError, TimeoutError):
            return "cut"

    async def limits(self) -> list[HardLimit]:
        """The balances as limits: with the sum of the credits and withdrawals that are made by now."""
        return [
            HardLimit(one.group_id, one.entities, EVER, await self._credited(one), one.payer) for one in self.balances
        ]

    async def _credited(self, balance: PrepaidBalance) -> Decimal:
        """Post everything once more, which changes what is made already in nothing, and add it up.

        A withdrawal for which there is no credit is refused again.
        """
        credited = Decimal(0)
        for reference, amount in balance.references.items():
            status = await self._post(balance, reference)
            while status == 503:
                status = await self._post(balance, reference)
            assert status in ((200,) if amount > 0 else (200, 409)), (balance, reference, status)
            credited += amount if status == 200 else 0
        return credited

    async def _post(self, balance: PrepaidBalance, reference: str) -> int:
        body = {"amount": str(balance.references[reference]), "currency": CURRENCY, "reference": reference}
        path = f"/v1/gateway/groups/{balance.group_id}/balance/credits"
        status, _ = await self.books.operator.ask("POST", path, body)
        return status

    async def unsettled(self, limits: Sequence[HardLimit], costs: WindowCosts) -> list[str]:
        """The differences between each balance, its entries, and what the events cost, and what is still reserved."""
        differences: list[str] = []
        for limit in limits:
            path = f"/v1/gateway/groups/{limit.group_id}/balance"
            answer = await self.books.operator.call("GET", path)
            due = costs.highest(limit)
            entries = await self._entries(path + "/entries")
            drawn = -sum((Decimal(one["amount"]) for one in entries if one["type"] == "DRAW"), Decimal(0))
            figures = [Decimal(answer[name]) for name in ("credited", "spent", "reserved", "available")]
            if figures != [limit.amount, due, Decimal(0), limit.amount - due] or drawn != due:
                text = f"{answer}, entries {drawn}, events {due}, credits {limit.amount}"
                differences.append(f"balance of {limit.entities}: {text}")
        return differences

    async def _entries(self, path: str) -> list[Any]:
        page = await self.books.operator.call("GET", path, limit=1000)
        items = list(page["items"])
        while page["pagination"]["has_more"]:
            page = await self.books.operator.call("GET", path, cursor=page["pagination"]["cursor"])
            items += page["items"]
        return items
