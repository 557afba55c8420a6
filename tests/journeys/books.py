"""The books of a run under faults: what was billed and what the counters counted, as an operator reads them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.journeys.billing_faults import (
    Death,
    Requests,
    faults_of_events,
    tokens_redis_may_lose,
    usage_by_entity,
)
from tests.journeys.callers import CallRecord
from tests.journeys.product import OperatorClient, models

SLUG = "acme/chaos"
PLENTY = 1_000_000_000
TIGHT_PER_MINUTE = 100
PRICE = {
    **{"slug": SLUG, "valid_from": "1970-01-01", "currency": "EUR", "per_call": "0.000000000001"},
    **{"input_per_million": "0.7", "cached_input_per_million": "0.03", "output_per_million": "2.9"},
}
SPEND_LIMITS = [{"unit": unit, "amount": str(PLENTY), "currency": "EUR"} for unit in ("DAY", "MONTH")]


@dataclass(frozen=True, slots=True)
class Books:
    """The events and the day's usage of one tree of groups."""

    operator: OperatorClient
    groups: dict[str, str]
    """Group ids by external entity id."""
    began: str

    async def items(self) -> list[Any]:
        """All billing events."""
        window = {"start_time": self.began, "include": "details"}
        page = await self.operator.call("GET", "/v1/gateway/events", limit=1000, **window)
        items = list(page["items"])
        while page["pagination"]["has_more"]:
            page = await self.operator.call("GET", "/v1/gateway/events", cursor=page["pagination"]["cursor"])
            items += page["items"]
        return items

    async def usage(self) -> dict[str, int]:
        """Tokens of the running day by entity."""
        return await self._used("TOKEN", self.groups)

    async def spent(self) -> dict[str, Decimal]:
        """The amounts that are spent in the running month, by entity."""
        spent: dict[str, Decimal] = {}
        for entity, group_id in self.groups.items():
            items = (await self.operator.call("GET", f"/v1/gateway/groups/{group_id}/spend"))["items"]
            own = [one for one in items if (one["source_group"], one["unit"]) == (group_id, "MONTH")]
            (spent[entity],) = (Decimal(one["spent"]) for one in own)
        return spent

    async def requests(self) -> dict[str, int]:
        """Requests of the running day by entity; only the callers' own groups limit them."""
        return await self._used("REQUEST", {entity: id for entity, id in self.groups.items() if entity != "root"})

    async def _used(self, type: str, groups: dict[str, str]) -> dict[str, int]:
        usage: dict[str, int] = {}
        for entity, group_id in groups.items():
            items = (await self.operator.call("GET", f"/v1/gateway/groups/{group_id}/usage"))["items"]
            (usage[entity],) = (one["current_usage"] for one in items if (one["type"], one["unit"]) == (type, "DAY"))
        return usage


async def create_groups(operator: OperatorClient, upstream_url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Create a parent and three children, one of which is often refused. Return group ids and keys by entity."""
    await operator.endpoint(SLUG, await operator.model("chaos", upstream_url))
    await operator.call("PUT", "/v1/gateway/prices", PRICE)
    daily = [("TOKEN", "DAY", PLENTY), ("REQUEST", "DAY", PLENTY), ("TOKEN", "MINUTE", PLENTY)]
    root = await operator.group("root", models(SLUG, ("TOKEN", "DAY", 2 * PLENTY)), limit_enforcement="CASCADING")
    limits = {"even": daily, "odd": daily, "tight": [*daily, ("REQUEST", "MINUTE", TIGHT_PER_MINUTE)]}
    groups = {
        name: await operator.group(name, models(SLUG, *own), parent_group_id=root) for name, own in limits.items()
    }
    for group in (root, *groups.values()):
        await operator.call("PATCH", f"/v1/gateway/groups/{group}", {"spend_limits": SPEND_LIMITS})
    return groups | {"root": root}, {name: await operator.key(group) for name, group in groups.items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Callers' records beside the books: `faults`, one sentence each, and a summary."""

    faults: list[str]
    summary: str

    @classmethod
    async def of(
        cls,
        books: Books,
        records: Sequence[CallRecord],
        deaths: Sequence[Death] = (),
        worker_deaths: Sequence[float] = (),
    ) -> "Comparison":
        """`deaths`: of Redis, which may have lost what they name. `worker_deaths`: when workers were killed."""
        items = await books.items()
        due = usage_by_entity(items)
        due["root"] = sum(due.values())
        slack = tokens_redis_may_lose(items, records, deaths) if deaths else 0
        usage = await books.usage()
        counted = await books.requests()
        due_requests = {entity: Requests.of(entity, records, items, worker_deaths) for entity in counted}
        requests = _faults_of_requests(due_requests, counted, may_lack=bool(deaths))
        in_events = faults_of_events(records, items)
        spend = _faults_of_spend(items, await books.spent())
        summary = f"{len(items)} events, {len(in_events)} faults in them; {_usage_text(due, usage, slack)}"
        return cls(in_events + _faults_of_usage(due, usage, slack) + requests + spend, summary)


def _faults_of_requests(due: dict[str, Requests], usage: dict[str, int], *, may_lack: bool) -> list[str]:
    """Faults in the counted requests: only dispatched calls count, and calls under way when their worker died."""
    return [
        f"{entity} made {due[entity]} requests, its usage says {requests}"
        for entity, requests in usage.items()
        if requests > due[entity].maximum or (requests < due[entity].minimum and not may_lack)
    ]


def _faults_of_usage(due: dict[str, int], usage: dict[str, int], slack: int) -> list[str]:
    """Faults in the counted tokens. They never exceed the billed ones; they may lack only what Redis may have lost."""
    return [
        f"{entity} was billed {due.get(entity, 0)} tokens, its usage says {tokens} (may lack {slack})"
        for entity, tokens in usage.items()
        if not due.get(entity, 0) - slack <= tokens <= due.get(entity, 0)
    ]


def _faults_of_spend(items: Sequence[Any], spent: dict[str, Decimal]) -> list[str]:
    """Faults in what is spent: it is the cost of the events, to the last digit, whatever Redis has lost."""
    due = defaultdict[str, Decimal](Decimal)
    for item in items:
        due[item["externalEntityId"]] += Decimal(item["cost"]["amount"])
    due["root"] = sum(due.values(), Decimal(0))
    return [
        f"{entity} was billed {due[entity]} EUR, and {amount} EUR are spent of its limit"
        for entity, amount in spent.items()
        if amount != due[entity]
    ]


def _usage_text(due: dict[str, int], usage: dict[str, int], slack: int) -> str:
    lacking = sum(due.get(entity, 0) - tokens for entity, tokens in usage.items())
    return f"usage lacks {lacking} of {due['root']} tokens; Redis may have lost {slack}"
