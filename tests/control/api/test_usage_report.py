"""`GET /v1/gateway/usage_report`: equal to sums over the list of events, to the last token and the last digit.

See docs/reference/usage-reports.md#the-report.
"""

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.api.billing import usage_report as usage_report_api
from control.edges.sql.billing.price_rows import list_prices
from control.records.times import time_text
from control.resources.billing import usage_report
from policy.prices import DAY_MS, date_text
from tests.control.billing import clock_ms
from tests.control.plane import ControlPlane, Json
from tests.control.reports import (
    CALLS,
    EXAMPLES,
    GROUPINGS,
    PATH,
    PRICES,
    added_up,
    check_reports_equal_events,
    events_of,
    forget_events,
    price,
    report,
    store_calls,
    sums_by_name,
    take,
    tokens,
)


async def test_many_prices_are_read_a_few_at_a_time(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand at once would hold up other workspaces' requests."""
    plane = sqlite_plane
    limits = []

    async def listed(conn: Any, workspace_id: str, slug: None, after: Any, limit: int) -> Any:
        limits.append(limit)
        return await list_prices(conn, workspace_id, slug, after, limit)

    monkeypatch.setattr(usage_report, "list_prices", listed)
    monkeypatch.setattr(usage_report, "PRICES_AT_ONCE", 2)
    day_ms = (await clock_ms(plane.store) // DAY_MS - 5) * DAY_MS
    for slug, ago in (("acme/a", 9), ("acme/a", 0), ("acme/b", 1), ("acme/b", -1), ("acme/c", 3)):
        await price(plane, slug, day_ms - ago * DAY_MS)
    await take(plane, *((day_ms + 5, slug, "e", "tg_a", tokens(1, 1, 0)) for slug in ("acme/a", "acme/b", "acme/c")))
    items = await report(plane, day_ms, "slug", end=time_text(day_ms + DAY_MS), lines="true")
    assert [item["lines"][0]["price"]["valid_from"] for item in items] == [
        date_text(day_ms - ago * DAY_MS) for ago in (0, 1, 3)
    ]
    assert limits == [2, 2, 2]


async def test_an_item_has_the_documented_form(plane: ControlPlane, first_day_ms: int) -> None:
    await price(plane, "acme/chat", first_day_ms, per_call="0.000001")
    await take(plane, (first_day_ms + 5, "acme/chat", "customer-1", "tg_a", tokens(1_000_001, 10, 1)))
    sums = {"calls": 1, "input_tokens": 1_000_001, "output_tokens": 10, "cached_input_tokens": 1}
    money = {"cost": {"EUR": "3.0001513"}, "unpriced_calls": 0}
    assert await report(plane, first_day_ms, "day") == [{**sums, "day": date_text(first_day_ms), **money}]
    assert await report(plane, first_day_ms, "slug") == [{**sums, "slug": "acme/chat", **money}]
    assert await report(plane, first_day_ms, "entity") == [{**sums, "external_entity_id": "customer-1", **money}]
    [of_key] = await report(plane, first_day_ms, "key", lines="true")
    [line] = of_key.pop("lines")
    assert of_key == {**sums, "external_entity_id": "customer-1", "api_key_prefix": "tg_a", **money}
    assert line == {**sums, "slug": "acme/chat", "amount": "3.0001513", "price": line["price"]}
    assert line["price"]["valid_from"] == date_text(first_day_ms)


async def test_report_equals_the_list_of_events_to_the_last_token(plane: ControlPlane, first_day_ms: int) -> None:
    await store_calls(plane, first_day_ms, EXAMPLES)
    await check_reports_equal_events(plane, first_day_ms, 5_000, 2)


@pytest.mark.soak
@given(calls=CALLS, start=st.integers(0, DAY_MS), limit=st.integers(1, 4))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
async def test_reports_of_any_calls_equal_the_list_of_events(
    plane: ControlPlane, first_day_ms: int, calls: list[Any], start: int, limit: int
) -> None:
    await forget_events(plane)
    await store_calls(plane, first_day_ms, calls)
    await check_reports_equal_events(plane, first_day_ms, start, limit)


async def test_groups_of_many_entities_and_keys_join_into_the_whole(plane: ControlPlane, first_day_ms: int) -> None:
    """More than the 100 entities that are looked up at once: within a page, and behind its end."""
    await take(
        plane,
        *((first_day_ms + n, f"acme/m{n % 3}", f"c-{n % 130}", f"tg_{n // 130}", tokens(n, 1, 0)) for n in range(150)),
    )
    listed = await events_of(plane, first_day_ms, limit=1000)
    for by in GROUPINGS:
        assert sums_by_name(await report(plane, first_day_ms, by, limit=110), by) == added_up(listed, by)


@pytest.mark.parametrize("by", ["entity", "key", "day"])
async def test_page_that_finds_nothing_in_time_goes_on_behind_what_it_looked_at(
    plane: ControlPlane, first_day_ms: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_report, "LONGEST_PAGE_S", -1.0)
    calls = [(first_day_ms + n, "acme/chat", f"c-{n}", "tg_a", tokens(n, 1, 0)) for n in range(9)]
    calls.append((first_day_ms + DAY_MS, "acme/rare", "c-9", "tg_b", tokens(5, 1, 0)))
    await take(plane, *calls)
    params = {"start": time_text(first_day_ms), "group_by": by, "model_slug": "acme/rare", "limit": 1}
    answer = (await plane.get(PATH, params=params)).ok()
    assert (answer["items"], answer["pagination"]["has_more"]) == ([], True)
    (row,) = await report(plane, first_day_ms, by, model_slug="acme/rare")
    assert (row["calls"], row["input_tokens"]) == (1, 5)
    listed = await events_of(plane, first_day_ms, limit=1000)
    assert sums_by_name(await report(plane, first_day_ms, by), by) == added_up(listed, by)


@pytest.mark.parametrize("page_bytes", [1, 1_000])
@pytest.mark.parametrize("by", GROUPINGS)
async def test_page_of_a_report_ends_early_when_it_is_long(
    plane: ControlPlane, first_day_ms: int, by: str, page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await price(plane, "acme/m0", first_day_ms)
    calls = [
        (first_day_ms + n % 4 * DAY_MS, f"acme/m{n % 5}", f"c-{n % 6}", f"tg_{n % 3}", tokens(n, 1, 0))
        for n in range(60)
    ]
    await take(plane, *calls)
    whole = await report(plane, first_day_ms, by, lines="true")
    monkeypatch.setattr(usage_report_api, "PAGE_BYTES", page_bytes)
    params = {"start": time_text(first_day_ms), "group_by": by, "lines": "true"}
    first = (await plane.get(PATH, params=params)).ok()
    assert first["pagination"]["has_more"]
    assert len(first["items"]) == 1 or len(orjson.dumps(first["items"])) <= page_bytes + 2 * len(first["items"])
    assert await report(plane, first_day_ms, by, lines="true") == whole


async def test_a_price_changed_between_pages_is_a_409(plane: ControlPlane, first_day_ms: int) -> None:
    await price(plane, "acme/chat", first_day_ms)
    await take(plane, *((first_day_ms, "acme/chat", f"customer-{n}", "tg_a", tokens(1, 1, 0)) for n in range(3)))
    params = {"start": time_text(first_day_ms), "group_by": "entity", "limit": 1}
    cursor = (await plane.get(PATH, params=params)).ok()["pagination"]["cursor"]
    await price(plane, "acme/chat", first_day_ms + 30 * DAY_MS)  # in the future: no price of this window
    (await plane.get(PATH, params={"cursor": cursor})).ok()
    await price(plane, "acme/chat", first_day_ms, input_per_million="4")
    refusal = (await plane.get(PATH, params={"cursor": cursor})).refused(409, "CONFLICT")
    assert "price list was changed" in refusal["error"]


async def test_prices_after_the_window_change_no_page_however_many_there_are(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = sqlite_plane
    monkeypatch.setattr(usage_report, "PRICES_AT_ONCE", 4)
    day_ms = (await clock_ms(plane.store) // DAY_MS - 5) * DAY_MS
    for slug in range(10):
        await price(plane, f"acme/m{slug}", day_ms)
    await take(plane, *((day_ms, "acme/m1", f"customer-{n}", "tg_a", tokens(1, 1, 0)) for n in range(3)))
    params = {"start": time_text(day_ms), "group_by": "entity", "limit": 1}
    cursor = (await plane.get(PATH, params=params)).ok()["pagination"]["cursor"]
    for slug in (0, 3, 7):
        await price(plane, f"acme/m{slug}", day_ms + 30 * DAY_MS)
    assert (await plane.get(PATH, params={"cursor": cursor})).ok()["items"]


async def test_events_within_the_holdback_are_not_reported_yet(plane: ControlPlane) -> None:
    now_ms = await clock_ms(plane.store)
    await take(plane, (now_ms - 1000, "acme/chat", "customer-1", "tg_a", tokens(1, 1, 0)))
    answer = (await plane.get(PATH, params={"start": time_text(now_ms - 3_600_000), "group_by": "day"})).ok()
    assert answer["items"] == []
    assert answer["window"]["end_time"] < time_text(now_ms - 50_000)


BAD_QUERIES: dict[str, tuple[Json, str]] = {
    "no start": ({"group_by": "day"}, "start"),
    "no grouping": ({"start": "2026-01-01T00:00:00Z"}, "group_by"),
    "unknown grouping": ({"start": "2026-01-01T00:00:00Z", "group_by": "week"}, "group_by"),
    "not a time": ({"start": "yesterday", "group_by": "day"}, "start"),
    "backwards": ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z", "group_by": "day"}, "end"),
    "too long": ({"start": "2026-01-01T00:00:00Z", "group_by": "day"}, "end"),
    "deleted": ({"start": "2020-01-01T00:00:00Z", "end": "2020-02-01T00:00:00Z", "group_by": "day"}, "start"),
    "unknown field": ({"start": "2026-01-01T00:00:00Z", "group_by": "day", "from": "x"}, "from"),
    "foreign cursor": ({"cursor": "AAAA"}, "cursor"),
}


async def test_bad_queries_are_refused_by_field(sqlite_plane: ControlPlane) -> None:
    refused = {
        name: (await sqlite_plane.get(PATH, params=query)).refused(400, "INVALID_REQUEST")["details"][0]["field"]
        for name, (query, _) in BAD_QUERIES.items()
    }
    assert refused == {name: field for name, (_, field) in BAD_QUERIES.items()}


async def test_another_workspace_sees_neither_usage_nor_prices(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    start_ms = (await clock_ms(plane.store) // DAY_MS - 1) * DAY_MS
    await price(plane, "acme/chat", start_ms)
    calls = ((start_ms, "acme/chat", f"customer-{n}", "tg_a", tokens(5, 5, 0)) for n in range(3))
    await take(plane, *calls)
    other = (await plane.another_workspace())["api_key"]
    for by in GROUPINGS:
        params: Json = {"start": time_text(start_ms), "group_by": by}
        assert (await plane.get(PATH, params=params, key=other)).ok()["items"] == []
    params = {"start": time_text(start_ms), "group_by": "entity", "limit": 1}
    cursor = (await plane.get(PATH, params=params)).ok()["pagination"]["cursor"]
    (await plane.get(PATH, params={"cursor": cursor}, key=other)).refused(400)
    assert (await plane.get(PRICES, key=other)).ok()["items"] == []
    query = {"slug": "acme/chat", "valid_from": date_text(start_ms)}
    (await plane.delete(PRICES, params=query, key=other)).refused(404)
