"""Measures pages of a usage report at 10 million events: `python -m bench.studies.usage_reports`.

Generates events of 92 days inside both databases, which add up to 198 720 hourly sums, and three workspaces whose
reports have a line for nearly each of as many sums; makes the sums as control does; and reads pages of every grouping
over the whole window. The same pages without sums show what the sums save, with `--without`. 10 million events need
15 GB of disk and half an hour.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from pathlib import Path

from sqlalchemy import text

from bench.studies.journal import opened
from control.api.billing.usage_report import ReportItems
from control.edges.sql.billing.price_rows import put_price
from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.upkeep import add_days
from control.edges.sql.store import Store
from control.full_collections import defer_full_collections
from control.records.events import EventWindow
from control.records.policy import PriceRecord
from control.resources.billing.hourly_sums import HourlySumMaker
from control.resources.billing.report_groups import Grouping
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.usage_report import PageRoom, UsageReports
from control.resources.billing_events import EventReader
from control.resources.workspaces import create_workspace
from policy.prices import DAY_MS, Price, token_prices
from tests.control.billing import EVENT_COLUMNS
from tests.postgres_server import find_binaries, running_postgres

DAYS = 92
GOAL_S = 0.5
HOLDBACK_S = 60.0
ACTIVE = 90
"""Pairs of an entity and a slug that have calls in an hour."""
SUMS = DAYS * 24 * ACTIVE
LIMITS = (100, 1000)


@dataclass(frozen=True, slots=True)
class Shape:
    """The calls of a workspace. `prices`: of each slug, at even distances.

    In each hour, `ACTIVE` pairs of an entity and a slug have calls: each `width` behind the one before it, and the
    first `step` behind that of the hour before.
    """

    name: str
    entities: int
    slugs: int
    prices: int
    step: int
    width: int


USUAL = Shape("acme", 1000, 20, 2, 37, 11)
WORST = (
    Shape("wide", 100, 1000, 2, ACTIVE, 1),
    Shape("long", 1000, 100, 2, ACTIVE, 1),
    Shape("priced", 100, 1000, 10, ACTIVE, 1),
)
"""Reports with a line for nearly each sum: a pair has calls in two hours, at two prices. `priced` has as many prices as
a workspace may have."""
_MS = f":day + n * {DAY_MS} / :count"
_PAIR = f"((({_MS}) / 3600000 * {{step}} + n % {ACTIVE} * {{width}}) % {{pairs}})"
_ROW = (
    "SELECT {key}, :workspace, 'grp_' || ({pair} % {entities}), 'customer-' || ({pair} % {entities}),"
    " 'tg_key' || ({pair} % {entities}), '0123456789abcdef0123456789abcdef', '{prefix}/m' || ({pair} / {entities}),"
    " {ms}, 100, 500, 20, 200, NULL, {ms} FROM {numbers}"
)
_SPELLED = "substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', CAST(1 + (({ms} >> {shift}) & 31) AS integer), 1)"
_NUMBERS = {
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < :count - 1) SELECT n FROM s)",
    "postgresql": "(SELECT CAST(n AS bigint) AS n FROM generate_series(0, :count - 1) AS n) AS numbers",
}
_PADDED = {"sqlite": "printf('%016d', {place})", "postgresql": "lpad(CAST({place} AS text), 16, '0')"}


async def fill(store: Store, workspace_id: str, shape: Shape, first_ms: int, count: int) -> None:
    """Insert `count` events, as many on each day, at even distances."""
    dialect = store.engine.dialect.name
    spelled = " || ".join(_SPELLED.format(ms=f"({_MS})", shift=shift) for shift in range(45, -1, -5))
    key = f"{spelled} || {_PADDED[dialect].format(place=f'n + {(USUAL, *WORST).index(shape)}000000000')}"
    pair = _PAIR.format(step=shape.step, width=shape.width, pairs=shape.entities * shape.slugs)
    words = {"pair": pair, "entities": shape.entities, "prefix": shape.name, "ms": _MS, "numbers": _NUMBERS[dialect]}
    statement = f"INSERT INTO events ({EVENT_COLUMNS}) {_ROW.format(key=key, **words)}"
    for day in range(DAYS):
        show(f"{dialect}, {shape.name}: day {day + 1} of {DAYS}")
        values = {"workspace": workspace_id, "day": first_ms + day * DAY_MS, "count": count // DAYS}
        async with store.write() as tx:
            await tx.conn.execute(text(statement), values)


@asynccontextmanager
async def indexes_made_at_the_end(store: Store) -> AsyncIterator[None]:
    """Drop the indexes of `events` on SQLite, and make them when the events are inserted."""
    indexes = await _dropped_indexes(store) if store.engine.dialect.name == "sqlite" else []
    yield
    for index in indexes:
        async with store.write() as tx:
            await tx.conn.exec_driver_sql(index)
    await analyze(store)


async def _dropped_indexes(store: Store) -> Sequence[str]:
    """Drop the indexes of `events`; returns the statements that make them."""
    async with store.write() as tx:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'events' AND sql IS NOT NULL"
        indexes = (await tx.conn.exec_driver_sql(query)).all()
        for index in indexes:
            await tx.conn.exec_driver_sql(f"DROP INDEX {index.name}")
    return [index.sql for index in indexes]


async def analyze(store: Store) -> None:
    async with store.engine.connect() as conn:
        if conn.dialect.name == "postgresql":
            await (await conn.execution_options(isolation_level="AUTOCOMMIT")).execute(text("VACUUM ANALYZE"))


async def set_prices(store: Store, workspace_id: str, shape: Shape, first_ms: int) -> None:
    async with store.write() as tx:
        for slug in range(shape.slugs):
            for number in range(shape.prices):
                amounts = token_prices(Decimal(f"3.{slug}"), Decimal(f"15.0{number}"), cached_input=Decimal("0.3"))
                day_ms = first_ms + number * DAYS // shape.prices * DAY_MS
                price = Price(f"{shape.name}/m{slug}", day_ms, "EUR", amounts)
                await put_price(tx, workspace_id, PriceRecord(price, tx.now_ms))


async def measure(store: Store, name: str, shape: Shape, window: EventWindow) -> bool:
    """Print how long pages take, as the API answers them: the median and the slowest. Whether the goal held."""
    events = EventReader(store, HOLDBACK_S, EventClock())
    reports = UsageReports(store, events, DAYS + 1, 400)
    one = replace(window, external_entity_ids=("customer-7",))
    queries = {f"by {by}": ReportQuery(window, by) for by in Grouping}
    queries |= {f"one entity by {by}": ReportQuery(one, by) for by in Grouping}
    queries["entities of one slug"] = ReportQuery(window, Grouping.ENTITY, f"{shape.name}/m7")
    holds = True
    for (what, query), limit, lines in product(queries.items(), LIMITS, (False, True)):
        took, calls = await pages_s(reports, query, limit, lines)
        holds = holds and max(took) <= GOAL_S
        figures = f"median {statistics.median(took) * 1e3:.0f} ms, slowest {max(took) * 1e3:.0f} ms"
        kind = f"{limit} a page{', lines' if lines else ''}"
        print(f"{name}, {what}, {kind}: {len(took)} pages, {figures}; {calls:,} calls", flush=True)
    return holds


async def pages_s(reports: UsageReports, query: ReportQuery, limit: int, lines: bool) -> tuple[list[float], int]:
    """Return how long each page takes, and the calls of all."""
    took: list[float] = []
    calls = 0
    page = None
    while page is None or page.after is not None:
        began = time.perf_counter()
        room = PageRoom(limit, ReportItems(query, lines).add)
        if page is None:
            page = await reports.first_page(query, room)
        else:
            assert page.after is not None
            page = await reports.next_page(page.query, page.after, room, page.price_list)
        took.append(time.perf_counter() - began)
        calls += sum(group.totals.usage.calls for group in page.groups)
    return took, calls


async def add_workspace(store: Store, shape: Shape, first_ms: int, count: int) -> EventWindow:
    workspace_id = (await create_workspace(store, shape.name, [shape.name]))["workspace_id"]
    await set_prices(store, workspace_id, shape, first_ms)
    await fill(store, workspace_id, shape, first_ms, count)
    return EventWindow(workspace_id, first_ms, first_ms + DAYS * DAY_MS)


async def study(url: str, name: str, count: int, without: bool) -> bool:
    first_ms = (int(time.time() * 1000) // DAY_MS - DAYS) * DAY_MS
    async with opened(url) as store:
        await add_days(store, DAYS)
        began = time.perf_counter()
        async with indexes_made_at_the_end(store):
            windows = {USUAL: await add_workspace(store, USUAL, first_ms, count)}
            windows |= {shape: await add_workspace(store, shape, first_ms, SUMS) for shape in WORST}
        events = count + len(WORST) * SUMS
        print(f"{name}: {events:,} events, generated in {time.perf_counter() - began:.0f} s")
        if without:
            await measure(store, f"{name}, from events", USUAL, windows[USUAL])
        size = await database_bytes(store)
        began = time.perf_counter()
        await HourlySumMaker(store, EventReader(store, HOLDBACK_S, EventClock()), DAYS + 1).make()
        took_s = time.perf_counter() - began
        async with store.read() as conn:
            sums = (await conn.execute(text("SELECT count(*) FROM hourly_sums"))).scalar_one()
        grown = (await database_bytes(store) - size) / sums
        note = f"{sums:,} sums made in {took_s:.0f} s, {took_s / events * 1e6:.1f} µs an event"
        print(f"{name}: {note}; {grown:.0f} bytes each")
        await analyze(store)
        results = [await measure(store, f"{name}, {shape.name}", shape, window) for shape, window in windows.items()]
        return all(results)


async def database_bytes(store: Store) -> int:
    pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    queries = {"sqlite": pages, "postgresql": "SELECT pg_database_size(current_database())"}
    async with store.read() as conn:
        size: int = (await conn.execute(text(queries[conn.dialect.name]))).scalar_one()
    return size


def show(progress: str) -> None:
    print(f"\r{progress} ", end="", file=sys.stderr, flush=True)


def on_sqlite(count: int, without: bool) -> bool:
    directory = Path(tempfile.mkdtemp(prefix="tollgate-bench-", dir=Path.cwd()))
    try:
        return asyncio.run(study(f"sqlite+aiosqlite:///{directory / 'control.db'}", "SQLite", count, without))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--on", choices=("sqlite", "postgresql"), nargs="+", default=("sqlite", "postgresql"))
    parser.add_argument("--without", action="store_true", help="measure the same pages without sums first")
    options = parser.parse_args()
    defer_full_collections()  # as control does
    results = []
    if "sqlite" in options.on:
        results.append(on_sqlite(options.events, options.without))
    if "postgresql" in options.on and find_binaries() is None:
        print("PostgreSQL: not installed, not measured")
    elif "postgresql" in options.on:
        with running_postgres() as server:
            url = asyncio.run(server.create_database("bench"))
            results.append(asyncio.run(study(url, "PostgreSQL", options.events, options.without)))
    print(f"Each page in {GOAL_S} s: {'held' if all(results) else 'NOT HELD'}")


if __name__ == "__main__":
    main()
