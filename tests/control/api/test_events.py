"""`GET /v1/gateway/events`: windows, pages, filters, cursors and time formats.

See docs/reference/events-and-webhooks.md#listing-events.
"""

import itertools
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.api.events import GatewayEventV1
from control.api.protocol.times import parse_time_ns
from control.records.events import ShownEvent
from control.records.times import time_text
from control.resources.billing.event_costs import shown_details
from control.resources.workspaces import set_workspace
from policy.billing import public_event
from tests.control.billing import clock_ms, event, event_key, ingest_and_reader
from tests.control.plane import ControlPlane, running_plane

PATH = "/v1/gateway/events"
HOUR_MS = 3_600_000


async def fill(plane: ControlPlane, numbers: Any, start_ms: int, **more: Any) -> None:
    """Ingest events one second apart, of three entities with two keys each. None is restamped."""
    ingest, _ = ingest_and_reader(plane.store, 1e7)
    events = [
        event(
            n,
            start_ms + 1000 * n,
            workspace_id=plane.workspace_id,
            external_entity_id=f"customer-{n % 3}",
            api_key_prefix=f"tg_key{n % 6}",
            **more,
        )
        for n in numbers
    ]
    await ingest.commit(events)


async def read_all_pages(plane: ControlPlane, params: list[tuple[str, Any]]) -> list[Any]:
    """All items, read page by page. The window must be the same on each page."""
    answer = (await plane.get(PATH, params=params)).ok()
    items = answer["items"]
    window = answer["window"]
    while answer["pagination"]["has_more"]:
        assert len(answer["items"]) == int(dict(params).get("limit", 100))
        answer = (await plane.get(PATH, params=[("cursor", answer["pagination"]["cursor"])])).ok()
        assert answer["window"] == window
        items += answer["items"]
    assert answer["pagination"] == {"has_more": False, "cursor": None}
    return items  # type: ignore[no-any-return]  # JSON


def keys_of(items: list[Any]) -> list[str]:
    return [item["idempotencyKey"] for item in items]


async def test_an_event_has_the_documented_form(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, [7], start_ms, request_metadata={"never": "shown"})
    answer = (await plane.get(PATH, params={"start_time": time_text(start_ms)})).ok()
    assert answer["items"] == [
        {
            "type": "API_BILLING_USAGE",
            "idempotencyKey": event_key(7),
            "timestamp": time_text(start_ms + 7000),
            "requestId": "req-7",
            "modelSlug": "acme/chat",
            "externalEntityId": "customer-1",
            "apiKeyPrefix": "tg_key1",
            "tokens": {"inputTokens": 107, "outputTokens": 20, "cachedInputTokens": 30},
        }
    ]
    assert answer["pagination"] == {"has_more": False, "cursor": None}
    assert answer["window"]["start_time"] == time_text(start_ms)


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
async def test_pages_join_into_the_whole_in_order(plane: ControlPlane, limit: int) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(30), start_ms)
    items = await read_all_pages(plane, [("start_time", time_text(start_ms)), ("limit", limit)])
    assert keys_of(items) == [event_key(n) for n in range(30)]


