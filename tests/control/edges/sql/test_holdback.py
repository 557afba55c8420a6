"""The promise of the holdback: a reader of consecutive windows sees each event exactly once, however late it came.

And the cost of a page: one range of one index, whatever is asked.
"""

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Sequence

import pytest
from sqlalchemy import text

from control.edges.sql.events.partitions import partitions_of, parts_of
from control.edges.sql.events.rows import EventQuery, page_of_events, queries_of
from control.edges.sql.store import Connection, Store, WriteTx
from control.errors import DatabaseUnavailableError, IngestTooSlowError
from control.records.events import EventPosition, EventWindow
from tests.control.billing import (
    FAR_MS,
    ShiftedClock,
    all_pages,
    clock_ms,
    event,
    event_key,
    fill_events,
    ingest_and_reader,
)

HOLDBACK_S = 0.8
SECONDS = 4.0


async def test_a_reader_of_consecutive_windows_sees_each_event_once(store: Store) -> None:
    """Shippers are quick, late, slow (some beyond the deadline), doubled and dead; the clock is set back and forth."""
    chance = random.Random(4)
    clock = ShiftedClock()

    async def dawdle(tx: WriteTx, rows: object, receivers: object) -> None:
        if chance.random() < 0.4:
            await asyncio.sleep(chance.uniform(0, HOLDBACK_S / 3))

    ingest, statements = ingest_and_reader(store, HOLDBACK_S, clock=clock, outbox=dawdle)
    numbers = iter(range(1_000_000))
    keys_taken: set[str] = set()
    keys_seen: list[str] = []
    shipped = asyncio.Event()
    """Set when the last shipper is through: each of them goes on beyond its time until its batch is in."""
    deadline = asyncio.get_running_loop().time() + SECONDS

    def going() -> bool:
        return asyncio.get_running_loop().time() < deadline

    async def shipper(late_ms: int) -> None:
        """Sends each batch until it is acknowledged, at times once more; its events ended `late_ms` ago."""
        while going():
            now_ms = await clock_ms(store)
            batch = [event(next(numbers), now_ms - late_ms - chance.randrange(300)) for _ in range(chance.randrange(9))]
            while True:
                try:
                    await ingest.commit(batch)
                except (IngestTooSlowError, DatabaseUnavailableError):
                    continue
                if chance.random() < 0.8:
                    break
            keys_taken.update(one.idempotency_key for one in batch)
            await asyncio.sleep(chance.uniform(0, 0.05))

    async def dying_shipper() -> None:
        """Dies in the middle of a transaction; its successor sends the same events much later."""
        while going():
            batch = [event(next(numbers), await clock_ms(store)) for _ in range(3)]
            sending = asyncio.create_task(ingest.commit(batch))
            await asyncio.sleep(chance.uniform(0, 0.1))
            sending.cancel()
            await asyncio.wait([sending])
            await asyncio.sleep(HOLDBACK_S)
            while True:
                try:
                    await ingest.commit(batch)
                    break
                except (IngestTooSlowError, DatabaseUnavailableError):
                    continue
            keys_taken.update(one.idempotency_key for one in batch)

    async def reader() -> None:
        start_ms = await clock_ms(store) - 60_000
        while not shipped.is_set() or keys_taken - set(keys_seen):
            try:
                window, keys = await all_pages(statements, EventWindow("ws_1", start_ms, FAR_MS), 4)
            except DatabaseUnavailableError:  # SQLite has one writer at a time; a client asks for the window again
                continue
            keys_seen.extend(keys)
            start_ms = window.end_ms
            await asyncio.sleep(chance.uniform(0, 0.03))

    async def unruly_clock() -> None:
        await asyncio.sleep(SECONDS * 0.3)
        clock.offset_ms = -30_000
        await asyncio.sleep(SECONDS * 0.3)
        clock.offset_ms = 0

    async def shippers() -> None:
        await asyncio.gather(shipper(0), shipper(700), shipper(30_000), dying_shipper())
        shipped.set()

    async with asyncio.timeout(60):
        await asyncio.gather(shippers(), reader(), unruly_clock())
    assert len(keys_taken) > 50
    assert len(keys_seen) == len(set(keys_seen))
    assert set(keys_seen) == keys_taken


async def query_of(conn: Connection, window: EventWindow, after: EventPosition | None, limit: int) -> EventQuery:
    """The statement of the first part that has events."""
    part = next(parts_of(await partitions_of(conn), 0 if after is None else after[0], FAR_MS))
    (query,) = await queries_of(conn, window, part, after, limit)
    return query


ASKED = {
    "all": (EventWindow("ws_1", 0, FAR_MS), "ix_events_workspace_time"),
    "entity": (EventWindow("ws_1", 0, FAR_MS, (), ("customer-1",)), "ix_events_entity_time"),
    "entities": (EventWindow("ws_1", 0, FAR_MS, (), ("customer-1", "customer-2")), "ix_events_entity_time"),
    "key": (EventWindow("ws_1", 0, FAR_MS, ("tg_aaaaaaaaaaaa",)), "ix_events_key_entity_time"),
    "both": (EventWindow("ws_1", 0, FAR_MS, ("tg_aaaaaaaaaaaa",), ("customer-1",)), "ix_events_key_entity_time"),
}


