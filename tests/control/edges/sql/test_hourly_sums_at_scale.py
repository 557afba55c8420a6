"""A page of a report of whole hours reads its own sums and no event, however many sums there are.

`python -m bench.studies.usage_reports` measures the same at ten million events.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from control.edges.sql.events.clock import EventClock
from control.edges.sql.store import Store
from control.resources.billing.usage_report import Grouping, ReportQuery, UsageReports
from control.resources.billing_events import EventReader
from control.resources.records import Window
from policy.prices import DAY_MS
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
    f" group_path, service_tier, above_input_tokens, calls, input_tokens) SELECT :workspace, {_DAY}, {_DAY},"
    " 'customer-' || (100000 + e.n), 'tg_' || e.n, 'acme/m' || (e.n % 5), 'grp_/', '', 0, 1, 10"
    f" FROM {_NUMBERS.format(DAYS - 1)} AS d CROSS JOIN {{entities}} AS e"
)
_PROGRESS = "INSERT INTO hourly_sum_progress VALUES (:workspace, :first, :until)"


async def filled(store: Store, workspace_id: str, entities: int) -> Window:
    """A window of whole days, in which each entity has a sum on each day."""
    first_ms = (await clock_ms(store) // DAY_MS - DAYS) * DAY_MS
    window = Window(workspace_id, first_ms, first_ms + DAYS * DAY_MS)
    async with store.write() as tx:
        statement = _FILL.format(entities=_NUMBERS.format(entities - 1))
        await tx.conn.execute(text(statement), {"workspace": workspace_id, "first": first_ms})
        given = {"workspace": workspace_id, "first": first_ms, "until": window.end_ms}
        await tx.conn.execute(text(_PROGRESS), given)
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


def query(window: Window, name: str) -> ReportQuery:
    by, entities = QUERIES[name]
    return ReportQuery(Window(window.workspace_id, window.start_ms, window.end_ms, (), entities), by)


@asynccontextmanager
async def steps_of(store: Store) -> AsyncIterator[list[int]]:
    """Counts the steps of SQLite's virtual machine, in tens, on all connections of the store from now on."""
    taken = [0]

    def count() -> None:
        taken[0] += 10

    def watch(connection: Any, _record: object) -> None:
        connection.run_async(lambda driver: driver.set_progress_handler(count, 10))

    await store.close()  # its connections, which are not watched
    event.listen(store.engine.sync_engine, "connect", watch)
    yield taken
    event.remove(store.engine.sync_engine, "connect", watch)


@pytest.mark.parametrize("name", QUERIES)
async def test_work_of_a_page_does_not_grow_with_other_entities(sqlite_plane: ControlPlane, name: str) -> None:
    store = sqlite_plane.store
    few = await filled(store, WORKSPACE, FEW)
    many = await filled(store, OTHER, MANY)
    reports = reports_of(store)
    async with steps_of(store) as taken:
        await reports.first_page(query(few, name), LIMIT)
        first = taken[0]
        await reports.first_page(query(many, name), LIMIT)
    assert first > 100
    assert taken[0] - first < 1.2 * first


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield seen
    event.remove(store.engine.sync_engine, "before_cursor_execute", note)


@pytest.mark.parametrize("by", Grouping)
async def test_whole_hours_with_sums_need_no_event(store: Store, by: Grouping) -> None:
    window = await filled(store, WORKSPACE, FEW)
    with statements_of(store) as seen:
        page = await reports_of(store).first_page(ReportQuery(window, by), 1000)
    assert sum(group.usage.calls for group in page.groups) == FEW * DAYS
    assert sum(group.usage.input for group in page.groups) == 10 * FEW * DAYS
    assert not [statement for statement in seen if "idempotency_key" in statement or "FROM events" in statement]