async def test_events_of_one_millisecond_are_ordered_by_key(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    for n in (5, 3, 9, 1):
        await fill(plane, [n], start_ms - 1000 * n)
    items = await read_all_pages(plane, [("start_time", time_text(start_ms)), ("limit", 2)])
    assert keys_of(items) == [event_key(n) for n in (1, 3, 5, 9)]


FILTERS = {
    "one key": ({"tg_key4"}, set()),
    "two keys": ({"tg_key4", "tg_key1"}, set()),
    "an entity": (set(), {"customer-2"}),
    "two entities": (set(), {"customer-2", "customer-0"}),
    "both": ({"tg_key4", "tg_key5"}, {"customer-1"}),
    "nothing fits": ({"tg_key4"}, {"customer-2"}),
    "unknown": ({"tg_nobody"}, set()),
    "very many": ({f"tg_key{n}" for n in range(250)}, set()),
}


@pytest.mark.parametrize("name", FILTERS)
async def test_filters_are_repeated_parameters_and_the_cursor_keeps_them(plane: ControlPlane, name: str) -> None:
    prefixes, entities = FILTERS[name]
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(40), start_ms)
    await fill(plane, range(100, 104), start_ms, model_slug="acme/other")
    params: list[tuple[str, Any]] = [("start_time", time_text(start_ms)), ("limit", 4)]
    params += [("api_keys", prefix) for prefix in sorted(prefixes)]
    params += [("external_entity_ids", entity) for entity in sorted(entities)]
    keys = [
        event_key(n)
        for n in (*range(40), *range(100, 104))
        if (not prefixes or f"tg_key{n % 6}" in prefixes) and (not entities or f"customer-{n % 3}" in entities)
    ]
    assert keys_of(await read_all_pages(plane, params)) == keys


async def test_the_largest_allowed_filters_fit_into_a_cursor(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(40), start_ms)
    params: list[tuple[str, Any]] = [("start_time", time_text(start_ms)), ("limit", 16)]
    params += [("api_keys", f"tg_key{n}" if n < 6 else f"tg_abcdefgh{n:04d}") for n in range(1000)]
    params += [("external_entity_ids", f"customer-{n}" if n < 3 else f"{n}" + "é" * 240) for n in range(12)]
    assert keys_of(await read_all_pages(plane, params)) == [event_key(n) for n in range(40)]


async def test_a_filter_without_matching_events_returns_none(sqlite_plane: ControlPlane) -> None:
    start_ms = await clock_ms(sqlite_plane.store) - HOUR_MS
    await fill(sqlite_plane, range(6), start_ms)
    for name, text in itertools.product(("api_keys", "external_entity_ids"), ("", "tg_key1,tg_key2", "TG_KEY1", "%")):
        answer = await sqlite_plane.get(PATH, params={"start_time": time_text(start_ms), name: text})
        assert answer.ok()["items"] == [], (name, text)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
async def test_the_window_may_start_at_the_earliest_or_latest_time(sqlite_plane: ControlPlane, moment: str) -> None:
    assert (await sqlite_plane.get(PATH, params={"start_time": moment})).ok()["window"]["start_time"] == moment


async def test_start_is_inclusive_and_end_exclusive(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(10), start_ms)
    params = {"start_time": time_text(start_ms + 2000), "end_time": time_text(start_ms + 5000)}
    answer = (await plane.get(PATH, params=params)).ok()
    assert keys_of(answer["items"]) == [event_key(n) for n in (2, 3, 4)]
    assert answer["window"] == params


async def test_a_cursor_pins_the_window_against_later_events(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(10), start_ms)
    first = (await plane.get(PATH, params={"start_time": time_text(start_ms), "limit": 4})).ok()
    await fill(plane, [500], await clock_ms(plane.store) - 500_000)
    cursor = first["pagination"]["cursor"]
    # With a cursor all other parameters are ignored, even invalid ones.
    answer = await plane.get(PATH, params={"cursor": cursor, "limit": "-7", "start_time": "never", "api_keys": "x"})
    second = answer.ok()
    assert keys_of(second["items"]) == [event_key(n) for n in range(4, 8)]
    assert second["window"] == first["window"]


async def test_the_window_ends_a_holdback_before_now_and_the_answer_says_so(plane: ControlPlane) -> None:
    before_ms = await clock_ms(plane.store)
    query = {"start_time": time_text(before_ms - HOUR_MS), "end_time": time_text(before_ms + HOUR_MS)}
    for params in (query, {"start_time": query["start_time"]}):
        window = (await plane.get(PATH, params=params)).ok()["window"]
        end_ms = parse_time_ns(window["end_time"]) // 10**6
        assert before_ms - 60_000 <= end_ms <= await clock_ms(plane.store) - 60_000
        assert window["start_time"] == query["start_time"]