async def names_of_parts(conn: Connection, index: str) -> Sequence[str]:
    """Return the names of the index's parts, one for each partition; none in SQLite."""
    if conn.dialect.name == "sqlite":
        return ()
    query = (
        "SELECT CAST(CAST(inhrelid AS regclass) AS text) FROM pg_inherits WHERE inhparent = CAST(:index AS regclass)"
    )
    return (await conn.execute(text(query.replace(":index", f"'{index}'")))).scalars().all()


@pytest.mark.parametrize("after", [None, (5, event_key(1))])
@pytest.mark.parametrize("name", ASKED)
async def test_each_page_is_a_range_of_an_index(store: Store, name: str, after: tuple[int, str] | None) -> None:
    """The database sorts only the first rows of the merged ranges, and reads no row outside them."""
    window, index = ASKED[name]
    await ingest_and_reader(store)[0].commit([event(n) for n in range(3)])
    async with store.read() as conn:
        dialect = conn.dialect.name
        if dialect == "postgresql":  # with three rows a planner would rightly read them all
            await conn.execute(text("SET LOCAL enable_seqscan = off"))
            await conn.execute(text("SET LOCAL enable_bitmapscan = off"))
        query = await query_of(conn, window, after, 101)
        explain = "EXPLAIN" if dialect == "postgresql" else "EXPLAIN QUERY PLAN"
        lines = [row[-1] for row in await conn.execute(text(f"{explain} {query.sql}"), query.values)]
        plan = "\n".join(lines)
        for name_of_part in await names_of_parts(conn, index):
            plan = plan.replace(name_of_part, index)
    assert index in plan
    assert "SCAN events" not in plan
    assert "Seq Scan" not in plan
    if len(window.external_entity_ids) < 2:
        assert "Sort" not in plan
        assert "TEMP B-TREE" not in plan
    else:
        assert plan.count(index) == 4  # two of them are padding


FILLED = {
    "all": EventWindow("ws_1", 0, FAR_MS),
    "an entity": EventWindow("ws_1", 0, FAR_MS, (), ("customer-7",)),
    "three entities": EventWindow("ws_1", 0, FAR_MS, (), ("customer-7", "customer-8", "nobody")),
    "two keys": EventWindow("ws_1", 0, FAR_MS, ("tg_key00000007", "tg_key00000008")),
    "both": EventWindow("ws_1", 0, FAR_MS, ("tg_key00000007",), ("customer-7",)),
}
ROWS = 20_000
LIMIT = 10


async def test_what_a_page_costs_does_not_grow_with_the_table(store: Store) -> None:
    """The cost is what the database counts for a page in the middle: blocks in PostgreSQL, steps in SQLite."""
    costs = {}
    for first, beyond in ((0, ROWS), (ROWS, 10 * ROWS)):
        await fill_events(store, "ws_1", first, beyond)
        after = (beyond // 2, "")
        for name, window in FILLED.items():
            async with store.read() as conn:
                assert len(await page_of_events(conn, window, after, LIMIT)) == LIMIT
                query = await query_of(conn, window, after, LIMIT)
                costs[name, beyond] = await _cost(store, conn, query)
    for name in FILLED:
        assert 0 < costs[name, 10 * ROWS] <= costs[name, ROWS] * 1.2 + 8, (name, costs)


async def test_a_page_of_a_hundred_entities_costs_a_walk_down_the_index_for_each(store: Store) -> None:
    """A page of ten events reads ten events' rows, not ten of each entity."""
    await fill_events(store, "ws_1", 0, ROWS)
    of_one = EventWindow("ws_1", 0, FAR_MS, (), ("nobody",))
    costs = []
    for window in (of_one, EventWindow("ws_1", 0, FAR_MS, (), tuple(f"customer-{n}" for n in range(96)))):
        async with store.read() as conn:
            part = next(parts_of(await partitions_of(conn), ROWS // 2, FAR_MS))
            queries = await queries_of(conn, window, part, (ROWS // 2, ""), LIMIT)
            costs.append([await _cost(store, conn, query) for query in queries])
    ((walk,), of_parts) = costs
    assert len(of_parts) == 3
    # A row costs a block of the table and one of the index; SQLite counts a dozen steps and more per column.
    row = 2 if store.engine.dialect.name == "postgresql" else 100
    assert sum(of_parts) <= 96 * (walk + row) + 3 * LIMIT * row


async def _cost(store: Store, conn: Connection, query: EventQuery) -> int:
    if conn.dialect.name == "postgresql":
        explain = text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.sql)
        plan = (await conn.execute(explain, query.values)).scalar_one()[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with contextlib.closing(sqlite3.connect(str(store.engine.url.database))) as plain:
        plain.set_progress_handler(step, 1)
        plain.execute(query.sql, query.values).fetchall()
    return steps
