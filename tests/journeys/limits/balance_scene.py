"""A group with a prepaid balance, as an operator sees it: credits, the balance, its entries, and what calls cost."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import aiohttp

from tests.journeys.conftest import Stage
from tests.journeys.limits.hard_scene import DIALECTS, HardScene

GROUPS = "/v1/gateway/groups"


class BalanceFigures(NamedTuple):
    """The members of a balance, all in its currency."""

    credited: Decimal
    spent: Decimal
    reserved: Decimal
    available: Decimal


@dataclass
class BalanceScene(HardScene):
    """A stage with a slug for each dialect, and a group whose first credit is `amount`."""

    refusal: int = 402

    async def prepare(self, **price: Any) -> None:
        await self.make_slugs(**price)
        self.group_id = await self.member("prepaid")
        await self.credit(self.amount, "first")
        # The key last: a worker that knows it knows the balance, too.
        self.key = await self.stage.operator.key(self.group_id)
        await self.is_admitted()

    async def member(self, name: str, *limits: dict[str, str], **hierarchy: str) -> str:
        """Create a group, with these spend limits; return its id."""
        body = {
            "metadata": {"external_entity_id": f"{self.stage.name}-{name}"},
            "models": [{"slug": self.slug(path)} for path in DIALECTS],
            "spend_limits": list(limits),
            "hierarchy": hierarchy,
        }
        return str((await self.stage.operator.call("POST", GROUPS, body))["id"])

    async def try_credit(
        self, amount: Decimal | str, reference: str, group_id: str = "", **more: Any
    ) -> tuple[int, Any]:
        """Make a credit, or a withdrawal as soon as it can be decided on; return the status and the answer."""
        path = f"{GROUPS}/{group_id or self.group_id}/balance/credits"
        body = {"amount": f"{Decimal(amount):f}", "currency": "EUR", "reference": reference} | more
        decision: Any = (503, None)

        async def is_decided() -> bool:
            nonlocal decision
            decision = await self.stage.operator.ask("POST", path, body)
            return bool(decision[0] != 503)

        await self.stage.until(is_decided, "a credit is decided on")
        return decision[0], decision[1]

    async def credit(self, amount: Decimal | str, reference: str, group_id: str = "") -> Any:
        """Make a credit or a withdrawal; return the answer."""
        status, answer = await self.try_credit(amount, reference, group_id)
        assert status == 200, (status, answer)
        return answer

    async def balance(self, group_id: str = "") -> BalanceFigures | None:
        """The balance; None while it is not counted, or control is away."""
        try:
            status, answer = await self.stage.operator.ask("GET", f"{GROUPS}/{group_id or self.group_id}/balance")
        except aiohttp.ClientError:
            return None
        assert status in (200, 503), (status, answer)
        if status != 200:
            return None
        assert answer["currency"] == "EUR"
        figures = BalanceFigures(*(Decimal(answer[name]) for name in BalanceFigures._fields))
        assert figures.available == figures.credited - figures.spent - figures.reserved, answer
        return figures

    async def entries(self, group_id: str = "") -> list[Any]:
        path = f"{GROUPS}/{group_id or self.group_id}/balance/entries"
        page = await self.stage.operator.call("GET", path, limit=2)
        items = list(page["items"])
        while page["pagination"]["has_more"]:
            page = await self.stage.operator.call("GET", path, cursor=page["pagination"]["cursor"])
            items += page["items"]
        return items

    async def events(self, *names: str) -> list[Any]:
        entities = [f"{self.stage.name}-{name}" for name in names or ("prepaid",)]
        query: dict[str, Any] = {"start_time": self.stage.began, "external_entity_ids": entities, "include": "details"}
        page = await self.stage.operator.call("GET", "/v1/gateway/events", limit=1000, **query)
        assert not page["pagination"]["has_more"]
        return list(page["items"])

    async def settled_balance(self, *names: str, group_id: str = "") -> BalanceFigures:
        """The balance, once nothing is reserved, and it and its entries say what the events of these groups cost."""
        now: Any = None

        async def look() -> bool:
            nonlocal now
            figures = await self.balance(group_id)
            if figures is None:
                return False
            entries = await self.entries(group_id)
            paid = [event for event in await self.events(*names) if Decimal(event["cost"]["amount"])]
            draws = [entry for entry in entries if entry["type"] == "DRAW"]
            costs = sum((Decimal(event["cost"]["amount"]) for event in paid), Decimal(0))
            now = (figures, costs, draws, len(paid))
            return (
                figures.reserved == 0
                and figures.spent == costs == -total_of(draws)
                and figures.available == total_of(entries)
                and sum(draw["calls"] for draw in draws) == len(paid)
            )

        try:
            await self.stage.until(look, "the balance, its entries and the events agree")
        except AssertionError as error:
            raise AssertionError(f"balance, costs, draws, events: {now}") from error
        figures: BalanceFigures = now[0]
        return figures


def total_of(entries: list[Any]) -> Decimal:
    """The sum of these entries of a balance."""
    return sum((Decimal(entry["amount"]) for entry in entries), Decimal(0))


async def balance_scene_of(stage: Stage, amount: str, **price: Any) -> BalanceScene:
    scene = BalanceScene(stage, Decimal(amount))
    await scene.prepare(**price)
    return scene
