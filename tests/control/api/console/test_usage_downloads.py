"""A customer's statements and refused calls: of its own group alone, by session and by link.

See docs/reference/console.md#statements and docs/reference/console.md#refused-calls.
"""

import csv
from typing import Any

import pytest
from sqlalchemy import update

from control.edges.sql.tables import groups
from control.resources.traffic.requests import add_listed
from control.throttle import Allowance
from policy.billing import Tokens
from policy.prices import DAY_MS, date_text
from policy.traffic import ListedRequest
from tests.control.api.console.browser import Browser, logged_in
from tests.control.billing import clock_ms, event, ingest_and_reader
from tests.control.plane import SLUG, ControlPlane, Json, rate, running_plane
from tests.waiting import stay_within_one_day

REQUESTS = "/console/usage/requests"
STATEMENT = "/console/usage/statement"
SETTLED_MS = 120_000
"""The age of the calls: those of the last minute are not in a statement, as they are not final."""
PRICE = {"slug": SLUG, "valid_from": "2020-01-01", "currency": "EUR", "input_per_million": "2"}


@pytest.fixture
def within_one_day() -> None:
    stay_within_one_day(SETTLED_MS / 1e3)


async def customer(plane: ControlPlane, entity: str, **more: Any) -> tuple[Json, Json]:
    """A group, and a key of it."""
    group = await plane.group(entity, **more)
    return group, (await plane.post(f"/v1/gateway/groups/{group['id']}/api_keys", {"name": entity})).ok()


async def date_groups_before_their_calls(plane: ControlPlane) -> None:
    """Create all groups half a second before their first calls, which are older than the test and may be of the hour
    before; not earlier, as a group of last month has a statement of it."""
    async with plane.store.write() as tx:
        await tx.conn.execute(update(groups).values(created_at_ms=groups.c.created_at_ms - SETTLED_MS - 500))


async def link_of(plane: ControlPlane, group: Json) -> str:
    url: str = (await plane.post(f"/v1/gateway/groups/{group['id']}/usage_links", {})).ok()["url"]
    return url.removeprefix(Browser(plane).origin)


async def take(plane: ControlPlane, group: Json, key: Json, *ended_at_ms: int) -> None:
    """Store calls with 100 input tokens, 30 of them cached, and 20 output tokens."""
    ingest, _ = ingest_and_reader(plane.store, 1e9)
    whose = {"workspace_id": plane.workspace_id, "group_id": group["id"], "api_key_prefix": key["prefix"]}
    whose["external_entity_id"] = group["metadata"]["external_entity_id"]
    tokens = Tokens(input=100, output=20, cached_input=30)
    await ingest.commit([event(at_ms, at_ms, model_slug=SLUG, tokens=tokens, **whose) for at_ms in ended_at_ms])


async def price_calls(plane: ControlPlane) -> None:
    (await plane.put("/v1/gateway/prices", {**PRICE, "output_per_million": "8"})).ok()


async def list_calls(plane: ControlPlane, *rows: ListedRequest) -> None:
    await add_listed(plane.store, rows, 1_000)


def row_of(plane: ControlPlane, number: int, group: Json, key: str, at_ms: int, **more: Any) -> ListedRequest:
    """A listed call that a limit per minute of its own group refused after 5 ms."""
    fields: dict[str, Any] = {
        "id": number,
        "workspace_id": plane.workspace_id,
        "timestamp_ms": at_ms,
        "request_id": f"req-{number}",
        "external_entity_id": group["metadata"]["external_entity_id"],
        "api_key_prefix": key,
        "slug": SLUG,
        "path": "/v1/chat/completions",
        "status": 429,
        "error_code": "RATE_LIMITED",
        "limit_group_id": group["id"],
        "limit_type": "REQUEST",
        "limit_unit": "MINUTE",
        "limit_threshold": "5",
        "first_byte_us": None,
        "duration_us": 5_000,
        "event_key": "",
        "weight": 1,
    }
    return ListedRequest(**{**fields, **more})


