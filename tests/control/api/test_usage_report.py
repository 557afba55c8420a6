"""`GET /v1/gateway/usage_report`: equal to sums over the list of events, to the last token and the last digit.

See docs/reference/usage-reports.md#the-report.
"""

from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.events.rows import delete_events_before
from control.resources.billing import usage_report
from control.resources.times import time_text
from policy.billing import Tokens
from policy.prices import DAY_MS, date_text
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import ControlPlane, Json

PATH, PRICES = "/v1/gateway/usage_report", "/v1/gateway/prices"
NAMES: dict[str, tuple[str, ...]] = {
    "day": ("day",),
    "slug": ("slug",),
    "entity": ("external_entity_id",),
    "key": ("external_entity_id", "api_key_prefix"),
}
SUMS = ("calls", "input_tokens", "output_tokens", "cached_input_tokens")
GROUPINGS = sorted(NAMES)


def tokens(input: int, output: int, cached_input: int) -> Tokens:
    return Tokens(input=input, output=output, cached_input=cached_input)


@pytest.fixture
async def first_day_ms(plane: ControlPlane) -> int:
    """The start of the UTC day, five days ago."""
    return (await clock_ms(plane.store) // DAY_MS - 5) * DAY_MS


async def price(plane: ControlPlane, slug: str, valid_from_ms: int, **more: str) -> Json:
    body = {"slug": slug, "valid_from": date_text(valid_from_ms), "currency": "EUR"}
    amounts = {"input_per_million": "3", "cached_input_per_million": "0.3", "output_per_million": "15"}
    return (await plane.put(PRICES, {**body, **amounts, **more})).ok()  # type: ignore[no-any-return]  # JSON


async def take(plane: ControlPlane, *calls: tuple[int, str, str, str, Tokens]) -> None:
    """Store calls: timestamp, slug, entity, key, tokens. None is restamped."""
    ingest, _ = ingest_and_reader(plane.store, 1e9)
    names = ("model_slug", "external_entity_id", "api_key_prefix", "tokens")
    made = [
        event(number, at_ms, workspace_id=plane.workspace_id, **dict(zip(names, rest, strict=True)))
        for number, (at_ms, *rest) in enumerate(calls)
    ]
    await ingest.take(made)


async def report(plane: ControlPlane, start_ms: int, by: str, **more: Any) -> list[Json]:
    """All items, page by page; the window must stay the same."""
    params = {"start": time_text(start_ms), "group_by": by, **more}
    answer = (await plane.get(PATH, params=params)).ok()
    items, window = answer["items"], answer["window"]
    while answer["pagination"]["has_more"]:
        answer = (await plane.get(PATH, params={"cursor": answer["pagination"]["cursor"]})).ok()
        assert answer["window"] == window
        items += answer["items"]
    return items  # type: ignore[no-any-return]  # JSON


async def events_of(plane: ControlPlane, start_ms: int, **more: Any) -> list[Json]:
    answer = (await plane.get("/v1/gateway/events", params={"start_time": time_text(start_ms), **more})).ok()
    assert not answer["pagination"]["has_more"]
    return answer["items"]  # type: ignore[no-any-return]  # JSON


def name_of(listed: Json, by: str) -> tuple[str, ...]:
    """The group that an event of the list belongs to."""
    names = {"day": "timestamp", "slug": "modelSlug", "external_entity_id": "externalEntityId"}
    found = tuple(listed[{**names, "api_key_prefix": "apiKeyPrefix"}[name]] for name in NAMES[by])
    return (found[0][:10],) if by == "day" else found


def added_up(listed: list[Json], by: str) -> dict[tuple[str, ...], Json]:
    """The report that the list of events implies, without money."""
    sums: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for one in listed:
        used = one["tokens"]
        counts = {"input_tokens": used["inputTokens"], "output_tokens": used["outputTokens"]}
        counts["cached_input_tokens"] = used["cachedInputTokens"]
        sums[name_of(one, by)].update({"calls": 1, **counts})
    return {name: {key: found[key] for key in SUMS} for name, found in sorted(sums.items())}


def sums_by_name(items: list[Json], by: str) -> dict[tuple[str, ...], Json]:
    return {tuple(item[name] for name in NAMES[by]): {key: item[key] for key in SUMS} for item in items}


async def test_many_prices_are_read_a_few_at_a_time(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand at once would hold up other workspaces' requests."""
    plane, asked = sqlite_plane, []

    async def listed(conn: Any, workspace_id: str, slug: None, after: Any, limit: int) -> Any:
        asked.append(limit)
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
    assert asked == [2, 2, 2]


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


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3 * DAY_MS),
        st.sampled_from(["acme/chat", "acme/embed", "acme/free"]),
        st.sampled_from(["customer-1", "customer-2", "Kunde ü", "z"]),
        st.sampled_from(["tg_a", "tg_b", "tg_c"]),
        st.builds(lambda a, b, c: tokens(max(a, c), b, c), *[st.integers(0, 2**40)] * 3),
    ),
    max_size=12,
)


EXAMPLES: list[Any] = [
    (0, "acme/chat", "customer-1", "tg_a", tokens(2**40, 7, 2**39)),  # before the window
    (5_000, "acme/chat", "customer-1", "tg_a", tokens(2**40, 2**40, 2**39)),
    (DAY_MS - 1, "acme/chat", "Kunde ü", "tg_b", tokens(1, 1, 1)),  # the last millisecond of the first price
    (DAY_MS, "acme/chat", "Kunde ü", "tg_a", tokens(3, 0, 0)),
    (DAY_MS, "acme/embed", "Kunde ü", "tg_a", tokens(999_999, 0, 1)),  # without a price on that day
    (2 * DAY_MS, "acme/embed", "customer-1", "tg_c", tokens(0, 0, 0)),
    (3 * DAY_MS, "acme/free", "z", "tg_a", tokens(5, 6, 0)),
]


