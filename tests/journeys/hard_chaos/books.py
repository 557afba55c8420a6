"""The books of a run: trees of groups with HARD limits, and what their events cost beside what the limits promise."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from tests.journeys.product import OperatorClient

CURRENCY = "EUR"
SLUGS = {"acme/chat": "CHAT_COMPLETIONS", "acme/messages": "MESSAGES", "acme/responses": "RESPONSES"}
"""The slugs, and the one dialect that each one's server speaks."""
PRICE = {
    **{"currency": CURRENCY, "per_call": "0.0001", "input_per_million": "3", "cached_input_per_million": "0.3"},
    **{"cache_write_per_million": "3.75", "cache_write_1h_per_million": "6", "output_per_million": "15"},
    **{"service_tiers": {"flex": {"multiplier": "0.5"}, "priority": {"multiplier": "1.5"}}},
    "long_context": {
        **{"above_input_tokens": 128_000, "input_per_million": "6", "cached_input_per_million": "0.6"},
        **{"cache_write_per_million": "7.5", "output_per_million": "22.5"},
    },
    **{"max_input_tokens": 200_000, "max_output_tokens": 4_000},
}
DEAREST_INPUT = Decimal("0.000009")
DEAREST_OUTPUT = Decimal("0.0000225")
PER_CALL = Decimal("0.0001")
"""The most that a token of a short call costs, as an hour's cache write of the tier `priority`; the price per call."""
TOMORROW = PRICE | {"input_per_million": "4", "output_per_million": "20"}


EVER = "EVER"
"""The unit of a balance, which has one window."""


class HardLimit(NamedTuple):
    """A HARD limit, or a balance with all its credits.

    `entities`: whose events it bounds. `payer`: whose calls can use up what is left, if any.
    """

    group_id: str
    entities: tuple[str, ...]
    unit: str
    amount: Decimal
    payer: str | None


@dataclass
class HardBooks:
    """All groups of a run by entity, their HARD limits, and their events."""

    operator: OperatorClient
    began: str
    groups: dict[str, str] = field(default_factory=dict)
    limits: list[HardLimit] = field(default_factory=list)

    async def prepare(self, replicas: Sequence[str]) -> None:
        """Create the slugs with their prices."""
        model = await self.operator.model("odd", replicas[0])
        deployments = f"/v1/models/{model}/deployments"
        (deployment,) = (await self.operator.call("GET", deployments))["items"]
        path = f"{deployments}/{deployment['id']}/replicas"
        await self.operator.call("PUT", path, {"replicas": [*replicas]})
        for slug, dialect in SLUGS.items():
            target = {"provider": "PLATFORM", "model_id": model, "target_model": "odd", "dialects": [dialect]}
            await self.operator.call("POST", "/v1/gateway/endpoints", {"slug": slug, "targets": [target]})
            await self._set_price(slug, "1970-01-01", PRICE)

    async def raise_tomorrows_price(self) -> None:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        for slug in SLUGS:
            await self._set_price(slug, f"{tomorrow:%Y-%m-%d}", TOMORROW)

    async def _set_price(self, slug: str, valid_from: str, price: dict[str, Any]) -> None:
        await self.operator.call("PUT", "/v1/gateway/prices", {"slug": slug, "valid_from": valid_from} | price)

    async def group(self, entity: str, *limits: tuple[str, str, str], **hierarchy: str) -> str:
        """Create a group with these spend limits (enforcement, unit, amount) and return a key of it."""
        spend_limits = [
            {"enforcement": enforcement, "unit": unit, "amount": amount, "currency": CURRENCY}
            for enforcement, unit, amount in limits
        ]
        body = {
            "metadata": {"external_entity_id": entity},
            "models": [{"slug": slug} for slug in SLUGS],
            "hierarchy": hierarchy,
            "spend_limits": spend_limits,
        }
        self.groups[entity] = str((await self.operator.call("POST", "/v1/gateway/groups", body))["id"])
        return await self.operator.key(self.groups[entity])

    async def add_trees(self, number: int) -> dict[str, str]:
        """Create five trees of groups with HARD limits. Return the keys by entity."""
        day, month, root, west, east, mixed, top, low = (
            f"{name}-{number}" for name in ("day", "month", "root", "west", "east", "mixed", "top", "low")
        )
        keys = {
            day: await self.group(day, ("HARD", "DAY", "1.5")),
            month: await self.group(month, ("HARD", "MONTH", "3")),
            root: await self.group(root, ("HARD", "DAY", "5"), ("HARD", "MONTH", "90"), limit_enforcement="CASCADING"),
            mixed: await self.group(mixed, ("HARD", "DAY", "2"), ("SOFT", "MONTH", "1000")),
        }
        root_id = self.groups[root]
        keys[west] = await self.group(west, ("HARD", "DAY", "1.75"), parent_group_id=root_id)
        keys[east] = await self.group(east, parent_group_id=root_id)
        await self.group(top, ("HARD", "DAY", "1"), limit_enforcement="INDEPENDENT")
        keys[low] = await self.group(low, parent_group_id=self.groups[top])
        self.bound(day, (day,), "DAY", "1.5", payer=day)
        self.bound(month, (month,), "MONTH", "3", payer=month)
        self.bound(west, (west,), "DAY", "1.75", payer=None)  # the root may be used up first
        self.bound(root, (root, west, east), "DAY", "5", payer=east)
        self.bound(root, (root, west, east), "MONTH", "90", payer=None)
        self.bound(mixed, (mixed,), "DAY", "2", payer=mixed)
        self.bound(low, (low,), "DAY", "1", payer=low)
        return keys

    def bound(self, group: str, entities: tuple[str, ...], unit: str, amount: str, *, payer: str | None) -> None:
        """Note a limit of a group that exists."""
        self.limits.append(HardLimit(self.groups[group], entities, unit, Decimal(amount), payer))

    async def events(self) -> list[Any]:
        window = {"start_time": self.began, "include": "details"}
        page = await self.operator.call("GET", "/v1/gateway/events", limit=1000, **window)
        items = list(page["items"])
        while page["pagination"]["has_more"]:
            page = await self.operator.call("GET", "/v1/gateway/events", cursor=page["pagination"]["cursor"])
            items += page["items"]
        return items

    async def spend(self, entity: str) -> list[Any]:
        answer = await self.operator.call("GET", f"/v1/gateway/groups/{self.groups[entity]}/spend")
        return list(answer["items"])

    async def unsettled(self) -> list[str]:
        """The differences between what groups have spent and what their events cost, and what is still reserved."""
        differences: list[str] = []
        costs = window_costs(await self.events())
        for limit in self.limits:
            answer = await self.operator.call("GET", f"/v1/gateway/groups/{limit.group_id}/spend")
            for item in answer["items"]:
                if item["unit"] == limit.unit and Decimal(item["amount"]) == limit.amount:
                    due = costs.of(limit, item["reset_at"])
                    if Decimal(item["spent"]) != due or Decimal(item["reserved"]):
                        text = f"spent {item['spent']}, reserved {item['reserved']}, events {due}"
                        differences.append(f"{limit.entities} {limit.unit} {limit.amount}: {text}")
        return differences