def ids_in(answer: Any) -> list[str]:
    return [item["request_id"] for item in answer["items"]]


def rows_in(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


async def test_customer_sees_why_its_calls_were_refused(plane: ControlPlane) -> None:
    group, key = await customer(plane, "blue", models=[rate(5)])
    other, other_key = await customer(plane, "red")
    now = await clock_ms(plane.store)
    await list_calls(
        plane,
        row_of(plane, 1, group, key["prefix"], now - 3),
        row_of(plane, 2, group, key["prefix"], now - 2, status=200, error_code="", limit_type="", limit_unit=""),
        row_of(plane, 3, group, key["prefix"], now - 1, status=502, error_code="UPSTREAM_ERROR", limit_type=""),
        row_of(plane, 4, other, other_key["prefix"], now),
    )
    browser = await logged_in(plane, key["api_key"])
    answer = (await browser.get(REQUESTS)).ok()
    assert ids_in(answer) == ["req-3", "req-1"]
    refused = answer["items"][1]
    assert refused["limit"] == {"type": "REQUEST", "unit": "MINUTE", "threshold": 5, "own": True}
    assert {"group_id", "external_entity_id", "cost"}.isdisjoint(refused)
    assert (refused["error_code"], refused["status"], refused["own"]) == ("RATE_LIMITED", 429, True)
    assert answer["pagination"] == {"has_more": False, "cursor": None}
    assert ids_in((await browser.get(f"{REQUESTS}?request_id=req-2")).ok()) == ["req-2"]
    assert ids_in((await browser.get(f"{REQUESTS}?request_id=req-4")).ok()) == []
    linked = (await Browser(plane).get(f"{await link_of(plane, group)}/requests")).ok()
    assert linked == answer


async def test_calls_of_groups_below_are_found_by_their_id_and_name_no_group(plane: ControlPlane) -> None:
    top, _ = await customer(plane, "top", models=[rate(9)], mode="CASCADING")
    middle, key = await customer(plane, "middle", parent=top["id"])
    below, below_key = await customer(plane, "below", parent=middle["id"], models=[rate(3)])
    now = await clock_ms(plane.store)
    await list_calls(
        plane,
        row_of(plane, 1, middle, key["prefix"], now - 3, limit_group_id=top["id"], limit_threshold="9"),
        row_of(plane, 2, below, below_key["prefix"], now - 2, limit_threshold="3"),
    )
    browser = await logged_in(plane, key["api_key"])
    answer = (await browser.get(REQUESTS)).ok()
    assert ids_in(answer) == ["req-1"]
    assert answer["items"][0]["limit"] == {"type": "REQUEST", "unit": "MINUTE", "threshold": 9, "own": False}
    searched = (await browser.get(f"{REQUESTS}?request_id=req-2")).ok()
    (item,) = searched["items"]
    assert (item["own"], item["api_key_prefix"]) == (False, None)
    assert item["limit"] == {"type": "REQUEST", "unit": "MINUTE", "threshold": None, "own": False}
    for hidden in (top["id"], below["id"], "below", '"top"', below_key["prefix"], plane.workspace_id):
        assert hidden not in str(answer) + str(searched), hidden
    above = await logged_in(plane, below_key["api_key"])
    assert ids_in((await above.get(f"{REQUESTS}?request_id=req-1")).ok()) == []


async def test_limit_of_a_group_above_that_counts_the_groups_own_calls_is_its_own(plane: ControlPlane) -> None:
    top, _ = await customer(plane, "top", models=[rate(9)])
    below, key = await customer(plane, "below", parent=top["id"])
    now = await clock_ms(plane.store)
    balance = {"limit_type": "BALANCE", "limit_unit": "", "limit_threshold": ""}
    await list_calls(
        plane,
        row_of(plane, 1, below, key["prefix"], now, limit_group_id=top["id"], limit_threshold="9"),
        row_of(plane, 2, below, key["prefix"], now - 1, limit_group_id=top["id"], **balance),
    )
    items = (await (await logged_in(plane, key["api_key"])).get(REQUESTS)).ok()["items"]
    assert [item["limit"] for item in items] == [
        {"type": "REQUEST", "unit": "MINUTE", "threshold": 9, "own": True},
        {"type": "BALANCE", "unit": None, "threshold": None, "own": False},
    ]


async def test_calls_of_a_deleted_group_are_not_those_of_its_namesake(plane: ControlPlane) -> None:
    group, key = await customer(plane, "blue")
    now = await clock_ms(plane.store)
    old = row_of(plane, 1, group, key["prefix"], now)
    (await plane.delete(f"/v1/gateway/groups/{group['id']}")).ok()
    later, later_key = await customer(plane, "blue")
    revoked = row_of(plane, 2, later, "tg_revokedlong", now + 120_000)
    await list_calls(plane, old, row_of(plane, 3, later, later_key["prefix"], now + 1), revoked)
    browser = await logged_in(plane, later_key["api_key"])
    assert ids_in((await browser.get(REQUESTS)).ok()) == ["req-2", "req-3"]
    assert ids_in((await browser.get(f"{REQUESTS}?request_id=req-1")).ok()) == []


async def test_refused_calls_are_paged_for_one_group_alone(plane: ControlPlane) -> None:
    group, key = await customer(plane, "blue")
    _, other_key = await customer(plane, "red")
    now = await clock_ms(plane.store)
    await list_calls(plane, *(row_of(plane, number, group, key["prefix"], now - number) for number in range(3)))
    browser = await logged_in(plane, key["api_key"])
    first = (await browser.get(f"{REQUESTS}?limit=2")).ok()
    cursor = first["pagination"]["cursor"]
    second = (await browser.get(f"{REQUESTS}?cursor={cursor}")).ok()
    assert (ids_in(first), ids_in(second)) == (["req-0", "req-1"], ["req-2"])
    other = await logged_in(plane, other_key["api_key"])
    assert (await other.get(f"{REQUESTS}?cursor={cursor}")).refused(400)["details"][0]["field"] == "cursor"
    for query, field in (("external_entity_id=red", "external_entity_id"), ("request_id=", "request_id")):
        assert (await other.get(f"{REQUESTS}?{query}")).refused(400)["details"][0]["field"] == field


@pytest.mark.parametrize("portal_cost", [True, False])
async def test_money_of_refused_calls_is_shown_where_the_operator_allows_it(sqlite_url: str, portal_cost: bool) -> None:
    async with running_plane(sqlite_url, portal_cost=portal_cost) as plane:
        group, key = await customer(plane, "blue")
        money = {"error_code": "SPEND_LIMIT_EXCEEDED", "limit_type": "SPEND", "limit_threshold": "3.00"}
        await list_calls(plane, row_of(plane, 1, group, key["prefix"], await clock_ms(plane.store), **money))
        (item,) = (await (await logged_in(plane, key["api_key"])).get(REQUESTS)).ok()["items"]
        assert item["limit"]["threshold"] == ("3.00" if portal_cost else None)
        assert ("cost" in item) == portal_cost


@pytest.mark.usefixtures("within_one_day")
async def test_statement_has_the_calls_of_the_group_and_if_asked_those_below(sqlite_url: str) -> None:
    async with running_plane(sqlite_url, portal_cost=True) as plane:
        await price_calls(plane)
        group, key = await customer(plane, "=blue")
        below, below_key = await customer(plane, "below", parent=group["id"])
        other, other_key = await customer(plane, "red")
        await date_groups_before_their_calls(plane)
        now = await clock_ms(plane.store) - SETTLED_MS
        month = date_text(now // DAY_MS * DAY_MS)[:7]
        for whose, its_key, ages in (
            (group, key, range(2)),
            (below, below_key, range(2, 5)),
            (other, other_key, range(5, 9)),
        ):
            await take(plane, whose, its_key, *(now - age for age in ages))
        browser = await logged_in(plane, key["api_key"])
        answer = await browser.get(f"{STATEMENT}?month={month}")
        assert answer.headers["Content-Disposition"] == f'attachment; filename="statement-{month}-draft.csv"'
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        line, total = rows_in(answer.body)
        assert (line["entity"], line["status"], line["slug"], line["calls"]) == ("'=blue", "draft", SLUG, "2")
        assert (line["amount"], total["amount"]) == ("0.00072", "0.00")
        whole = await browser.get(f"{STATEMENT}?month={month}&with_groups_below=true")
        assert rows_in(whole.body)[0]["calls"] == "5"
        page = await Browser(plane).get(f"{await link_of(plane, group)}/statement?month={month}&format=html")
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "DRAFT" in page.body
        usage = (await browser.get("/console/usage/data")).ok()
        assert usage["statements"] == [{"month": month, "status": "draft"}]
        for hidden in ("red", "below", below["id"], other["id"]):
            assert hidden not in answer.body + whole.body, hidden


@pytest.mark.usefixtures("within_one_day")
async def test_statement_without_amounts_has_no_column_about_money(sqlite_plane: ControlPlane) -> None:
    await price_calls(sqlite_plane)
    group, key = await customer(sqlite_plane, "blue")
    await date_groups_before_their_calls(sqlite_plane)
    now = await clock_ms(sqlite_plane.store) - SETTLED_MS
    await take(sqlite_plane, group, key, now)
    month = date_text(now // DAY_MS * DAY_MS)[:7]
    browser = await logged_in(sqlite_plane, key["api_key"])
    (line,) = rows_in((await browser.get(f"{STATEMENT}?month={month}")).body)
    counts = {"calls": "1", "uncached_input_tokens": "70", "cached_input_tokens": "30", "output_tokens": "20"}
    assert counts.items() <= line.items()
    for text in (str(line), (await browser.get(f"{STATEMENT}?month={month}&format=html")).body):
        for hidden in ("EUR", "price", "per_million", "per million", "amount", "unpriced", "currency"):
            assert hidden not in text, hidden


async def test_statement_of_a_month_that_has_none_is_refused(sqlite_plane: ControlPlane) -> None:
    _, key = await customer(sqlite_plane, "blue")
    browser = await logged_in(sqlite_plane, key["api_key"])
    for query, field in (
        ("month=2999-01", "month"),
        ("month=1999-01", "month"),
        ("month=2026-13", "month"),
        ("month=9999-12", "month"),
        ("month=yesterday", "month"),
        ("", "month"),
        ("month=2026-11&format=pdf", "format"),
        ("month=2026-11&entity=red", "entity"),
    ):
        assert (await browser.get(f"{STATEMENT}?{query}")).refused(400)["details"][0]["field"] == field, query


async def test_downloads_count_as_looks_at_the_page_and_need_its_viewer(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, key = await customer(sqlite_plane, "blue")
    path = await link_of(sqlite_plane, group)
    for name in ("requests", "statement?month=2026-11"):
        (await Browser(sqlite_plane).get(f"/console/usage/{name}")).refused(401, "UNAUTHORIZED")
        (await (await logged_in(sqlite_plane)).get(f"/console/usage/{name}")).refused(403, "MISSING_SCOPE")
        (await Browser(sqlite_plane).get(f"{path}x/{name}")).refused(404, "NOT_FOUND")
        (await Browser(sqlite_plane).ask("POST", f"{path}/{name}")).refused(405)
    monkeypatch.setattr("control.throttle.USAGE_PAGE", Allowance("usage_page", 2, 3_600_000))
    browser = await logged_in(sqlite_plane, key["api_key"])
    (await browser.get(REQUESTS)).ok()
    (await Browser(sqlite_plane).get(f"{path}/data")).ok()
    for place in (REQUESTS, f"{path}/requests", f"{path}/statement?month=2026-11", f"{STATEMENT}?month=2026-11"):
        assert (await browser.get(place)).refused(429, "RATE_LIMITED")["retry_after"] > 1
