"""The list of requests: what proxies post to `/internal/v1/requests`, `GET /v1/gateway/requests`, on both databases.

See docs/reference/management-api.md#requests.
"""

import itertools
from typing import Any

import pytest
from sqlalchemy import func, select

from control.edges.sql.events.clock import database_ms
from control.edges.sql.traffic import requests as request_rows
from control.edges.sql.traffic.request_tables import request_count, requests
from control.records.times import time_text
from control.records.traffic import RequestFilter
from control.resources.traffic.requests import add_listed, read_requests
from control.retention import RetentionDays, delete_old_records
from policy.billing import BillingEvent
from policy.traffic import ListedRequest
from tests.control.billing import event, ingest_and_reader
from tests.control.plane import TOKEN, Answer, ControlPlane, Json

PATH = "/v1/gateway/requests"
DAY_MS = 86_400_000
_ids = itertools.count(1)


async def now_ms(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        return await database_ms(conn)


def row(plane: ControlPlane, ended_ms: int, **more: Any) -> ListedRequest:
    id = next(_ids)
    members: Json = {
        "id": id,
        "workspace_id": plane.workspace_id,
        "timestamp_ms": ended_ms,
        "request_id": f"r-{id}",
        "external_entity_id": "customer",
        "api_key_prefix": "tg_abc",
        "slug": "acme/chat",
        "path": "/v1/chat/completions",
        "status": 200,
        "error_code": "",
        "limit_group_id": "",
        "limit_type": "",
        "limit_unit": "",
        "limit_threshold": "",
        "first_byte_us": 1500,
        "duration_us": 20_250,
        "event_key": "",
        "weight": 1,
    }
    return ListedRequest(**(members | more))


async def post(plane: ControlPlane, *rows: ListedRequest) -> Answer:
    return await plane.post("/internal/v1/requests", {"rows": [one.to_wire() for one in rows]}, key=TOKEN)


async def page(plane: ControlPlane, **query: Any) -> Json:
    answer: Json = (await plane.get(PATH, params=query)).ok()
    return answer


async def ids(plane: ControlPlane, **query: Any) -> list[str]:
    """The request ids of all pages."""
    answer = await page(plane, **query)
    names = [item["request_id"] for item in answer["items"]]
    while answer["pagination"]["has_more"]:
        answer = await page(plane, cursor=answer["pagination"]["cursor"])
        names += [item["request_id"] for item in answer["items"]]
    return names


async def commit(plane: ControlPlane) -> BillingEvent:
    """Commit an event of this workspace, whose slug has a price."""
    price = {"slug": "acme/chat", "valid_from": "2026-01-01", "currency": "EUR"}
    (await plane.put("/v1/gateway/prices", price | {"input_per_million": "3", "output_per_million": "15"})).ok()
    billed = event(1, await now_ms(plane), workspace_id=plane.workspace_id)
    await ingest_and_reader(plane.store, 0.0)[0].commit([billed])
    return billed


async def counts(plane: ControlPlane) -> tuple[int, int]:
    """The number of rows, and what the database says it is."""
    async with plane.store.read() as conn:
        rows = (await conn.execute(select(func.count()).select_from(requests))).scalar_one()
        return rows, (await conn.execute(select(request_count.c.value))).scalar_one()


def limit_of(
    group_id: str | None, type: str, unit: str | None, threshold: int | str | None, key: str | None = None
) -> Json:
    """The member `limit` of an item."""
    return {"group_id": group_id, "api_key_prefix": key, "type": type, "unit": unit, "threshold": threshold}


async def test_an_item_of_a_refusal_has_the_documented_form(plane: ControlPlane) -> None:
    ended_ms = await now_ms(plane)
    limit = ("grp_1", "REQUEST", "MINUTE", "100")
    names = ("limit_group_id", "limit_type", "limit_unit", "limit_threshold")
    refusal = row(plane, ended_ms, status=429, error_code="RATE_LIMITED", **dict(zip(names, limit, strict=True)))
    assert (await post(plane, refusal)).ok() == {}
    answer = await page(plane)
    assert (answer["sampled"], answer["pagination"]) == (False, {"has_more": False, "cursor": None})
    assert answer["items"] == [
        {
            "request_id": refusal.request_id,
            "timestamp": time_text(ended_ms),
            "external_entity_id": "customer",
            "api_key_prefix": "tg_abc",
            "slug": "acme/chat",
            "path": "/v1/chat/completions",
            "status": 429,
            "error_code": "RATE_LIMITED",
            "limit": limit_of("grp_1", "REQUEST", "MINUTE", 100),
            "time_to_first_byte_ms": 1.5,
            "duration_ms": 20.25,
            "tokens": None,
            "cost": None,
            "event_key": None,
            "weight": 1,
        }
    ]


@pytest.mark.parametrize(
    ("limit", "answered"),
    [
        (("", "REQUEST", "SECOND", "3"), limit_of(None, "REQUEST", "SECOND", 3)),
        (("g", "SPEND", "DAY", "1.50"), limit_of("g", "SPEND", "DAY", "1.50")),
        (("g", "SPEND", "DAY", "5"), limit_of("g", "SPEND", "DAY", "5")),
        (("g", "BALANCE", "", ""), limit_of("g", "BALANCE", None, None)),
        (("key_tg_abc", "SPEND", "DAY", "5"), limit_of(None, "SPEND", "DAY", "5", "tg_abc")),
        (("key_own_abc", "REQUEST", "MINUTE", "5"), limit_of(None, "REQUEST", "MINUTE", 5, "own_abc")),
    ],
)
async def test_limits_of_all_kinds_are_shown(
    plane: ControlPlane, limit: tuple[str, str, str, str], answered: Json
) -> None:
    names = ("limit_group_id", "limit_type", "limit_unit", "limit_threshold")
    await post(plane, row(plane, 1, **dict(zip(names, limit, strict=True))))
    assert [item["limit"] for item in (await page(plane))["items"]] == [answered]


async def test_unknown_members_are_null(plane: ControlPlane) -> None:
    await post(plane, row(plane, 1, slug="", external_entity_id="", first_byte_us=None, status=499))
    (item,) = (await page(plane))["items"]
    names = ("slug", "external_entity_id", "time_to_first_byte_ms", "error_code", "limit")
    assert [item[name] for name in names] == [None] * 5


async def test_tokens_and_cost_are_those_of_the_event(plane: ControlPlane) -> None:
    billed = await commit(plane)
    listed = row(plane, billed.ended_at_ms, event_key=billed.idempotency_key)
    await post(plane, listed, row(plane, billed.ended_at_ms, event_key="01K0000000000000000000NONE"))
    uncommitted, item = (await page(plane))["items"]
    assert (uncommitted["tokens"], uncommitted["cost"], uncommitted["event_key"]) == (None, None, None)
    input, output, cached = billed.tokens
    assert item["tokens"] == {"inputTokens": input, "outputTokens": output, "cachedInputTokens": cached}
    assert item["event_key"] == billed.idempotency_key
    # 71 uncached and 30 cached input tokens at the same price, and 20 output tokens
    assert item["cost"] == {"amount": "0.000603", "currency": "EUR"}


async def test_another_workspace_sees_neither_rows_nor_events(plane: ControlPlane) -> None:
    other = await plane.another_workspace()
    billed = await commit(plane)
    foreign = row(plane, 5, workspace_id=other["workspace_id"], event_key=billed.idempotency_key)
    await post(plane, row(plane, 5, request_id="same"), foreign, row(plane, 5, workspace_id="ws_gone"))
    assert await ids(plane) == ["same"]
    answer = (await plane.get(PATH, key=other["api_key"])).ok()
    assert [(item["request_id"], item["event_key"]) for item in answer["items"]] == [(foreign.request_id, None)]
    assert (await plane.get(PATH, params={"request_id": "same"}, key=other["api_key"])).ok()["items"] == []
    assert await counts(plane) == (2, 2)
    await post(plane, *(row(plane, number) for number in range(3)))
    cursor = (await page(plane, limit=1))["pagination"]["cursor"]
    (await plane.get(PATH, params={"cursor": cursor}, key=other["api_key"])).refused(400, field="cursor")


async def test_rows_are_added_once(plane: ControlPlane) -> None:
    rows = [row(plane, 7) for _ in range(3)]
    await post(plane, *rows)
    await post(plane, *rows, row(plane, 7))
    assert len(await ids(plane)) == 4
    assert await counts(plane) == (4, 4)


async def test_pages_are_newest_first_and_have_each_row_once(plane: ControlPlane) -> None:
    rows = [row(plane, 1000 + number // 3) for number in range(20)]
    await post(plane, *rows)
    newest_first = [one.request_id for one in sorted(rows, key=lambda one: (one.timestamp_ms, one.id), reverse=True)]
    for limit in (1, 3, 7, 100):
        assert await ids(plane, limit=limit) == newest_first
        assert await ids(plane, limit=limit, status="2xx") == newest_first


FILTERS: tuple[Json, ...] = (
    {"request_id": "r-x"},
    {"external_entity_id": "other"},
    {"api_key_prefix": "tg_other"},
    {"slug": "acme/other"},
    {"statuses": (429, 429)},
    {"statuses": (400, 499)},
    {"statuses": (500, 599)},
    {"start_ms": 1_000_004, "end_ms": 1_000_009},
)


def selects(selection: RequestFilter, one: ListedRequest) -> bool:
    """The meaning of the filters, told plainly."""
    names = ("request_id", "external_entity_id", "api_key_prefix", "slug")
    least, most = selection.statuses or (0, 999)
    start_ms = 0 if selection.start_ms is None else selection.start_ms
    end_ms = 1 << 60 if selection.end_ms is None else selection.end_ms
    is_equal = all(getattr(selection, name) in (None, getattr(one, name)) for name in names)
    return is_equal and least <= one.status <= most and start_ms <= one.timestamp_ms < end_ms


@pytest.mark.parametrize("most_seen", [2, 10_000])
async def test_any_filters_select_what_they_say(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, most_seen: int
) -> None:
    monkeypatch.setattr(request_rows, "MOST_SEEN", most_seen)
    choices = itertools.product(
        (200, 404, 429, 502), ("customer", "other"), ("tg_abc", "tg_other"), ("acme/chat", "acme/other")
    )
    rows = [
        row(plane, 1_000_000 + number % 13, status=status, external_entity_id=entity, api_key_prefix=key, slug=slug)
        for number, (status, entity, key, slug) in enumerate(choices)
    ]
    rows += [row(plane, 1_000_000 + number, request_id="r-x", status=200 + 229 * (number % 2)) for number in range(6)]
    await post(plane, *rows)
    rows.sort(key=lambda one: (one.timestamp_ms, one.id), reverse=True)
    for one, two in itertools.combinations_with_replacement((*FILTERS, {}), 2):
        selection = RequestFilter(plane.workspace_id, **{**one, **two})
        before = None
        listed: list[ListedRequest] = []
        while True:
            answer = await read_requests(plane.store, selection, before, 3)
            listed += answer.rows
            if (before := answer.next) is None:
                break
        assert listed == [request for request in rows if selects(selection, request)], selection


@pytest.mark.parametrize(("status", "number"), [("429", 2), ("4xx", 3), ("2xx", 1), ("500", 0)])
async def test_a_status_or_a_class_of_them_is_selected(plane: ControlPlane, status: str, number: int) -> None:
    await post(plane, *(row(plane, place, status=status) for place, status in enumerate((200, 429, 429, 404, 502))))
    assert len(await ids(plane, status=status)) == number


async def test_page_says_whether_an_item_stands_for_several_calls(plane: ControlPlane) -> None:
    await post(plane, row(plane, 1), row(plane, 2, weight=40))
    assert [(item["weight"]) for item in (await page(plane))["items"]] == [40, 1]
    assert (await page(plane))["sampled"]
    assert not (await page(plane, end_time=time_text(2)))["sampled"]


async def test_oldest_rows_go_beyond_the_bound(plane: ControlPlane) -> None:
    for number in range(5):
        await add_listed(plane.store, [row(plane, 100 * number + step) for step in range(4)], most=10)
    assert await counts(plane) == (10, 10)
    assert len(await ids(plane)) == 10
    stamps = [item["timestamp"] for item in (await page(plane))["items"]]
    assert stamps[-1] == time_text(202)


async def test_old_and_surplus_rows_are_deleted(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.retention.ROWS_AT_ONCE", 3)
    present_ms = await now_ms(plane)
    await post(plane, *(row(plane, present_ms - number * DAY_MS) for number in range(20)))
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400, requests=9.5))
    assert await counts(plane) == (10, 10)
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400, most_requests=4))
    assert await counts(plane) == (4, 4)
    assert (await page(plane))["items"][-1]["timestamp"] == time_text(present_ms - 3 * DAY_MS)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "4x"}, "status"),
        ({"status": "999"}, "status"),
        ({"status": "42９"}, "status"),
        ({"slug": "x" * 300}, "slug"),
        ({"request_id": ""}, "request_id"),
        ({"limit": 0}, "limit"),
        ({"cursor": "AAAA"}, "cursor"),
        ({"start_time": "yesterday-ish"}, "start_time"),
        ({"start_time": time_text(9), "end_time": time_text(8)}, "end_time"),
        ({"entity": "x"}, "entity"),
    ],
)
async def test_wrong_queries_name_the_field(plane: ControlPlane, query: Json, field: str) -> None:
    (await plane.get(PATH, params=query)).refused(400, field=field)


