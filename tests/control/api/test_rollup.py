"""Reports with the sums of the groups below, in the order of a sum, and with totals: equal to sums over the events.

See docs/reference/usage-reports.md#roll-up.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from control.records.times import time_text
from control.resources.billing import report_reader
from policy.billing import REPORTED, BillingEvent, Tokens
from policy.prices import DAY_MS, date_text
from tests.control.api.test_cost_sums import DAYS_S, stored
from tests.control.api.test_hourly_sums import maker
from tests.control.billing import HOLDBACK_S, event
from tests.control.plane import ControlPlane, Json
from tests.control.reports import PATH, price, report

Total = tuple[int, int, int, dict[str, Decimal]]
"""Calls, input, unpriced calls and cost."""


@dataclass
class Tree:
    """Groups by path, calls of theirs, and their prices: `acme/chat` in EUR, `acme/embed` in USD, `acme/free` none."""

    first_ms: int
    entities: dict[str, str]
    calls: list[BillingEvent]

    def path(self, entity: str) -> str:
        return next(path for path, name in self.entities.items() if name == entity)


async def tree_of(plane: ControlPlane, first_ms: int) -> Tree:
    """Two trees. `c` is deleted and made anew below another group; `idle` and `top-2` have no calls of their own."""
    await price(plane, "acme/chat", first_ms)
    await price(plane, "acme/embed", first_ms, currency="USD")
    entities: dict[str, str] = {}
    ids: dict[str, str] = {}

    async def group(name: str, parent: str | None) -> None:
        above = {} if parent is None else {"parent": ids[parent]}
        ids[name] = (await plane.group(name, **above))["id"]
        entities[(_path(entities, ids[parent]) if parent else "") + ids[name] + "/"] = name

    for name, parent in (("top", None), ("a", "top"), ("b", "a"), ("c", "a"), ("idle", "top"), ("d", "idle")):
        await group(name, parent)
    calls = calls_of(plane.workspace_id, first_ms, entities, 60, 1, silent={"idle"})
    (await plane.delete(f"/v1/gateway/groups/{ids['c']}")).ok()
    for name, parent in (("top-2", None), ("c", "top-2")):
        await group(name, parent)
    later = {path: name for path, name in entities.items() if ids[name] in path and path.endswith(f"{ids[name]}/")}
    calls += calls_of(plane.workspace_id, first_ms, later, 60, 2, silent={"idle", "top-2"})
    await stored(plane.store, calls)
    return Tree(first_ms, entities, calls)


def _path(entities: dict[str, str], id: str) -> str:
    return next(path for path in entities if path.endswith(f"{id}/"))


def calls_of(
    workspace_id: str, first_ms: int, entities: dict[str, str], count: int, seed: int, silent: set[str]
) -> list[BillingEvent]:
    chance = random.Random(seed)
    paths = [path for path, name in entities.items() if name not in silent]
    calls = []
    for number in range(count):
        path = chance.choice(paths)
        calls.append(
            event(
                1000 * seed + number,
                first_ms + chance.randrange(2 * DAY_MS),
                workspace_id=workspace_id,
                group_id=path.split("/")[-2],
                group_path=path,
                external_entity_id=entities[path],
                model_slug=chance.choice(("acme/chat", "acme/embed", "acme/free")),
                tokens=Tokens(input=chance.randrange(10**6), output=chance.randrange(10)),
                source=REPORTED,
            )
        )
    return calls


def total_of(calls: Iterable[BillingEvent]) -> Total:
    cost: dict[str, Decimal] = defaultdict(Decimal)
    listed = list(calls)
    for call in listed:
        currency = {"acme/chat": "EUR", "acme/embed": "USD"}.get(call.model_slug)
        if currency is not None:
            uncached = call.tokens.input - call.tokens.cached_input
            amount = 3 * uncached + Decimal("0.3") * call.tokens.cached_input + 15 * call.tokens.output
            cost[currency] += amount / 1_000_000
    unpriced = sum(call.model_slug == "acme/free" for call in listed)
    return len(listed), sum(call.tokens.input for call in listed), unpriced, dict(cost)


def shown(item: Json) -> Total:
    cost = {currency: Decimal(amount) for currency, amount in (item["cost"] or {}).items()}
    return item["calls"], item["input_tokens"], item["unpriced_calls"], cost


async def check(plane: ControlPlane, tree: Tree, keep: Callable[[BillingEvent], bool], **more: Any) -> None:
    """Compare the roll-up of all groups with the events, page by page."""
    calls = [call for call in tree.calls if keep(call)]
    items = await report(plane, tree.first_ms, "entity", rollup="true", lines="true", limit=3, **more)
    expected = {
        (name, path.split("/")[-2]): (
            total_of(call for call in calls if call.group_path.startswith(path)),
            total_of(call for call in calls if call.group_path == path),
        )
        for path, name in tree.entities.items()
        if any(call.group_path.startswith(path) for call in calls)
    }
    by_name = {(item["external_entity_id"], item["group_id"]): (shown(item), shown(item["own"])) for item in items}
    assert list(by_name.items()) == sorted(expected.items())
    for item in items:
        amounts = [Decimal(line["amount"]) for line in item["lines"] if line["amount"] is not None]
        assert sum(amounts) == sum(map(Decimal, (item["cost"] or {}).values()))
        assert sum(line["calls"] for line in item["lines"]) == item["calls"]


@pytest.mark.parametrize("final_days", [10, 4.3, 0])
async def test_a_group_has_its_own_calls_and_those_of_all_below_it(
    plane: ControlPlane, first_day_ms: int, final_days: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted groups too; a later group with the same external id has an item of its own."""
    monkeypatch.setattr(report_reader, "_LISTED_AT_ONCE", 2)
    tree = await tree_of(plane, first_day_ms)
    await maker(plane.store, final_days * DAYS_S + HOLDBACK_S).make()
    await check(plane, tree, lambda call: True)
    await check(plane, tree, lambda call: call.model_slug == "acme/embed", model_slug="acme/embed")
    await check_one(plane, tree)


