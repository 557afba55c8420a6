"""Sums of every kind of token: equal to the costs of the events, one by one, to the last digit, on either database.

See docs/reference/usage-reports.md#hourly-sums.
"""

import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select, text, update

from control.edges.sql.billing.long_context import MAX_BOUNDS
from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.billing.tables import FIGURES, hourly_sum_progress, hourly_sums
from control.edges.sql.store import Store
from control.edges.sql.tables import events
from policy.billing import COUNTED, REPORTED, BillingEvent, Details, Tokens
from policy.prices import CONTEXT_BOUNDS, DAY_MS, CostFigures, Price, cost_figures, date_text
from tests.control.api.test_hourly_sums import HOUR_MS, maker, sums
from tests.control.billing import HOLDBACK_S, event, ingest_and_reader
from tests.control.plane import ControlPlane, Json
from tests.control.reports import GROUPINGS, PRICES, forget_events, price, report

DAYS_S = 86_400.0
_KINDS = {
    "cache_write_per_million": "3.75",
    "cache_write_1h_per_million": "6",
    "audio_input_per_million": "40",
    "image_input_per_million": "10.000000000001",
    "audio_output_per_million": "80",
    "image_output_per_million": "60",
    "per_call": "0.001",
    "per_server_tool_call": "0.01",
}
_LONG = {"input_per_million": "6", "cached_input_per_million": "0.6", "output_per_million": "22.5"}
_TIERS = {"flex": {"multiplier": "0.5"}, "priority": {"multiplier": "1.7501"}}


def calls_of(seed: int, first_ms: int, count: int, workspace_id: str) -> list[BillingEvent]:
    """Calls of every kind within two days, some of them with parts that are larger than what they are part of."""
    chance = random.Random(seed)
    figures = (0, 0, 0, 1, 7, 499, 500, 501, 60_000)
    return [
        event(
            seed * 1000 + number,
            first_ms + chance.randrange(2 * DAY_MS),
            workspace_id=workspace_id,
            model_slug=chance.choice(("acme/chat", "acme/free")),
            external_entity_id=f"c-{chance.randrange(3)}",
            api_key_prefix=f"tg_{number:04d}",
            status=chance.choice((200, 200, 200, 429)),
            tokens=Tokens._make(chance.choices((0, 9, 500, 501, 130_000), k=3)),
            details=Details._make((*chance.choices(figures, k=8), chance.choice(("", "flex", "priority", "a b")))),
            source=chance.choice((None, REPORTED, COUNTED)),
            is_count=chance.random() < 0.1,
        )
        for number in range(count)
    ]


async def stored(store: Store, calls: Sequence[BillingEvent]) -> None:
    ingest, _ = ingest_and_reader(store, 1e9)
    await ingest.commit(calls)


async def test_a_sum_of_a_call_has_its_cost_figures(plane: ControlPlane, first_day_ms: int) -> None:
    """Each call has a key of its own, and so a sum of its own."""
    calls = calls_of(1, first_day_ms, 400, plane.workspace_id)
    await stored(plane.store, calls)
    await maker(plane.store).make()
    by_key = {one["api_key_prefix"]: one for one in await sums(plane.store)}
    for call in calls:
        one = by_key[call.api_key_prefix]
        figures = cost_figures(call.tokens, call.details, is_charged=call.is_charged)
        names = [f"{name}_tokens" if f"{name}_tokens" in FIGURES else name for name in CostFigures._fields[1:]]
        assert (one["per_call_charges"], *(one[name] for name in names)) == figures, call
        assert (one["reasoning_tokens"], one["service_tier"]) == (call.details.reasoning, call.details.service_tier)


def prices_of(first_ms: int) -> list[Json]:
    """Prices with tiers and long context, which change, and so do their bounds; none for `acme/free` at first."""
    bounds = {0: 500, 1: 8}
    return [
        {
            "slug": slug,
            "valid_from_ms": first_ms + day * DAY_MS,
            "currency": "EUR" if slug == "acme/chat" else "USD",
            **_KINDS,
            "service_tiers": _TIERS,
            "long_context": {"above_input_tokens": bounds[day], **_LONG},
        }
        for slug, day in (("acme/chat", 0), ("acme/chat", 1), ("acme/free", 1))
    ]


