"""Figures of traffic: what proxies post to `/internal/v1/traffic`, and `GET /v1/gateway/traffic`, on both databases.

See docs/reference/management-api.md#traffic.
"""

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select

from control.edges.sql.events.clock import database_ms
from control.edges.sql.traffic.tables import traffic, traffic_senders
from control.records.times import time_text
from control.records.traffic import KEPT
from control.resources.traffic.steps import Period, span_of
from control.retention import RetentionDays, delete_old_records
from policy.limits.alerts import ReachedLimit
from policy.traffic import BUCKETS, MINUTE_MS, TrafficRow
from tests.control.plane import TOKEN, Answer, ControlPlane, Json

ONE = "a" * 16
TWO = "b" * 16
PATH = "/v1/gateway/traffic"
HOUR_MS = 3_600_000
DAY_MS = 86_400_000


async def this_minute_ms(plane: ControlPlane) -> int:
    async with plane.store.read() as conn:
        return await database_ms(conn) // MINUTE_MS * MINUTE_MS


def row(plane: ControlPlane, minute_ms: int, slug: str = "acme/chat", calls: int = 1, **more: Any) -> Json:
    """A row of `calls` that succeeded within 20 ms, unless `more` says otherwise."""
    sums = (calls, more.get("errors", 0), more.get("refusals", 0), *more.get("tokens", (0, 0, 0)))
    buckets = [0] * BUCKETS
    buckets[2] = calls
    workspace_id = more.get("workspace_id", plane.workspace_id)
    return TrafficRow(workspace_id, slug, minute_ms, sums, tuple(more.get("buckets", buckets))).to_wire()


async def post(plane: ControlPlane, number: int, *rows: Json, sender: str = ONE) -> Answer:
    body = {"sender": sender, "number": number, "rows": list(rows)}
    return await plane.post("/internal/v1/traffic", body, key=TOKEN)


async def items(plane: ControlPlane, period: str = "hour", **more: Any) -> list[Json]:
    rows: list[Json] = (await plane.get(PATH, params={"period": period, **more})).ok()["items"]
    return rows


async def count(plane: ControlPlane, table: Any) -> int:
    async with plane.store.read() as conn:
        return int((await conn.execute(select(func.count()).select_from(table))).scalar_one())


async def test_an_item_has_the_documented_form_in_every_period(plane: ControlPlane) -> None:
    now_ms = await this_minute_ms(plane)
    (await post(plane, 1, row(plane, now_ms, calls=3, errors=1, tokens=(5, 2, 7)))).ok()
    (await post(plane, 1, row(plane, now_ms, refusals=1, calls=1, buckets=[0] * BUCKETS), sender=TWO)).ok()
    for period in Period:
        answer = (await plane.get(PATH, params={"period": period.value})).ok()
        (item,) = answer["items"]
        series = item.pop("series")
        sums = {"calls": 4, "errors": 1, "refusals": 1}
        tokens = {"uncached_input_tokens": 5, "cached_input_tokens": 2, "output_tokens": 7}
        first_byte = {"p50": 17.5, "p95": 24.2, "p99": 24.9}
        assert item == {"slug": "acme/chat", **sums, **tokens, "first_byte_ms": first_byte}
        span = span_of(period, None, now_ms)
        assert answer["step_s"] == span.steps.length_s
        assert 60 <= len(series) == span.count <= 120
        assert [one["start_time"] for one in (series[0], answer)] == [answer["start_time"]] * 2
        assert answer["end_time"] > time_text(now_ms) >= series[-2]["start_time"]
        (point,) = [one for one in series if one["calls"]]
        assert point == {"start_time": point["start_time"], **sums, "tokens": 14, "first_byte_p50_ms": 17.5}
        empty = {"calls": 0, "errors": 0, "refusals": 0, "tokens": 0, "first_byte_p50_ms": None}
        assert series[0] == {"start_time": answer["start_time"], **empty}


async def test_a_batch_is_added_once(plane: ControlPlane) -> None:
    now_ms = await this_minute_ms(plane)
    for number in (1, 1, 2, 1, 2):
        assert (await post(plane, number, row(plane, now_ms, calls=10**number))).ok() == {}
    await asyncio.gather(*(post(plane, 3, row(plane, now_ms, calls=1000)) for _ in range(5)))
    await post(plane, 3, row(plane, now_ms, calls=10_000), sender=TWO)
    assert [item["calls"] for item in await items(plane)] == [11_110]


async def test_proxies_that_add_to_the_same_slugs_at_once_do_not_disturb_each_other(plane: ControlPlane) -> None:
    """Whatever the order of their rows. They are locked in one order: a deadlock would cost retries."""
    now_ms = await this_minute_ms(plane)
    rows = [row(plane, now_ms - number % 3 * MINUTE_MS, f"acme/m{number}") for number in range(50)]
    orders = (rows, rows[::-1])
    posts = (
        post(plane, number, *orders[sender % 2], sender=f"{sender:016x}") for sender in range(6) for number in (1,)
    )
    assert {answer.status for answer in await asyncio.gather(*posts)} == {200}
    assert [item["calls"] for item in await items(plane)] == [6] * 50


async def test_only_existing_workspaces_have_traffic_and_each_sees_its_own(plane: ControlPlane) -> None:
    now_ms = await this_minute_ms(plane)
    other = await plane.another_workspace()
    theirs = row(plane, now_ms, "other/chat", workspace_id=other["workspace_id"])
    (await post(plane, 1, row(plane, now_ms), theirs, row(plane, now_ms, workspace_id="ws_gone"))).ok()
    assert [item["slug"] for item in await items(plane)] == ["acme/chat"]
    (item,) = (await plane.get(PATH, key=other["api_key"])).ok()["items"]
    assert item["slug"] == "other/chat"
    assert await count(plane, traffic) == 2 * len(KEPT)