@dataclass(frozen=True)
class WindowCosts:
    """The sums of events' costs by entity and window, the window by its first characters: a day's, a month's, none."""

    by_window: dict[tuple[str, str], Decimal]
    unpriced: int

    def of(self, limit: HardLimit, reset_at: str) -> Decimal:
        """The cost in the window that ends at `reset_at`."""
        last_day = datetime.fromisoformat(reset_at) - timedelta(days=1)
        return self._sum(limit, f"{last_day:%Y-%m-%d}"[: _CHARACTERS[limit.unit]])

    def highest(self, limit: HardLimit) -> Decimal:
        """The cost in the window in which it is highest."""
        windows = {window for _, window in self.by_window if len(window) == _CHARACTERS[limit.unit]}
        return max((self._sum(limit, window) for window in windows), default=Decimal(0))

    def _sum(self, limit: HardLimit, window: str) -> Decimal:
        return sum((self.by_window.get((entity, window), Decimal(0)) for entity in limit.entities), Decimal(0))


_CHARACTERS = {"DAY": len("2026-11-29"), "MONTH": len("2026-11"), EVER: 0}


def window_costs(events: Sequence[Any]) -> WindowCosts:
    by_window: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    unpriced = 0
    for event in events:
        if event["cost"] is None:
            unpriced += 1
            continue
        for characters in _CHARACTERS.values():
            key = (event["externalEntityId"], event["timestamp"][:characters])
            by_window[key] += Decimal(event["cost"]["amount"])
    return WindowCosts(dict(by_window), unpriced)


def faults_of_limits(limits: Sequence[HardLimit], costs: WindowCosts) -> list[str]:
    """The limits above which calls were billed: by how much."""
    return [
        f"{limit.entities} were billed {costs.highest(limit)} {CURRENCY} in one {limit.unit}, above {limit.amount}"
        for limit in limits
        if costs.highest(limit) > limit.amount
    ]


def faults_of_events(events: Sequence[Any], answered: Sequence[str]) -> list[str]:
    """Complete answers without an event, and calls with two."""
    counts = Counter(event["requestId"] for event in events)
    faults = [f"{request_id} has {count} events" for request_id, count in counts.items() if count > 1]
    return faults + [
        f"{request_id} was answered whole and has no event" for request_id in answered if not counts[request_id]
    ]