async def set_prices(plane: ControlPlane, prices: Iterable[Json]) -> list[Price]:
    for one in prices:
        await price(plane, **one)
    async with plane.store.read() as conn:
        return list(await list_prices(conn, plane.workspace_id, None, None, 1000))


def cost_of(call: BillingEvent, prices: Sequence[Price]) -> tuple[str, Decimal] | None:
    """The cost of one call by itself."""
    valid = [one for one in prices if one.slug == call.model_slug and one.valid_from_ms <= call.ended_at_ms]
    if not valid:
        return None
    one = max(valid, key=lambda price: price.valid_from_ms)
    figures = cost_figures(call.tokens, call.details, is_charged=call.is_charged)
    return one.currency, one.cost(figures, call.details.service_tier, is_long=one.is_long(call.tokens.input))


def money_of(calls: Iterable[BillingEvent], prices: Sequence[Price]) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = {}
    for call in calls:
        if (cost := cost_of(call, prices)) is not None:
            totals[cost[0]] = totals.get(cost[0], Decimal(0)) + cost[1]
    return totals


def is_of(call: BillingEvent, item: Json) -> bool:
    """Return whether the call is one of the item's."""
    names = {
        "day": date_text(call.ended_at_ms),
        "slug": call.model_slug,
        "external_entity_id": call.external_entity_id,
        "api_key_prefix": call.api_key_prefix,
    }
    return all(names[name] == item[name] for name in names if name in item)


async def check_costs(plane: ControlPlane, calls: Sequence[BillingEvent], start_ms: int, prices: list[Price]) -> None:
    """Compare each item and each line of all reports with the events that it is of."""
    for by in GROUPINGS:
        items = await report(plane, start_ms, by, lines="true", limit=70)
        assert sum(item["calls"] for item in items) == len(calls)
        for item in items:
            theirs = [call for call in calls if is_of(call, item)]
            cost = {currency: Decimal(amount) for currency, amount in (item["cost"] or {}).items()}
            assert cost == money_of(theirs, prices)
            assert item["unpriced_calls"] == sum(cost_of(call, prices) is None for call in theirs)
            amounts = [line["amount"] for line in item["lines"] if line["amount"] is not None]
            assert sum(map(Decimal, amounts)) == sum(cost.values())
            assert item.get("reasoning_tokens", 0) == sum(call.details.reasoning for call in theirs)


