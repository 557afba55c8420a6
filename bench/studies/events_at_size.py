"""The reads of pages of billing events, however many there are: `python -m bench.studies.events_at_size`.

Generates events of 92 days inside the databases, 1 and 10 million in PostgreSQL and 1 million in SQLite, and reads
pages in the middle of them. PostgreSQL needs 10 GB of disk and a quarter of an hour for 10 million.
"""

import argparse
import asyncio
import contextlib
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import text

from bench.studies.journal import opened
from control.edges.sql.events.days import DAY_MS, first_key_of
from control.edges.sql.events.partitions import partitions_of, parts_of
from control.edges.sql.events.rows import page_of_events, queries_of
from control.edges.sql.events.upkeep import add_days
from control.edges.sql.store import Connection, Store
from control.records.events import EventPosition, EventWindow
from tests.control.billing import EVENT_COLUMNS
from tests.postgres_server import PostgresServer, find_binaries, running_postgres

DAYS = 92
WORKSPACE_ID = "ws_01JD0000000000000000000000"
LIMIT = 101
"""A page of 100, and one row that tells whether more follow."""
HUNDRED = tuple(f"customer-{number}" for number in range(100, 200))
PAGES = {
    "all events": ((), ()),
    "one entity": ((), ("customer-7",)),
    "two keys": (("tg_key00000007", "tg_key00000008"), ()),
    "entity and key": (("tg_key00000007",), ("customer-7",)),
    "100 entities": ((), HUNDRED),
    "100 entities without events": ((), tuple(f"nobody-{number}" for number in range(100))),
}
_SPELLED = "substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + (({ms}) >> {shift} & 31)::int, 1)"
_FILL = (
    f"INSERT INTO events ({EVENT_COLUMNS})"
    " SELECT {key} || lpad(n::text, 16, '0'), '{workspace}', 'grp_1',"
    " 'customer-' || (n % 1000), 'tg_key' || lpad((n % 1000)::text, 8, '0'), '0123456789abcdef0123456789abcdef',"
    " 'acme/chat', {ms} + 1500 + n % 60000, 100, 500, 20, 200, NULL, {ms} FROM generate_series(0, {count} - 1) AS n"
)


async def fill_day(store: Store, day_ms: int, count: int) -> None:
    """Insert `count` events spread over a day, of a thousand entities with one key each."""
    ms = f"({day_ms} + n::bigint * {DAY_MS} / {count})"
    key = " || ".join(_SPELLED.format(ms=ms, shift=shift) for shift in range(45, -1, -5))
    statement = _FILL.format(key=key, ms=ms, count=count, workspace=WORKSPACE_ID)
    async with store.write() as tx:
        await tx.conn.execute(text(statement.replace(":", r"\:")))


