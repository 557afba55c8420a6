"""Hourly sums: each final event is added once, and reports that read them equal the list of events.

See docs/reference/usage-reports.md#hourly-sums.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from control.edges.sql.billing.sum_records import Apart
from control.edges.sql.billing.tables import FIGURES, hourly_sum_progress, hourly_sums
from control.edges.sql.billing.usage_sources import sources_of
from control.edges.sql.events.clock import EventClock
from control.edges.sql.store import Store
from control.errors import InvalidFieldError
from control.records.events import EventWindow
from control.records.times import time_text
from control.records.usage_sums import Usage
from control.resources.billing.hourly_sums import HourlySumMaker
from control.resources.billing.report_groups import Grouping
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.usage_report import PageRoom, UsageReports
from control.resources.billing_events import EventReader
from control.retention import RetentionDays, delete_old_records
from policy.prices import DAY_MS
from tests.control.billing import HOLDBACK_S, clock_ms
from tests.control.plane import ControlPlane, Json
from tests.control.reports import (
    CALLS,
    EXAMPLES,
    GROUPINGS,
    PATH,
    added_up,
    check_reports_equal_events,
    events_of,
    forget_events,
    report,
    store_calls,
    sums_by_name,
    take,
    tokens,
)

HOUR_MS = 3_600_000
DAYS_S = 86_400.0


def maker(store: Store, holdback_s: float = HOLDBACK_S, **more: Any) -> HourlySumMaker:
    return HourlySumMaker(store, EventReader(store, holdback_s, EventClock()), more.pop("retention_days", 92), **more)


async def sums(store: Store) -> list[dict[str, Any]]:
    async with store.read() as conn:
        return [
            dict(row._mapping) for row in await conn.execute(select(hourly_sums).order_by(*hourly_sums.primary_key))
        ]


async def forget_sums(plane: ControlPlane) -> None:
    async with plane.store.write() as tx:
        await tx.conn.execute(text("DELETE FROM hourly_sums"))
        await tx.conn.execute(text("DELETE FROM hourly_sum_progress"))


async def test_reports_equal_the_list_of_events_however_far_sums_are_made(
    plane: ControlPlane, first_day_ms: int
) -> None:
    await store_calls(plane, first_day_ms, EXAMPLES)
    for final_days in (4, 3, 0):
        await maker(plane.store, final_days * DAYS_S + HOLDBACK_S).make()
        await check_reports_equal_events(plane, first_day_ms, 5_000, 2)
        await check_reports_equal_events(plane, first_day_ms, 0, 3)


@pytest.mark.soak
@given(calls=CALLS, start=st.integers(0, DAY_MS), limit=st.integers(1, 4), final=st.integers(0, 120))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
async def test_reports_of_any_calls_with_any_sums_equal_the_list_of_events(
    plane: ControlPlane, first_day_ms: int, calls: list[Any], start: int, limit: int, final: int
) -> None:
    await forget_events(plane)
    await forget_sums(plane)
    await store_calls(plane, first_day_ms, calls)
    await maker(plane.store, final * 3600 + HOLDBACK_S, events_at_once=3).make()
    await check_reports_equal_events(plane, first_day_ms, start, limit)


async def test_whole_hours_are_reported_after_their_events_are_deleted(plane: ControlPlane, first_day_ms: int) -> None:
    calls = [
        (first_day_ms + n * HOUR_MS + n, f"acme/m{n % 2}", f"c-{n % 3}", "tg_a", tokens(n, 2, 1)) for n in range(60)
    ]
    await take(plane, *calls)
    start_ms = first_day_ms + 3 * HOUR_MS
    end_ms = first_day_ms + 50 * HOUR_MS
    listed = await events_of(plane, start_ms, end_time=time_text(end_ms), limit=1000)
    await maker(plane.store).make()
    await forget_events(plane)
    for by in GROUPINGS:
        items = await report(plane, start_ms, by, end=time_text(end_ms), limit=2)
        assert sums_by_name(items, by) == added_up(listed, by)
        theirs = await report(plane, start_ms, by, end=time_text(end_ms), external_entity_id="c-1")
        of_them = [one for one in listed if one["externalEntityId"] == "c-1"]
        assert sums_by_name(theirs, by) == added_up(of_them, by)


async def test_entities_of_sums_and_of_events_are_paged_together(plane: ControlPlane, first_day_ms: int) -> None:
    """Some are in one of both only, and more than are looked up at once."""
    old = [(first_day_ms + n, "acme/chat", f"c-{n % 150}", f"tg_{n % 3}", tokens(n, 1, 0)) for n in range(250)]
    new = [(first_day_ms + DAY_MS + n, "acme/chat", f"c-{n}", "tg_0", tokens(n, 1, 0)) for n in range(120, 260)]
    await take(plane, *old, *new)
    await maker(plane.store, (await clock_ms(plane.store) - first_day_ms - DAY_MS) / 1e3).make()
    listed = await events_of(plane, first_day_ms, limit=1000)
    for by in ("entity", "key"):
        assert sums_by_name(await report(plane, first_day_ms, by, limit=70), by) == added_up(listed, by)


async def test_each_sum_has_its_hour_group_key_and_context_apart(plane: ControlPlane, first_day_ms: int) -> None:
    root = await plane.group("parent")
    child = await plane.group("child", parent=root["id"])
    ids = {"parent": root["id"], "child": child["id"], "gone": "grp_gone"}
    calls: Sequence[tuple[str, str, int, int, int]] = (
        ("parent", "tg_a", 5, 200, 128_000),
        ("parent", "tg_a", HOUR_MS - 1, 499, 0),
        ("parent", "tg_a", HOUR_MS, 200, 1),
        ("child", "tg_b", 7, 200, 128_001),
        ("child", "tg_b", 8, 500, 600_000),
        ("gone", "tg_c", 9, 200, 7),
    )
    await take(
        plane,
        *((first_day_ms + at, "acme/chat", who, key, tokens(count, 2, 0)) for who, key, at, _, count in calls),
        more=[{"group_id": ids[who], "status": status} for who, _, _, status, _ in calls],
    )
    await maker(plane.store).make()
    by_place = {
        (one["external_entity_id"], one["hour_ms"] - first_day_ms, one["above_input_tokens"]): one
        for one in await sums(plane.store)
    }
    assert {
        place: (one["group_path"], one["api_key_prefix"], one["calls"], one["errors"], one["input_tokens"])
        for place, one in by_place.items()
    } == {
        ("parent", 0, 0): (f"{root['id']}/", "tg_a", 2, 1, 128_000),
        ("parent", HOUR_MS, 0): (f"{root['id']}/", "tg_a", 1, 0, 1),
        ("child", 0, 128_000): (f"{root['id']}/{child['id']}/", "tg_b", 1, 0, 128_001),
        ("child", 0, 512_000): (f"{root['id']}/{child['id']}/", "tg_b", 1, 1, 600_000),
        ("gone", 0, 0): ("grp_gone/", "tg_c", 1, 0, 7),
    }
    one = by_place["parent", 0, 0]
    assert (one["day_ms"], one["model_slug"], one["service_tier"]) == (first_day_ms, "acme/chat", "")
    recorded = {"calls": 2, "errors": 1, "per_call_charges": 2, "input_tokens": 128_000, "output_tokens": 4}
    assert {name: one[name] for name in FIGURES} == {name: recorded.get(name, 0) for name in FIGURES}


async def test_an_hour_that_is_not_final_has_no_sums(plane: ControlPlane) -> None:
    hour_ms = (await clock_ms(plane.store)) // HOUR_MS * HOUR_MS
    await take(plane, (hour_ms - 1, "acme/chat", "c", "tg_a", tokens(1, 1, 0)))
    await maker(plane.store, 2 * 3600).make()
    assert await sums(plane.store) == []


class StoppedError(Exception):
    """Ends a maker in the middle of its work."""


async def test_making_goes_on_after_any_portion_where_it_stopped(
    plane: ControlPlane, first_day_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portions end within an hour too, and between events of the same millisecond none does."""
    calls = [
        (first_day_ms + n // 3 * (HOUR_MS // 4), "acme/chat", f"c-{n % 2}", "tg_a", tokens(n, 1, 0)) for n in range(40)
    ]
    await take(plane, *calls)
    listed = await events_of(plane, first_day_ms, limit=1000)
    transact = Store.transact
    number = 0

    async def interrupted(store: Store, work: Any) -> Any:
        nonlocal number
        number += 1
        if number % 2 == 0:
            raise StoppedError
        return await transact(store, work)

    monkeypatch.setattr(Store, "transact", interrupted)
    stops = 0
    while True:
        try:
            await maker(plane.store, events_at_once=4).make()
            break
        except StoppedError:
            stops += 1
            for by in GROUPINGS:
                assert sums_by_name(await report(plane, first_day_ms, by), by) == added_up(listed, by)
    assert stops > 5
    assert sum(one["calls"] for one in await sums(plane.store)) == 40
    for by in GROUPINGS:
        assert sums_by_name(await report(plane, first_day_ms, by), by) == added_up(listed, by)


async def test_several_makers_add_each_event_once(plane: ControlPlane, first_day_ms: int) -> None:
    calls = [(first_day_ms + n * 1000, "acme/chat", f"c-{n % 2}", "tg_a", tokens(n, 1, 0)) for n in range(300)]
    await take(plane, *calls)
    await asyncio.gather(*(maker(plane.store, events_at_once=20).make() for _ in range(3)))
    rows = await sums(plane.store)
    assert sum(one["calls"] for one in rows) == 300
    assert sum(one["input_tokens"] for one in rows) == sum(range(300))


async def test_events_are_deleted_only_after_they_are_added(plane: ControlPlane, first_day_ms: int) -> None:
    """Whatever their age: the making of sums may have failed for long."""
    calls = [(first_day_ms + n * HOUR_MS, "acme/chat", f"c-{n % 2}", "tg_a", tokens(n, 1, 0)) for n in range(48)]
    await take(plane, *calls)
    listed = await events_of(plane, first_day_ms, limit=1000)
    until_ms = first_day_ms + DAY_MS + HOUR_MS // 2
    now_ms = await clock_ms(plane.store)
    await maker(plane.store, (now_ms - until_ms) / 1e3).make()
    days = RetentionDays(events=1, sums=400, audit=400)
    await delete_old_records(plane.store, days)
    events = await events_of(plane, first_day_ms, limit=1000)
    assert [one["timestamp"] for one in events] == [time_text(first_day_ms + n * HOUR_MS) for n in range(24, 48)]
    for by in GROUPINGS:
        assert sums_by_name(await report(plane, first_day_ms, by), by) == added_up(listed, by)
    await maker(plane.store).make()
    await delete_old_records(plane.store, days)
    assert await events_of(plane, first_day_ms, limit=1000) == []
    for by in GROUPINGS:
        assert sums_by_name(await report(plane, first_day_ms, by), by) == added_up(listed, by)


REFUSED: dict[str, tuple[float, float, str]] = {
    "begins within an hour": (1.5, 10, "start"),
    "ends within an hour": (1, 10.5, "end"),
    "lies within an hour": (1.25, 1.5, "start"),
    "begins before the sums": (-24 * 10, 10, "start"),
}
"""Start and end in hours after the first day, and the field at fault."""


async def test_windows_whose_events_and_sums_are_deleted_are_refused(plane: ControlPlane, first_day_ms: int) -> None:
    """Events are kept for a day here, and sums for eight."""
    await take(plane, *((first_day_ms + n * HOUR_MS, "acme/chat", "c", "tg_a", tokens(n, 1, 0)) for n in range(48)))
    await maker(plane.store).make()
    events = EventReader(plane.store, HOLDBACK_S, EventClock())
    reports = UsageReports(plane.store, events, retention_days=1, sums_retention_days=8)

    async def read(start: float, end: float) -> int:
        window = EventWindow(plane.workspace_id, first_day_ms + int(start * HOUR_MS), first_day_ms + int(end * HOUR_MS))
        page = await reports.first_page(ReportQuery(window, Grouping.DAY), PageRoom(100))
        return sum(group.totals.usage.calls for group in page.groups)

    refused = {}
    for name, (start, end, _) in REFUSED.items():
        with pytest.raises(InvalidFieldError) as caught:
            await read(start, end)
        refused[name] = caught.value.field
    assert refused == {name: field for name, (_, _, field) in REFUSED.items()}
    assert await read(1, 10) == 9
    assert await read(1, 24 * 5 + 0.5) == 47  # ends while events are kept


async def test_usage_page_shows_days_whose_events_are_deleted(plane: ControlPlane, first_day_ms: int) -> None:
    await take(plane, *((first_day_ms + n * DAY_MS, "acme/chat", "c", "tg_a", tokens(n, 1, 0)) for n in range(4)))
    await maker(plane.store).make()
    await forget_events(plane)
    events = EventReader(plane.store, HOLDBACK_S, EventClock())
    reports = UsageReports(plane.store, events, retention_days=1, sums_retention_days=400)
    window = await reports.recent_days(plane.workspace_id, "c", 31)
    async with plane.store.read() as conn:
        (source,) = await sources_of(conn, replace(window, end_ms=first_day_ms + 4 * DAY_MS))
        days = await source.totals(Apart.KEY)
    figures = {day.day_ms: sums.figures for day in days for sums in day.slices()}
    assert figures == {first_day_ms + n * DAY_MS: [Usage(calls=1, input=n, output=1).figures] for n in range(4)}


async def test_sums_past_their_retention_are_deleted(plane: ControlPlane, first_day_ms: int) -> None:
    await take(plane, *((first_day_ms + n * DAY_MS, "acme/chat", "c", "tg_a", tokens(n, 1, 0)) for n in range(4)))
    await maker(plane.store).make()
    now_ms = await clock_ms(plane.store)
    days = RetentionDays(events=92, sums=(now_ms - first_day_ms) / DAY_MS - 1.5, audit=400)
    assert await delete_old_records(plane.store, days) == 1
    assert [one["day_ms"] for one in await sums(plane.store)] == [first_day_ms + n * DAY_MS for n in (1, 2, 3)]


async def test_another_workspace_has_sums_of_its_own(plane: ControlPlane, first_day_ms: int) -> None:
    other = await plane.another_workspace()
    await take(plane, (first_day_ms, "acme/chat", "c", "tg_a", tokens(5, 1, 0)))
    await maker(plane.store).make()
    async with plane.store.read() as conn:
        assert (await conn.execute(select(hourly_sum_progress.c.workspace_id))).scalars().all() == [plane.workspace_id]
    for by in GROUPINGS:
        params: Json = {"start": time_text(first_day_ms), "group_by": by}
        assert (await plane.get(PATH, params=params, key=other["api_key"])).ok()["items"] == []