async def test_text_that_a_database_could_stumble_over_is_only_looked_for(plane: ControlPlane) -> None:
    strange = "r'\";--%_\\{}<script>"
    await post(plane, row(plane, 1, request_id=strange, path="/v1/%00/'"))
    assert await ids(plane, request_id=strange) == [strange]
    (await plane.get(PATH, params={"request_id": "a\0b"})).refused(400)


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_id": "x" * 200},
        {"request_id": "a\0b"},
        {"slug": None},
        {"status": "200"},
        {"status": True},
        {"weight": 0},
        {"timestamp_ms": -1},
        {"id": 2**63},
        {"duration_us": None},
    ],
)
async def test_malformed_rows_are_refused_as_a_whole(plane: ControlPlane, wrong: Json) -> None:
    wires = [row(plane, 1).to_wire(), row(plane, 2).to_wire() | wrong]
    answer = await plane.post("/internal/v1/requests", {"rows": wires}, key=TOKEN)
    answer.refused(400, field="rows.1")
    del wires[1]["status"]
    answer = await plane.post("/internal/v1/requests", {"rows": wires}, key=TOKEN)
    answer.refused(400, field="rows.1")
    assert await counts(plane) == (0, 0)


async def test_only_the_internal_token_adds_rows(plane: ControlPlane) -> None:
    answer = await plane.post("/internal/v1/requests", {"rows": []})
    assert answer.status == 401