async def test_events_within_the_holdback_are_not_shown_yet(plane: ControlPlane) -> None:
    now_ms = await clock_ms(plane.store)
    ingest = ingest_and_reader(plane.store, 60.0)[0]
    await ingest.commit([event(1, now_ms, workspace_id=plane.workspace_id)])
    assert (await plane.get(PATH, params={"start_time": time_text(now_ms - HOUR_MS)})).ok()["items"] == []


async def test_a_window_in_the_future_is_empty_and_ends_where_it_starts(plane: ControlPlane) -> None:
    now_ms = await clock_ms(plane.store)
    start = time_text(now_ms - 5000)
    for params in ({"start_time": start}, {"start_time": start, "end_time": time_text(now_ms + 5000)}):
        answer = (await plane.get(PATH, params=params)).ok()
        assert answer["items"] == []
        assert answer["window"] == {"start_time": start, "end_time": start}


async def test_windows_within_a_millisecond_show_each_event_once(plane: ControlPlane) -> None:
    """Holds for any borders of consecutive windows, though events have whole-millisecond timestamps."""
    start_ms = (await clock_ms(plane.store) - HOUR_MS) // 1000 * 1000
    second = time_text(start_ms).partition(".")[0]
    for n in range(4):
        await fill(plane, [n], start_ms + n - 1000 * n)
    fractions = [
        "000",
        "0000001",
        "000000001",
        "0003",
        "0004",
        "001",
        "0010001",
        "0017",
        "002",
        "0029999",
        "003001",
        "004",
    ]
    borders = [f"{second}.{fraction}Z" for fraction in sorted(fractions)]
    keys: list[str] = []
    for start, end in itertools.pairwise(borders):
        answer = (await plane.get(PATH, params={"start_time": start, "end_time": end})).ok()
        assert answer["window"]["start_time"] <= answer["window"]["end_time"]
        exactly = [n for n in range(4) if parse_time_ns(start) <= (start_ms + n) * 10**6 < parse_time_ns(end)]
        assert [key[-1] for key in keys_of(answer["items"])] == [str(n) for n in exactly]
        keys += keys_of(answer["items"])
    assert len(keys) == len(set(keys)) == 4


async def test_the_latest_time_is_accepted_as_the_end(plane: ControlPlane) -> None:
    params = {"start_time": "9999-12-31T23:59:59.999Z", "end_time": "9999-12-31T23:59:59.9999Z"}
    assert (await plane.get(PATH, params=params)).ok()["items"] == []