async def test_busiest_slugs_come_first_and_the_rest_is_summed(plane: ControlPlane) -> None:
    now_ms = await this_minute_ms(plane)
    rows = [row(plane, now_ms - number * MINUTE_MS, f"acme/m{number}", calls=10 + number) for number in range(5)]
    (await post(plane, 1, *rows, row(plane, now_ms, "", calls=100, refusals=100))).ok()
    counts = [(item["slug"], item["calls"]) for item in await items(plane, limit=3)]
    assert counts == [("acme/m4", 14), ("acme/m3", 13), ("acme/m2", 12), (None, 100 + 10 + 11)]
    assert [(item["slug"], item["calls"]) for item in await items(plane, limit=1)] == [("acme/m4", 14), (None, 146)]
    assert [(item["slug"], item["calls"]) for item in await items(plane, slug="acme/m0")] == [("acme/m0", 10)]
    assert await items(plane, slug="acme/none") == []


async def test_a_clock_that_is_ahead_adds_to_the_current_step(plane: ControlPlane) -> None:
    now_ms = await this_minute_ms(plane)
    (await post(plane, 1, row(plane, now_ms + 10 * DAY_MS), row(plane, now_ms))).ok()
    assert [(item["calls"], item["series"]) for item in await items(plane, series="false")] == [(2, [])]
    (item,) = await items(plane)
    assert item["series"][-1]["calls"] + item["series"][-2]["calls"] == 2


async def test_old_steps_are_deleted(plane: ControlPlane) -> None:
    now_ms = await this_minute_ms(plane)
    ages_ms = [days * DAY_MS + minutes * MINUTE_MS for days in (0, 1, 20, 40) for minutes in range(25)]
    (await post(plane, 1, *(row(plane, now_ms - age_ms) for age_ms in ages_ms))).ok()
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400))
    async with plane.store.read() as conn:
        sums = select(traffic.c.step_s, func.sum(traffic.c.calls)).group_by(traffic.c.step_s)
        steps = sorted((step_s, int(calls)) for step_s, calls in await conn.execute(sums))
    assert steps == [(60, 50), (900, 50), (3600, 75), (21_600, 75)]
    assert await count(plane, traffic_senders) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sender": "me"}, "sender"),
        ({"number": 0}, "number"),
        ({"rows": {}}, "rows"),
        ({"rows": [{"slug": "acme/chat"}]}, "rows.0"),
        ({"minute_ms": 1}, "rows.0"),
        ({"sums": [1, 2]}, "rows.0"),
        ({"first_bytes": [-1] * BUCKETS}, "rows.0"),
        ({"slug": "a\0"}, "rows.0"),
        ({"limits_reached": {}}, "limits_reached"),
        ({"limits_reached": [{"workspace_id": "ws"}]}, "limits_reached.0"),
        ({"limits_reached": [dict.fromkeys(ReachedLimit._fields, "x" * 300)]}, "limits_reached.0"),
    ],
)
async def test_malformed_batch_is_refused_and_nothing_is_taken(
    sqlite_plane: ControlPlane, changes: Json, field: str
) -> None:
    plane = sqlite_plane
    now_ms = await this_minute_ms(sqlite_plane)
    body: Json = {"sender": ONE, "number": 1, "rows": [row(plane, now_ms)], "limits_reached": []}
    for name, value in changes.items():
        (body if name in body else body["rows"][0])[name] = value
    refused = (await plane.post("/internal/v1/traffic", body, key=TOKEN)).refused(400)
    assert field in refused["error"]
    assert await items(plane) == []
    (await plane.post("/internal/v1/traffic", body, key=plane.key)).refused(401)


@pytest.mark.parametrize("names", [ReachedLimit._fields, ReachedLimit._fields[:-1]])
async def test_limits_that_are_reached_are_taken_from_proxies_of_any_version(
    sqlite_plane: ControlPlane, names: tuple[str, ...]
) -> None:
    """An older proxy does not tell what was paid into a balance."""
    body: Json = {"sender": ONE, "number": 1, "rows": [], "limits_reached": [dict.fromkeys(names, "")]}
    (await sqlite_plane.post("/internal/v1/traffic", body, key=TOKEN)).ok()


async def test_the_period_must_be_one_that_is_kept(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.get(PATH, params={"period": "year"})).refused(400)


async def test_a_period_may_end_as_early_as_its_steps_are_kept(sqlite_plane: ControlPlane) -> None:
    plane = sqlite_plane
    now_ms = await this_minute_ms(sqlite_plane)
    ages = {"hour": 40 * HOUR_MS, "day": 20 * DAY_MS, "month": 0}
    (await post(plane, 1, *(row(plane, now_ms - age_ms) for age_ms in ages.values()))).ok()
    for period, step_s, gone_ms in (
        ("hour", 60, 2 * DAY_MS),
        ("day", 3600, 31 * DAY_MS),
        ("month", 21_600, 3 * DAY_MS),
    ):
        end_ms = now_ms - ages[period] + 1
        answer = (await plane.get(PATH, params={"period": period, "end_time": time_text(end_ms)})).ok()
        assert answer["step_s"] == step_s
        assert answer["end_time"] >= time_text(end_ms)
        (item,) = answer["items"]
        assert item["series"][-1]["calls"] == 1
        too_old = {"period": period, "end_time": time_text(now_ms - gone_ms)}
        (detail,) = (await plane.get(PATH, params=too_old)).refused(400)["details"]
        assert detail["field"] == "end_time"
