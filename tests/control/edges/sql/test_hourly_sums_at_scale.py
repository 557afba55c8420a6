"""A page of a report of whole hours reads its own sums and no event, however many sums there are.

`python -m bench.studies.usage_reports` measures the same at ten million events.
"""

import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from sqlalchemy import event, text

from control.edges.sql.billing.price_rows import put_price
from control.edges.sql.billing.sum_records import Apart, Entities
from control.edges.sql.billing.usage_sources import sources_of
from control.edges.sql.events.clock import EventClock
from control.edges.sql.store import Store
from control.records.events import EventWindow
from control.records.policy import PriceRecord
from control.resources.billing import usage_report
from control.resources.billing.report_groups import Grouping
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.usage_report import PageRoom, UsageReports
from control.resources.billing_events import EventReader
from policy.prices import DAY_MS, Price, token_prices
from tests.control.billing import HOLDBACK_S, clock_ms
from tests.control.plane import ControlPlane

WORKSPACE = "ws_1"
OTHER = "ws_2"
DAYS = 20
FEW = 200
MANY = 2000
LIMIT = 50
_NUMBERS = "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {}) SELECT n FROM s)"
_DAY = f"CAST(:first AS bigint) + d.n * {DAY_MS}"
_FILL = (
    "INSERT INTO hourly_sums (workspace_id, day_ms, hour_ms, external_entity_id, api_key_prefix, model_slug,"
    f" group_path, service_tier, above_input_tokens, calls, per_call_charges, input_tokens) SELECT :workspace, {_DAY},"
    f" {_DAY},"
    " 'customer-' || (100000 + e.n), 'tg_' || e.n, 'acme/m' || (e.n % 5), 'grp_/', '', 0, 1, 1, 10"
    f" FROM {_NUMBERS.format(DAYS - 1)} AS d CROSS JOIN {{entities}} AS e"
)
_PROGRESS = "INSERT INTO hourly_sum_progress VALUES (:workspace, :first, :until)"