BAD = {
    "no start_time": {},
    "start_time alone missing": {"end_time": "2026-01-01T00:00:00Z"},
    "end before start": {"start_time": "2026-01-02T00:00:00Z", "end_time": "2026-01-01T00:00:00Z"},
    "end at start": {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:00Z"},
    "limit 0": {"start_time": "2026-01-01T00:00:00Z", "limit": "0"},
    "limit 1001": {"start_time": "2026-01-01T00:00:00Z", "limit": "1001"},
    "limit no number": {"start_time": "2026-01-01T00:00:00Z", "limit": "ten"},
    "a bad time": {"start_time": "yesterday"},
    "no such day": {"start_time": "2026-02-30T00:00:00Z"},
    "beyond time": {"start_time": "0001-01-01T00:00:00+23:59"},
    "no cursor of ours": {"cursor": "bm90IG91cnM"},
    "empty cursor": {"cursor": ""},
    "a cursor of no alphabet": {"cursor": "💥"},
    "limit in e-notation": {"start_time": "2026-01-01T00:00:00Z", "limit": "1e2"},
    "limit behind a space": {"start_time": "2026-01-01T00:00:00Z", "limit": " 5"},
    "limit with a fraction": {"start_time": "2026-01-01T00:00:00Z", "limit": "5.0"},
    "limit in other digits": {"start_time": "2026-01-01T00:00:00Z", "limit": "٥"},
    "limit empty": {"start_time": "2026-01-01T00:00:00Z", "limit": ""},
    "limit huge": {"start_time": "2026-01-01T00:00:00Z", "limit": "1" * 400},
    "the year 0": {"start_time": "0000-01-01T00:00:00Z"},
    "the year 10000": {"start_time": "10000-01-01T00:00:00Z"},
    "a leap second": {"start_time": "2016-12-31T23:59:60Z"},
    "an offset of a day": {"start_time": "2026-01-01T00:00:00+24:00"},
    "too fine a fraction": {"start_time": "2026-01-01T00:00:00.1234567890Z"},
    "a day alone": {"start_time": "2026-01-01"},
    "seconds of the epoch": {"start_time": "1790000000"},
    "a time before a space": {"start_time": "2026-01-01T00:00:00Z "},
    "an empty time": {"start_time": ""},
    "end before start by a nanosecond": {
        "start_time": "2026-01-01T00:00:00.000000002Z",
        "end_time": "2026-01-01T00:00:00.000000001Z",
    },
    "end at start, in other digits": {
        "start_time": "2026-01-01T00:00:00.0004Z",
        "end_time": "2026-01-01T01:00:00.000400000+01:00",
    },
    "a fraction of a minute": {"start_time": "2026-01-01T00:00.5Z"},
    "two start_times": [("start_time", "2026-01-01T00:00:00Z"), ("start_time", "2026-01-01T00:00:00Z")],
    "two cursors": [("cursor", "YQ"), ("cursor", "YQ")],
    "a key with NUL": {"start_time": "2026-01-01T00:00:00Z", "api_keys": "a\0"},
    "a key too long": {"start_time": "2026-01-01T00:00:00Z", "api_keys": "x" * 256},
    "too many keys": [("start_time", "2026-01-01T00:00:00Z"), *[("api_keys", "x")] * 1001],
    "filters beyond a cursor": [
        ("start_time", "2026-01-01T00:00:00Z"),
        *[("external_entity_ids", f"{n:03d}" + "x" * 200) for n in range(200)],
    ],
    "two limits": [("start_time", "2026-01-01T00:00:00Z"), ("limit", "1"), ("limit", "2")],
    "an unknown parameter": {"start_time": "2026-01-01T00:00:00Z", "api_key": "tg_x"},
}


@pytest.mark.parametrize("name", BAD)
async def test_invalid_parameters_are_400(sqlite_plane: ControlPlane, name: str) -> None:
    (await sqlite_plane.get(PATH, params=BAD[name])).refused(400)


async def test_a_forged_or_foreign_cursor_is_refused(sqlite_plane: ControlPlane) -> None:
    start_ms = await clock_ms(sqlite_plane.store) - HOUR_MS
    await fill(sqlite_plane, range(5), start_ms)
    cursor = (await sqlite_plane.get(PATH, params={"start_time": time_text(start_ms), "limit": 2})).ok()["pagination"][
        "cursor"
    ]
    assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
    other = (await sqlite_plane.another_workspace())["api_key"]
    (await sqlite_plane.get(PATH, params={"cursor": cursor}, key=other)).refused(400)
    for place in range(0, len(cursor), 7):
        changed = cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        (await sqlite_plane.get(PATH, params={"cursor": changed})).refused(400)
    groups = (await sqlite_plane.get("/v1/gateway/groups", params={"cursor": cursor})).refused(400)
    assert "cursor" in groups["error"]


async def test_a_workspace_sees_its_own_events_only(plane: ControlPlane) -> None:
    start_ms = await clock_ms(plane.store) - HOUR_MS
    await fill(plane, range(5), start_ms)
    other = (await plane.another_workspace())["api_key"]
    params = {"start_time": time_text(start_ms)}
    assert (await plane.get(PATH, params=params, key=other)).ok()["items"] == []
    assert (await plane.get(PATH, params={**params, "api_keys": "tg_key1"}, key=other)).ok()["items"] == []


async def test_a_key_without_scope_is_403_for_events(sqlite_plane: ControlPlane) -> None:
    params = {"start_time": "2026-01-01T00:00:00Z"}
    group = await sqlite_plane.group("customer-1")
    federated = (await sqlite_plane.post(f"/v1/gateway/groups/{group['id']}/api_keys", {})).ok()["api_key"]
    (await sqlite_plane.get(PATH, params=params, key=federated)).refused(403)
    invoke = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()["api_key"]
    (await sqlite_plane.get(PATH, params=params, key=invoke)).refused(403)
    other = await sqlite_plane.another_workspace(onboarded=False)
    (await sqlite_plane.get(PATH, params=params, key=other["api_key"])).refused(403)
    await set_workspace(sqlite_plane.store, "other", onboarded=True)
    (await sqlite_plane.get(PATH, params=params, key=other["api_key"])).ok()
    assert (await sqlite_plane.get(PATH, params=params, key="")).status == 401


async def test_without_a_holdback_events_are_shown_at_once(tmp_path: Any) -> None:
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", event_holdback_s=0.0) as plane:
        now_ms = await clock_ms(plane.store)
        await ingest_and_reader(plane.store, 0.0)[0].commit([event(1, now_ms - 5, workspace_id=plane.workspace_id)])
        for _ in range(200):
            answer = (await plane.get(PATH, params={"start_time": time_text(now_ms - 1000)})).ok()
            if answer["items"]:
                break
        assert keys_of(answer["items"]) == [event_key(1)]


@pytest.mark.parametrize(
    ("text", "wanted_ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T00:00:01", 10**9),
        ("1970-01-01T00:00:01.5z", 1_500_000_000),
        ("1970-01-01T01:00:01+01:00", 10**9),
        ("1970-01-01T01:00:01 01:00", 10**9),
        ("1969-12-31T23:00:01-01:00", 10**9),
        ("1970-01-01T00:00:00.0001Z", 100_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456_789),
        ("1970-01-01T00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01T00:00:00,25-00:00", 250_000_000),
        ("1970-01-02T00:00:00+23:59", 60 * 10**9),
    ],
)
def test_accepted_time_formats(text: str, wanted_ns: int) -> None:
    assert parse_time_ns(text) == wanted_ns


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)))
def test_any_utc_time_is_parsed_exactly(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    since, below_us = divmod(parse_time_ns(moment.isoformat()), 1000)
    assert (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=since), below_us) == (moment, 0)