async def check_one(plane: ControlPlane, tree: Tree) -> None:
    """Compare the roll-up of one group with the events: in all, by day and by slug."""
    path = tree.path("a")
    below = [call for call in tree.calls if call.group_path.startswith(path)]
    names: dict[str, Callable[[BillingEvent], str]] = {
        "entity": lambda call: "a",
        "day": lambda call: date_text(call.ended_at_ms),
        "slug": lambda call: call.model_slug,
    }
    for by, name_of in names.items():
        items = await report(plane, tree.first_ms, by, rollup="true", external_entity_id="a", limit=2)
        member = "external_entity_id" if by == "entity" else by
        assert [item[member] for item in items] == sorted({name_of(call) for call in below})
        for item in items:
            theirs = [call for call in below if name_of(call) == item[member]]
            assert shown(item) == total_of(theirs)
            assert shown(item["own"]) == total_of(call for call in theirs if call.group_path == path)
    both = await report(plane, tree.first_ms, "entity", rollup="true", external_entity_id="c")
    assert len({item["group_id"] for item in both}) == 2


async def test_a_group_that_is_deleted_with_its_parents_stays_in_their_sums(
    plane: ControlPlane, first_day_ms: int
) -> None:
    tree = await tree_of(plane, first_day_ms)
    (await plane.delete(f"/v1/gateway/groups/{tree.path('top').strip('/')}")).ok()
    await maker(plane.store).make()
    await check(plane, tree, lambda call: True)
    await check_one(plane, tree)


ORDERS: Sequence[tuple[str, dict[str, str], Callable[[Json], Any]]] = [
    ("calls", {}, lambda item: item["calls"]),
    ("input_tokens", {}, lambda item: item["input_tokens"]),
    ("server_tool_calls", {}, lambda item: 0),
    ("unpriced_calls", {}, lambda item: item["unpriced_calls"]),
    ("cost", {"currency": "EUR"}, lambda item: Decimal((item["cost"] or {}).get("EUR", 0))),
    ("cost", {"currency": "USD"}, lambda item: Decimal((item["cost"] or {}).get("USD", 0))),
]


@pytest.mark.parametrize("by", ["entity", "key", "slug", "day"])
async def test_items_are_in_the_order_of_a_sum(plane: ControlPlane, first_day_ms: int, by: str) -> None:
    """Ties are in the order of names, whatever the direction."""
    await tree_of(plane, first_day_ms)
    await maker(plane.store, 4.5 * DAYS_S).make()
    plain = await report(plane, first_day_ms, by)
    for sum_name, more, value in ORDERS:
        for direction, sign in (("desc", -1), ("asc", 1)):
            items = await report(plane, first_day_ms, by, order_by=sum_name, order=direction, limit=2, **more)
            assert items == sorted(plain, key=lambda item: sign * value(item))