async def fill(store: Store, first_ms: int, count: int) -> None:
    for day in range(DAYS):
        show(f"PostgreSQL, {count:,} events: day {day + 1} of {DAYS}")
        await fill_day(store, first_ms + day * DAY_MS, count // DAYS)
    async with store.engine.connect() as conn:
        await (await conn.execution_options(isolation_level="AUTOCOMMIT")).execute(text("VACUUM ANALYZE"))


def fill_sqlite(path: Path, first_ms: int, count: int) -> None:
    def rows() -> Iterator[tuple[object, ...]]:
        for n in range(count):
            ms = first_ms + n * DAYS * DAY_MS // count
            if n % 100_000 == 0:
                show(f"SQLite: {n:,} of {count:,}")
            names = (WORKSPACE_ID, "grp_1", f"customer-{n % 1000}", f"tg_key{n % 1000:08}", "0" * 32, "acme/chat")
            yield (f"{first_key_of(ms)}{n:016}", *names, ms + 1500 + n % 60000, 100, 500, 20, 200, None, ms)

    with contextlib.closing(sqlite3.connect(path)) as plain, plain:
        plain.executemany(f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({', '.join('?' * 14)})", rows())
        plain.execute("ANALYZE")


async def measure(store: Store, name: str, first_ms: int) -> None:
    """Print what each page reads: medians of twelve positions, in a window from there to a week from now."""
    for what, (keys, entities) in PAGES.items():
        window = EventWindow(WORKSPACE_ID, first_ms, first_ms + (DAYS + 8) * DAY_MS, keys, entities)
        took = []
        blocks = []
        fetched = []
        rows = 0
        for number in range(12):
            after = (first_ms + (5 + 7 * number) * DAY_MS + number * 3_600_000, "")
            took.append(await page_s(store, window, after))
            if store.engine.dialect.name == "postgresql":
                explained_blocks, rows = await explained(store, window, after)
                blocks.append(explained_blocks)
                fetched.append(await fetched_blocks(store, window, after))
        read = f"; blocks {statistics.median(blocks):.0f} (most {max(blocks)}), {rows} rows" if blocks else ""
        read += f"; with all look-ups {statistics.median(fetched):.0f}" if fetched else ""
        print(f"{name}, page of {what}: {statistics.median(took) * 1e3:.1f} ms{read}", flush=True)


async def page_s(store: Store, window: EventWindow, after: EventPosition) -> float:
    began = time.perf_counter()
    async with store.read() as conn:
        await page_of_events(conn, window, after, LIMIT)
    return time.perf_counter() - began


async def explained(store: Store, window: EventWindow, after: EventPosition) -> tuple[int, int]:
    """The blocks that `EXPLAIN (ANALYZE, BUFFERS)` counts for the statements of a page, and its rows."""
    blocks = 0
    rows = 0
    async with store.read() as conn:
        for part in parts_of(await partitions_of(conn), after[0], window.end_ms):
            behind = after if part.start_ms == after[0] else None
            for query in await queries_of(conn, window, part, behind, LIMIT - rows):
                explain = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query.sql}")
                plan = (await conn.execute(explain, query.values)).scalar_one()[0]["Plan"]
                blocks += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                rows += plan["Actual Rows"]
            rows = min(rows, LIMIT)
            if rows == LIMIT:
                break
    return blocks, rows


async def fetched_blocks(store: Store, window: EventWindow, after: EventPosition) -> int:
    """The blocks of events and their indexes that a page fetches in all, with the look-up of a key's entities."""
    count = "sum(pg_stat_get_xact_blocks_fetched(oid))"  # also of transactions before, as far as not yet flushed
    query = text(f"SELECT {count} FROM pg_class WHERE relname ~ '^(events|ix_events|event_partitions)'")
    async with store.read() as conn:
        before = (await conn.execute(query)).scalar_one()
        await page_of_events(conn, window, after, LIMIT)
        return int((await conn.execute(query)).scalar_one() - before)


async def on_postgresql(server: PostgresServer, count: int, first_ms: int) -> None:
    """Measure in a database of its own: events inserted out of their order in time lie apart, and cost more blocks."""
    async with opened(await server.create_database("bench")) as store:
        await add_days(store, DAYS)
        began = time.perf_counter()
        await fill(store, first_ms, count)
        took_s = time.perf_counter() - began
        async with store.read() as conn:
            size = await database_bytes(conn)
        print(f"PostgreSQL: {count:,} events, generated in {took_s:.0f} s; {size / count:.0f} bytes each")
        await measure(store, f"PostgreSQL, {count:,} events", first_ms)
    await server.drop_database("bench")


async def database_bytes(conn: Connection) -> int:
    size: int = (await conn.execute(text("SELECT pg_database_size(current_database())"))).scalar_one()
    return size


async def on_sqlite(path: Path, count: int, first_ms: int) -> None:
    async with opened(f"sqlite+aiosqlite:///{path}") as store:
        await asyncio.to_thread(fill_sqlite, path, first_ms, count)
        await measure(store, f"SQLite, {count:,} events", first_ms)


def show(progress: str) -> None:
    print(f"\r{progress} ", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000], help="in PostgreSQL")
    parser.add_argument("--sqlite-events", type=int, default=1_000_000)
    options = parser.parse_args()
    first_ms = (int(time.time() * 1000) // DAY_MS - DAYS) * DAY_MS
    directory = Path(tempfile.mkdtemp(prefix="tollgate-bench-", dir=Path.cwd()))
    try:
        asyncio.run(on_sqlite(directory / "events.db", options.sqlite_events, first_ms))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if find_binaries() is None:
        print("PostgreSQL: not installed, not measured")
        return
    with running_postgres() as server:
        for count in options.events:
            asyncio.run(on_postgresql(server, count, first_ms))


if __name__ == "__main__":
    main()