@given(st.text(max_size=30))
def test_any_text_as_a_time_is_parsed_or_refused(text: str) -> None:
    try:
        parse_time_ns(text)
    except ValueError:
        return


async def test_every_event_is_in_exactly_one_of_consecutive_windows(sqlite_plane: ControlPlane) -> None:
    start_ms = await clock_ms(sqlite_plane.store) - HOUR_MS
    await fill(sqlite_plane, range(50), start_ms)
    edges = [start_ms + offset for offset in (0, 1, 999, 1000, 7000, 7001, 33_333, 49_000, 60_000)]
    keys: list[str] = []
    for begin, end in itertools.pairwise(edges):
        keys += keys_of(
            await read_all_pages(sqlite_plane, [("start_time", time_text(begin)), ("end_time", time_text(end))])
        )
    assert keys == [event_key(n) for n in range(50)]


def test_an_event_has_the_documented_members_in_their_order() -> None:
    row = SimpleNamespace(
        idempotency_key="01J",
        request_id="r",
        model_slug="a/b",
        external_entity_id="e",
        api_key_prefix="tg_x",
        input_tokens=3,
        output_tokens=2,
        cached_input_tokens=1,
    )
    event = public_event(row, "2026-01-31T12:00:00.000Z")
    detailed = event | {
        "details": shown_details(ShownEvent(0, "01J", "r", "a/b", "e", "tg_x", 3, 2, 1)),
        "cost": {"amount": "1.00", "currency": "EUR"},
    }
    for one in (event, detailed):
        documented = GatewayEventV1.model_validate(one)
        assert orjson.dumps(one) == documented.model_dump_json(by_alias=True).encode()