async def test_each_amount_of_a_report_is_the_sum_of_its_events_costs(plane: ControlPlane, first_day_ms: int) -> None:
    """However far sums are made, and where a window begins within an hour."""
    prices = await set_prices(plane, prices_of(first_day_ms))
    calls = calls_of(2, first_day_ms, 150, plane.workspace_id)
    await stored(plane.store, calls)
    for final_days in (4.5, 0):
        await maker(plane.store, final_days * DAYS_S + HOLDBACK_S).make()
        for start_ms in (first_day_ms, first_day_ms + 5 * HOUR_MS + HOUR_MS // 2):
            await check_costs(plane, [call for call in calls if call.ended_at_ms >= start_ms], start_ms, prices)


async def test_a_line_names_the_tier_and_the_context_of_its_prices(plane: ControlPlane, first_day_ms: int) -> None:
    await set_prices(plane, prices_of(first_day_ms)[:1])
    shapes = ((1, "flex"), (600, "flex"), (600, ""), (1, "other"), (1, ""))
    calls = [
        event(
            n,
            first_day_ms,
            workspace_id=plane.workspace_id,
            tokens=Tokens(input=size),
            details=Details(service_tier=tier),
        )
        for n, (size, tier) in enumerate(shapes)
    ]
    await stored(plane.store, calls)
    await maker(plane.store).make()
    [item] = await report(plane, first_day_ms, "slug", lines="true")
    lines = [(line.get("service_tier"), line.get("long_context"), line["calls"]) for line in item["lines"]]
    assert lines == [(None, None, 2), ("flex", None, 1), (None, True, 1), ("flex", True, 1)]


def long_call(plane: ControlPlane, number: int, at_ms: int, input: int) -> BillingEvent:
    return event(number, at_ms, workspace_id=plane.workspace_id, tokens=Tokens(input=input), source=REPORTED)


def long_price(first_ms: int, bound: int) -> Json:
    return {"slug": "acme/chat", "valid_from_ms": first_ms, "long_context": {"above_input_tokens": bound, **_LONG}}


async def progress_ms(store: Store) -> int:
    async with store.read() as conn:
        return int((await conn.execute(select(hourly_sum_progress.c.until_ms))).scalar_one())


async def test_a_new_bound_has_the_hours_that_mix_it_added_up_again(plane: ControlPlane, first_day_ms: int) -> None:
    calls = [
        long_call(plane, n, first_day_ms + at, size)
        for n, (at, size) in enumerate(((0, 700), (5 * HOUR_MS, 900), (5 * HOUR_MS, 1001), (DAY_MS, 1001)))
    ]
    await stored(plane.store, calls)
    await maker(plane.store).make()
    before = await sums(plane.store)
    prices = await set_prices(plane, [long_price(first_day_ms, 1000)])
    assert await progress_ms(plane.store) == first_day_ms + 5 * HOUR_MS
    await check_costs(plane, calls, first_day_ms, prices)
    await maker(plane.store).make()
    after = await sums(plane.store)
    assert sum(one["calls"] for one in after) == len(calls)
    assert len(after) == len(before) + 1
    await forget_events(plane)
    await check_costs(plane, calls, first_day_ms, prices)


@pytest.mark.parametrize("bound", [*CONTEXT_BOUNDS[:2], 5000])
async def test_a_bound_that_no_sum_mixes_leaves_the_sums_as_they_are(
    plane: ControlPlane, first_day_ms: int, bound: int
) -> None:
    calls = [long_call(plane, n, first_day_ms + n, size) for n, size in enumerate((1_000, 2_000, 600_000))]
    await stored(plane.store, calls)
    await maker(plane.store).make()
    until_ms = await progress_ms(plane.store)
    await forget_events(plane)
    prices = await set_prices(plane, [long_price(first_day_ms, bound)])
    assert await progress_ms(plane.store) == until_ms
    await check_costs(plane, calls, first_day_ms, prices)


async def test_a_new_bound_for_hours_whose_events_are_deleted_is_refused(
    plane: ControlPlane, first_day_ms: int
) -> None:
    await stored(plane.store, [long_call(plane, n, first_day_ms + 5, size) for n, size in enumerate((900, 1100))])
    await maker(plane.store).make()
    await forget_events(plane)
    refused = await plane.put(PRICES, _body(long_price(first_day_ms, 1000)))
    assert refused.status == 409
    assert "valid_from" in refused.body["error"]
    assert "128000" in refused.body["error"]
    await price(plane, **long_price(first_day_ms + DAY_MS, 1000))
    await price(plane, **long_price(first_day_ms, 128_000))


async def test_a_bound_that_a_price_has_already_is_not_added_up_again(plane: ControlPlane, first_day_ms: int) -> None:
    await price(plane, **long_price(first_day_ms, 1000))
    await stored(plane.store, [long_call(plane, n, first_day_ms + n, 900) for n in range(3)])
    await maker(plane.store).make()
    until_ms = await progress_ms(plane.store)
    await price(plane, **long_price(first_day_ms, 1000), per_call="3")
    await price(plane, **long_price(first_day_ms + DAY_MS, 1000))
    assert await progress_ms(plane.store) == until_ms


async def test_a_bound_of_another_slug_says_nothing_of_sums_that_were_there_before(
    plane: ControlPlane, first_day_ms: int
) -> None:
    calls = [long_call(plane, n, first_day_ms + n, size) for n, size in enumerate((900, 1100))]
    await stored(plane.store, calls)
    await maker(plane.store).make()
    others = [{**long_price(first_day_ms, 1000), "slug": "acme/other"}]
    prices = await set_prices(plane, [*others, long_price(first_day_ms, 1000)])
    await check_costs(plane, calls, first_day_ms, prices)
    await maker(plane.store).make()
    await check_costs(plane, calls, first_day_ms, prices)


async def test_a_bound_too_many_is_refused(plane: ControlPlane, first_day_ms: int) -> None:
    bounds = range(1000, 1000 + MAX_BOUNDS - len(CONTEXT_BOUNDS))
    await set_prices(plane, [long_price(first_day_ms + n * DAY_MS, bound) for n, bound in enumerate(bounds)])
    refused = await plane.put(PRICES, _body(long_price(first_day_ms, 1)))
    assert refused.status == 409
    assert "above_input_tokens" in refused.body["error"]
    await set_prices(plane, [long_price(first_day_ms + 200 * DAY_MS, bound) for bound in (1001, CONTEXT_BOUNDS[0])])


def _body(one: dict[str, Any]) -> Json:
    members = {name: value for name, value in one.items() if name != "valid_from_ms"}
    amounts = {"currency": "EUR", "input_per_million": "3", "output_per_million": "15"}
    return {**amounts, "valid_from": date_text(one["valid_from_ms"]), **members}


async def test_events_of_older_proxies_cost_what_they_cost(plane: ControlPlane, first_day_ms: int) -> None:
    """They have no details and no path, and each call is charged."""
    prices = await set_prices(plane, prices_of(first_day_ms))
    calls = [
        event(
            n,
            first_day_ms + n,
            workspace_id=plane.workspace_id,
            tokens=Tokens(input=100, output=10, cached_input=40),
            status=status,
        )
        for n, status in enumerate((200, 500))
    ]
    await stored(plane.store, calls)
    async with plane.store.write() as tx:
        await tx.conn.execute(update(events).values(group_path=None))
    await check_costs(plane, calls, first_day_ms, prices)
    await maker(plane.store).make()
    await check_costs(plane, calls, first_day_ms, prices)
    assert [one["per_call_charges"] for one in await sums(plane.store)] == [2]


async def test_deleting_a_group_changes_no_path_of_a_sum(plane: ControlPlane, first_day_ms: int) -> None:
    """A later group with the same external id has calls of its own."""
    root = await plane.group("parent")
    group_ids = []
    for at_ms in (first_day_ms, first_day_ms + 1):
        child = await plane.group("child", parent=root["id"])
        group_ids.append(child["id"])
        call = event(at_ms % 1000, at_ms, workspace_id=plane.workspace_id, group_id=child["id"])
        path = f"{root['id']}/{child['id']}/"
        await stored(plane.store, [call._replace(external_entity_id="child", source=REPORTED, group_path=path)])
        (await plane.delete(f"/v1/gateway/groups/{child['id']}")).ok()
    await maker(plane.store).make()
    paths = {one["group_path"]: one["calls"] for one in await sums(plane.store)}
    assert paths == {f"{root['id']}/{group_id}/": 1 for group_id in group_ids}


async def test_the_same_group_with_and_without_a_recorded_path_has_one_sum(
    plane: ControlPlane, first_day_ms: int
) -> None:
    group = await plane.group("customer-1")
    path = f"{group['id']}/"
    calls = [
        event(n, first_day_ms + n, workspace_id=plane.workspace_id, group_id=group["id"], group_path=path)
        for n in range(2)
    ]
    await stored(plane.store, calls)
    async with plane.store.write() as tx:
        await tx.conn.execute(text("UPDATE events SET group_path = NULL WHERE request_id = 'req-1'"))
    await maker(plane.store).make()
    async with plane.store.read() as conn:
        query = select(hourly_sums.c.group_path, hourly_sums.c.calls)
        assert (await conn.execute(query)).all() == [(path, 2)]