async def filled(store: Store, workspace_id: str, entities: int) -> EventWindow:
    """A window of whole days, in which each entity has a sum on each day."""
    first_ms = (await clock_ms(store) // DAY_MS - DAYS) * DAY_MS
    window = EventWindow(workspace_id, first_ms, first_ms + DAYS * DAY_MS)
    async with store.write() as tx:
        statement = _FILL.format(entities=_NUMBERS.format(entities - 1))
        await tx.conn.execute(text(statement), {"workspace": workspace_id, "first": first_ms})
        parameters = {"workspace": workspace_id, "first": first_ms, "until": window.end_ms}
        await tx.conn.execute(text(_PROGRESS), parameters)
        await tx.conn.execute(text("ANALYZE"))
    return window


def reports_of(store: Store) -> UsageReports:
    return UsageReports(store, EventReader(store, HOLDBACK_S, EventClock()), 92, 400)


QUERIES = {
    "entities": (Grouping.ENTITY, ()),
    "keys": (Grouping.KEY, ()),
    "days of an entity": (Grouping.DAY, ("customer-100007",)),
    "slugs of an entity": (Grouping.SLUG, ("customer-100007",)),
}


def query(window: EventWindow, name: str) -> ReportQuery:
    by, entities = QUERIES[name]
    return ReportQuery(EventWindow(window.workspace_id, window.start_ms, window.end_ms, (), entities), by)


@asynccontextmanager
async def counted_store(database_url: str) -> AsyncIterator[tuple[Store, list[int]]]:
    """A store that no job uses, and the steps of SQLite's virtual machine on its connections, in tens."""
    steps = [0]

    def count() -> None:
        steps[0] += 10

    def watch(connection: Any, _record: object) -> None:
        connection.run_async(lambda driver: driver.set_progress_handler(count, 10))

    store = Store.at(database_url)
    event.listen(store.engine.sync_engine, "connect", watch)
    yield store, steps
    await store.close()


@pytest.mark.parametrize("name", QUERIES)
async def test_work_of_a_page_does_not_grow_with_other_entities(sqlite_url: str, name: str) -> None:
    async with counted_store(sqlite_url) as (store, steps):
        few = await filled(store, WORKSPACE, FEW)
        many = await filled(store, OTHER, MANY)
        reports = reports_of(store)
        price_list = (await reports.first_page(query(few, name), PageRoom(LIMIT))).price_list

        async def steps_to_read(window: EventWindow) -> int:
            """Read a page that has no totals of all entities, as the first one has."""
            report, room, before = query(window, name), PageRoom(LIMIT), steps[0]
            if report.entity is None:
                after = ("",) if report.by is Grouping.ENTITY else ("", "")
                await reports.next_page(report, after, room, price_list)
            else:
                await reports.first_page(report, room)
            return steps[0] - before

        few_steps = await steps_to_read(few)
        assert few_steps > 100
        assert await steps_to_read(many) < 1.2 * few_steps


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield statements
    event.remove(store.engine.sync_engine, "before_cursor_execute", note)


@pytest.mark.parametrize("by", Grouping)
async def test_whole_hours_with_sums_need_no_event(store: Store, by: Grouping) -> None:
    window = await filled(store, WORKSPACE, FEW)
    with statements_of(store) as statements:
        page = await reports_of(store).first_page(ReportQuery(window, by), PageRoom(1000))
    assert sum(group.totals.usage.calls for group in page.groups) == FEW * DAYS
    assert sum(group.totals.usage.input for group in page.groups) == 10 * FEW * DAYS
    assert not [statement for statement in statements if "idempotency_key" in statement or "FROM events" in statement]


SLUGS = 50
WIDE = 20
_FILL_WIDE = _FILL.format(entities=_NUMBERS.format(WIDE * SLUGS - 1)).replace(
    "'customer-' || (100000 + e.n), 'tg_' || e.n, 'acme/m' || (e.n % 5)",
    f"'customer-' || (100000 + e.n / {SLUGS}), 'tg_' || (e.n / {SLUGS}), 'acme/m' || (e.n % {SLUGS})",
)


async def filled_wide(plane: ControlPlane) -> EventWindow:
    """A window in which each entity has a sum of each slug on each day, and each slug a price of its own on each."""
    store = plane.store
    first_ms = (await clock_ms(store) // DAY_MS - DAYS) * DAY_MS
    amounts = token_prices(Decimal(3), Decimal(15), cached_input=Decimal("0.3"))
    async with store.write() as tx:
        parameters = {"workspace": plane.workspace_id, "first": first_ms}
        await tx.conn.execute(text(_FILL_WIDE), parameters)
        until_ms = first_ms + DAYS * DAY_MS
        await tx.conn.execute(text(_PROGRESS), {**parameters, "until": until_ms})
        for slug, day in product(range(SLUGS), range(DAYS)):
            price = Price(f"acme/m{slug}", first_ms + day * DAY_MS, "EUR", amounts)
            await put_price(tx, plane.workspace_id, PriceRecord(price, 1))
    return EventWindow(plane.workspace_id, first_ms, until_ms)


@contextmanager
def python_calls() -> Iterator[list[int]]:
    """Counts the calls of Python functions on this thread, and on those that begin meanwhile."""
    calls = [0]

    def count(_frame: Any, kind: str, _arg: object) -> None:
        calls[0] += kind == "call"

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.parametrize("by", Grouping)
async def test_a_line_for_each_sum_takes_one_call_to_price_and_no_statement_of_its_own(
    plane: ControlPlane, by: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_report, "LONGEST_PAGE_S", float("inf"))  # the profile slows it, and a busy machine
    window = await filled_wide(plane)
    reports = reports_of(plane.store)
    await reports.first_page(ReportQuery(window, by), PageRoom(1000))
    with statements_of(plane.store) as statements, python_calls() as calls:
        page = await reports.first_page(ReportQuery(window, by), PageRoom(1000))
        costs = [group.totals.cost for group in page.groups]
    lines = sum(len(group.sums) for group in page.groups)
    sums = WIDE * SLUGS * DAYS
    prices = SLUGS * DAYS
    assert lines == (sums if by in (Grouping.ENTITY, Grouping.KEY) else prices)
    assert all(costs)
    assert len(statements) < 40
    assert calls[0] < lines + sums // 10 + 50 * prices + 10_000


async def test_a_page_of_many_lines_leaves_the_database_in_a_row_for_each_day(plane: ControlPlane) -> None:
    window = await filled_wide(plane)
    async with plane.store.read() as conn:
        (source,) = await sources_of(conn, window)
        days = await source.of_entities(Entities("", None), Apart.KEY)
    assert len(days) == DAYS
    assert sum([len(sums.figures) for day in days for sums in day.slices()]) == WIDE * SLUGS * DAYS