async def test_report_equals_the_list_of_events_to_the_last_token(plane: ControlPlane, first_day_ms: int) -> None:
    await check_report_equals_events(plane, first_day_ms, EXAMPLES, 5_000, 2)


@pytest.mark.soak
@given(calls=CALLS, start=st.integers(0, DAY_MS), limit=st.integers(1, 4))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
async def test_reports_of_any_calls_equal_the_list_of_events(
    plane: ControlPlane, first_day_ms: int, calls: list[Any], start: int, limit: int
) -> None:
    await forget_events(plane)
    await check_report_equals_events(plane, first_day_ms, calls, start, limit)


async def check_report_equals_events(
    plane: ControlPlane, first_day_ms: int, calls: list[Any], start: int, limit: int
) -> None:
    await price(plane, "acme/chat", first_day_ms)
    await price(plane, "acme/chat", first_day_ms + DAY_MS, input_per_million="0.000000000001", per_call="7")
    await price(plane, "acme/embed", first_day_ms + 2 * DAY_MS, currency="USD")
    await take(plane, *((first_day_ms + call[0], *call[1:]) for call in calls))
    start_ms = first_day_ms + start
    listed = await events_of(plane, start_ms, limit=1000)
    for by in GROUPINGS:
        items = await report(plane, start_ms, by, limit=limit)
        assert sums_by_name(items, by) == added_up(listed, by)
        assert [tuple(item[name] for name in NAMES[by]) for item in items] == sorted(added_up(listed, by))
        assert total_of(items) == money_of(listed, first_day_ms)
        assert sum(item["unpriced_calls"] for item in items) == unpriced(listed, first_day_ms)
        theirs = await report(plane, start_ms, by, limit=limit, external_entity_id="Kunde ü")
        of_them = [one for one in listed if one["externalEntityId"] == "Kunde ü"]
        assert sums_by_name(theirs, by) == added_up(of_them, by)
        assert total_of(theirs) == money_of(of_them, first_day_ms)
        through_it = await report(plane, start_ms, by, limit=limit, model_slug="acme/chat")
        of_slug = [one for one in listed if one["modelSlug"] == "acme/chat"]
        assert sums_by_name(through_it, by) == added_up(of_slug, by)
        assert total_of(through_it) == money_of(of_slug, first_day_ms)


async def forget_events(plane: ControlPlane) -> None:
    async with plane.store.write() as tx:
        await delete_events_before(tx, plane.workspace_id, 1 << 60, 10_000)


def rate_at(one: Json, first_day_ms: int) -> tuple[str, Decimal, Decimal] | None:
    """Currency, price of input and price per call of an event, by the prices of the test."""
    slug, day = one["modelSlug"], one["timestamp"][:10]
    if slug == "acme/chat":
        changed = day >= date_text(first_day_ms + DAY_MS)
        return ("EUR", Decimal("0.000000000001"), Decimal(7)) if changed else ("EUR", Decimal(3), Decimal(0))
    if slug == "acme/embed" and day >= date_text(first_day_ms + 2 * DAY_MS):
        return "USD", Decimal(3), Decimal(0)
    return None


def money_of(listed: list[Json], first_day_ms: int) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for one in listed:
        if (found := rate_at(one, first_day_ms)) is not None:
            currency, input, per_call = found
            used = one["tokens"]
            cached = used["cachedInputTokens"]
            parts = (input * (used["inputTokens"] - cached), Decimal("0.3") * cached, 15 * used["outputTokens"])
            totals[currency] += sum(parts, Decimal(0)) / 1_000_000 + per_call
    return dict(totals)


def unpriced(listed: list[Json], first_day_ms: int) -> int:
    return sum(rate_at(one, first_day_ms) is None for one in listed)


def total_of(items: list[Json]) -> dict[str, Decimal]:
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for item in items:
        for currency, amount in (item["cost"] or {}).items():
            totals[currency] += Decimal(amount)
    return dict(totals)


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
    monkeypatch.setattr(usage_report, "_ENTITIES_AT_ONCE", 3)
    calls = [(first_day_ms + n, "acme/chat", f"c-{n}", "tg_a", tokens(n, 1, 0)) for n in range(9)]
    calls.append((first_day_ms + DAY_MS, "acme/rare", "c-7", "tg_b", tokens(5, 1, 0)))
    await take(plane, *calls)
    params = {"start": time_text(first_day_ms), "group_by": by, "model_slug": "acme/rare"}
    answer = (await plane.get(PATH, params=params)).ok()
    assert (answer["items"], answer["pagination"]["has_more"]) == ([], True)
    (found,) = await report(plane, first_day_ms, by, model_slug="acme/rare")
    assert (found["calls"], found["input_tokens"]) == (1, 5)
    listed = await events_of(plane, first_day_ms, limit=1000)
    assert sums_by_name(await report(plane, first_day_ms, by), by) == added_up(listed, by)


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
    gone = {"slug": "acme/chat", "valid_from": date_text(start_ms)}
    (await plane.delete(PRICES, params=gone, key=other)).refused(404)
