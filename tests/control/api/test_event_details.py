"""`GET /v1/gateway/events?include=details`: what else each call cost, and the amount.

See docs/reference/events-and-webhooks.md#details.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event as database_event

from control.edges.sql.billing.price_rows import prices_between
from control.edges.sql.store import Store
from control.records.times import time_text
from policy.billing import Details
from policy.prices import DAY_MS, date_text
from tests.control.api.test_cost_sums import calls_of, cost_of, prices_of, set_prices, stored
from tests.control.api.test_events import HOUR_MS, PATH, fill, read_all_pages
from tests.control.billing import clock_ms, event, event_key, ingest_and_reader, store_as_an_older_version
from tests.control.plane import ControlPlane
from tests.control.reports import report

DETAILS = {
    "status": 200,
    "cacheWriteTokens": 0,
    "cacheWrite1hTokens": 0,
    "reasoningTokens": 0,
    "audioInputTokens": 0,
    "audioOutputTokens": 0,
    "imageInputTokens": 0,
    "imageOutputTokens": 0,
    "serverToolCalls": 0,
    "serviceTier": None,
    "source": "REPORTED",
}
WHOLE = Details(40, 10, 5, 7, 3, 6, 2, 9, "flex")
SHOWN_WHOLE = {
    "cacheWriteTokens": 40,
    "cacheWrite1hTokens": 10,
    "reasoningTokens": 5,
    "audioInputTokens": 7,
    "audioOutputTokens": 3,
    "imageInputTokens": 6,
    "imageOutputTokens": 2,
    "serverToolCalls": 9,
    "serviceTier": "flex",
}


async def put_price(plane: ControlPlane, day: str, **members: Any) -> None:
    body = {
        "slug": "acme/chat",
        "valid_from": day,
        "currency": "EUR",
        "input_per_million": "1",
        "output_per_million": "1",
    }
    (await plane.put("/v1/gateway/prices", body | members)).ok()


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *more: Any) -> None:
        statements.append(statement)

    database_event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield statements
    database_event.remove(store.engine.sync_engine, "before_cursor_execute", note)


async def ingest_first(plane: ControlPlane, **more: Any) -> int:
    """Ingest one event of 100 input, 30 cached and 20 output tokens; return its time."""
    now_ms = await clock_ms(plane.store) - HOUR_MS
    ingest, _ = ingest_and_reader(plane.store, 1e7)
    await ingest.commit([event(0, now_ms, workspace_id=plane.workspace_id, **more)])
    return now_ms


async def detailed(plane: ControlPlane, start_ms: int, **params: Any) -> list[Any]:
    pairs = [("start_time", time_text(start_ms)), ("include", "details"), *params.items()]
    return await read_all_pages(plane, pairs)


async def test_details_are_shown_on_request_alone(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, [1], start_ms, source="REPORTED", details=WHOLE)
    (plain,) = await read_all_pages(plane, [("start_time", time_text(start_ms))])
    assert "details" not in plain
    assert "cost" not in plain
    (whole,) = await detailed(plane, start_ms)
    assert whole == plain | {"details": DETAILS | SHOWN_WHOLE, "cost": None}


async def test_every_page_of_a_list_with_details_has_them(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(7), start_ms, source="COUNTED")
    items = await detailed(plane, start_ms, limit=3)
    assert [item["details"]["source"] for item in items] == ["COUNTED"] * 7
    filtered = await detailed(plane, start_ms, limit=1, external_entity_ids="customer-1", api_keys="tg_key1")
    assert [item["idempotencyKey"] for item in filtered] == [event_key(1)]
    assert filtered[0]["details"]["source"] == "COUNTED"


async def test_an_event_from_before_has_neither_status_nor_source(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    old = event(1, start_ms, workspace_id=plane.workspace_id, status=500)
    await store_as_an_older_version(plane.store, [old])
    (item,) = await detailed(plane, start_ms)
    assert item["details"] == DETAILS | {"status": None, "source": None}


@pytest.mark.parametrize(
    ("more", "amount"),
    [
        pytest.param({}, "10.00012", id="each token at the default price, and the call"),
        pytest.param({"source": "REPORTED"}, "10.00012", id="nothing further"),
        pytest.param({"source": "REPORTED", "status": 500}, "0.00012", id="an error costs no call"),
        pytest.param({"source": "REPORTED", "is_count": True}, "0.00012", id="a count of tokens costs no call"),
        pytest.param({"status": 500}, "10.00012", id="an error of before costs a call"),
    ],
)
async def test_a_cost_is_exact(plane: ControlPlane, more: dict[str, Any], amount: str) -> None:
    await put_price(plane, "2020-01-01", per_call="10")
    start_ms = await ingest_first(plane, **more)
    (item,) = await detailed(plane, start_ms)
    assert item["cost"] == {"amount": amount, "currency": "EUR"}


async def test_a_cost_is_by_the_price_of_the_events_day_as_it_is_now(plane: ControlPlane) -> None:
    start_ms = await ingest_first(plane)
    day_ms = start_ms - start_ms % DAY_MS
    assert [item["cost"] for item in await detailed(plane, start_ms)] == [None]
    await put_price(plane, date_text(day_ms + DAY_MS), input_per_million="9")
    assert [item["cost"] for item in await detailed(plane, start_ms)] == [None]
    await put_price(plane, date_text(day_ms - DAY_MS), input_per_million="0.000000000001", output_per_million="0")
    assert [item["cost"]["amount"] for item in await detailed(plane, start_ms)] == ["0.0000000000000001"]
    await put_price(plane, date_text(day_ms), input_per_million="2", currency="USD")
    assert [item["cost"] for item in await detailed(plane, start_ms)] == [{"amount": "0.00022", "currency": "USD"}]


async def test_the_costs_of_events_are_those_of_the_usage_report(plane: ControlPlane, first_day_ms: int) -> None:
    """Each kind of call and price, to the last digit, over several pages."""
    prices = await set_prices(plane, prices_of(first_day_ms))
    calls = calls_of(3, first_day_ms, 150, plane.workspace_id)
    await stored(plane.store, calls)
    items = await detailed(plane, first_day_ms, limit=40)
    costs = {item["idempotencyKey"]: item["cost"] for item in items}
    for call in calls:
        expected = cost_of(call, prices)
        cost = costs[call.idempotency_key]
        assert expected == (cost and (cost["currency"], Decimal(cost["amount"])))
    reported = [item["cost"] or {} for item in await report(plane, first_day_ms, "slug")]
    for currency in ("EUR", "USD"):
        amounts = [Decimal(cost["amount"]) for cost in costs.values() if cost and cost["currency"] == currency]
        assert sum(amounts) == sum(Decimal(cost.get(currency, 0)) for cost in reported)


async def test_the_prices_of_a_page_are_read_at_once_and_no_others(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    slugs = [f"acme/m{n}" for n in range(20)]
    ingest, _ = ingest_and_reader(plane.store, 1e7)
    await ingest.commit(
        [event(n, start_ms, workspace_id=plane.workspace_id, model_slug=slug) for n, slug in enumerate(slugs)]
    )
    for slug in slugs:
        await put_price(plane, "2020-01-01", slug=slug)
    with statements_of(plane.store) as statements:
        items = await detailed(plane, start_ms)
    assert len([item for item in items if item["cost"]]) == 20
    assert len([one for one in statements if "FROM prices" in one]) == 1


async def test_the_prices_that_are_valid_at_a_pages_times_are_read_and_no_others(plane: ControlPlane) -> None:
    day_ms = await clock_ms(plane.store) // DAY_MS * DAY_MS
    for days in range(-5, 3):
        await put_price(plane, date_text(day_ms + days * DAY_MS), input_per_million=str(10 + days))
    await put_price(plane, date_text(day_ms + DAY_MS), slug="acme/later")
    await put_price(plane, date_text(day_ms - DAY_MS), slug="acme/begun")
    slugs = ("acme/chat", "acme/later", "acme/begun", "acme/none")

    async def read(first_ms: int, last_ms: int) -> list[tuple[str, int]]:
        async with plane.store.read() as conn:
            prices = await prices_between(conn, plane.workspace_id, slugs, first_ms, last_ms)
        return sorted((price.slug, (price.valid_from_ms - day_ms) // DAY_MS) for price in prices)

    assert await read(day_ms, day_ms + DAY_MS - 1) == [("acme/begun", -1), ("acme/chat", 0)]
    assert await read(day_ms - 1, day_ms) == [("acme/begun", -1), ("acme/chat", -1), ("acme/chat", 0)]
    assert await read(day_ms - 2 * DAY_MS, day_ms - DAY_MS - 1) == [("acme/chat", -2)]
    assert await read(day_ms - 9 * DAY_MS, day_ms - 5 * DAY_MS) == [("acme/chat", -5)]
    assert await read(day_ms - 9 * DAY_MS, day_ms - 8 * DAY_MS) == []


async def test_what_else_cannot_be_included_is_refused(sqlite_plane: ControlPlane) -> None:
    answer = await sqlite_plane.get(PATH, params={"start_time": "2026-01-01T00:00:00Z", "include": "prices"})
    assert (answer.status, answer.body["details"][0]["field"]) == (400, "include")