async def test_a_roll_up_is_in_the_order_of_a_sum(plane: ControlPlane, first_day_ms: int) -> None:
    await tree_of(plane, first_day_ms)
    plain = await report(plane, first_day_ms, "entity", rollup="true")
    items = await report(plane, first_day_ms, "entity", rollup="true", order_by="cost", currency="EUR", limit=2)
    assert items == sorted(plain, key=lambda item: -Decimal((item["cost"] or {}).get("EUR", 0)))
    assert items[0]["external_entity_id"] == "top"


@pytest.mark.parametrize("by", ["entity", "key", "slug", "day"])
@pytest.mark.parametrize("more", [{}, {"order_by": "calls"}, {"model_slug": "acme/chat"}])
async def test_the_first_page_has_the_totals_of_all_items(
    plane: ControlPlane, first_day_ms: int, by: str, more: dict[str, str]
) -> None:
    tree = await tree_of(plane, first_day_ms)
    calls = [call for call in tree.calls if more.get("model_slug") in (None, call.model_slug)]
    for limit in (1, 1000):
        params = {"start": time_text(first_day_ms), "group_by": by, "limit": limit, **more}
        first = (await plane.get(PATH, params=params)).ok()
        assert shown(first["totals"]) == total_of(calls)
        if (cursor := first["pagination"]["cursor"]) is not None:
            assert "totals" not in (await plane.get(PATH, params={"cursor": cursor})).ok()


async def test_totals_of_a_roll_up_count_each_call_once(plane: ControlPlane, first_day_ms: int) -> None:
    tree = await tree_of(plane, first_day_ms)
    params = {"start": time_text(first_day_ms), "group_by": "entity", "rollup": "true"}
    assert shown((await plane.get(PATH, params=params)).ok()["totals"]) == total_of(tree.calls)
    of_a = (await plane.get(PATH, params=params | {"external_entity_id": "a"})).ok()
    assert shown(of_a["totals"]) == total_of(call for call in tree.calls if call.group_path.startswith(tree.path("a")))


REFUSED = [
    ({"group_by": "key", "rollup": "true", "external_entity_id": "a"}, "group_by"),
    ({"group_by": "day", "rollup": "true"}, "external_entity_id"),
    ({"group_by": "slug", "rollup": "true"}, "external_entity_id"),
    ({"group_by": "entity", "order": "asc"}, "order"),
    ({"group_by": "entity", "currency": "EUR"}, "currency"),
    ({"group_by": "entity", "order_by": "calls", "currency": "EUR"}, "currency"),
    ({"group_by": "entity", "order_by": "cost"}, "currency"),
    ({"group_by": "entity", "order_by": "cost", "rollup": "true"}, "currency"),
    ({"group_by": "entity", "order_by": "cost", "currency": "euro"}, "currency"),
    ({"group_by": "entity", "order_by": "names"}, "order_by"),
]


@pytest.mark.parametrize(("params", "field"), REFUSED)
async def test_an_order_or_a_roll_up_that_is_not_possible_is_refused(
    plane: ControlPlane, first_day_ms: int, params: dict[str, str], field: str
) -> None:
    await tree_of(plane, first_day_ms)
    answer = await plane.get(PATH, params={"start": time_text(first_day_ms), **params})
    assert answer.refused(400, "INVALID_REQUEST")["details"][0]["field"] == field


async def test_the_order_by_cost_takes_the_only_currency(plane: ControlPlane, first_day_ms: int) -> None:
    await tree_of(plane, first_day_ms)
    items = await report(plane, first_day_ms, "entity", order_by="cost", model_slug="acme/chat", limit=2)
    costs = [Decimal(item["cost"]["EUR"]) for item in items]
    assert costs == sorted(costs, reverse=True)


async def test_prices_that_change_between_ordered_pages_are_a_conflict(plane: ControlPlane, first_day_ms: int) -> None:
    await tree_of(plane, first_day_ms)
    params = {"start": time_text(first_day_ms), "group_by": "entity", "rollup": "true", "limit": 1}
    cursor = (await plane.get(PATH, params=params)).ok()["pagination"]["cursor"]
    await price(plane, "acme/chat", first_day_ms, input_per_million="4")
    assert (await plane.get(PATH, params={"cursor": cursor})).status == 409
