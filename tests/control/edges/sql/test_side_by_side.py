"""Several control processes on one PostgreSQL: each event once, in one window, while days come and go."""

import asyncio
import itertools
import random

from sqlalchemy import text

from control.edges.sql.events.days import DAY_MS, first_key_of
from control.edges.sql.events.upkeep import add_days, drop_days
from control.edges.sql.migrations.migrate import migrate, migrate_down
from control.edges.sql.store import Store
from control.records.events import EventWindow
from tests.control.billing import FAR_MS, all_pages, clock_ms, event, ingest_and_reader, store_as_an_older_version
from tests.postgres_server import PostgresServer

HOLDBACK_S = 10.0
"""A batch may take a quarter of it, also on a busy machine."""
CONTROLS = 3


async def test_controls_ingest_overlapping_batches_side_by_side(migrated_postgres: PostgresServer) -> None:
    """Each sends all events, in an order of its own; keys are of all days around today, and the days arrive late."""
    chance = random.Random(6)
    url = await migrated_postgres.create_database("beside", template="migrated")
    stores = [Store.at(url) for _ in range(CONTROLS + 1)]
    now_ms = await clock_ms(stores[0])
    events = []
    for number in range(1500):
        key_ms = now_ms + int(chance.uniform(-5, 12) * DAY_MS)
        key = f"{first_key_of(key_ms)}{number:016d}" if chance.random() < 0.95 else f"plain-{number}"
        events.append(event(number, now_ms, idempotency_key=key))
    counts: list[int] = []

    async def control(store: Store, order: random.Random) -> None:
        ingest, _ = ingest_and_reader(store, HOLDBACK_S)
        batches = [order.sample(events, 150) for _ in range(12)]
        for batch in [*batches, *(events[start : start + 150] for start in range(0, len(events), 150))]:
            counts.append(await ingest.commit(batch))

    async def upkeep() -> None:
        for store in stores[:CONTROLS]:
            await add_days(store)
            await drop_days(store, now_ms - DAY_MS)

    listed_keys: list[str] = []

    async def reader() -> None:
        _, statements = ingest_and_reader(stores[-1], HOLDBACK_S)
        start_ms = now_ms - 60_000
        while len(listed_keys) < len(events):
            window, keys = await all_pages(statements, EventWindow("ws_1", start_ms, FAR_MS), 100)
            listed_keys.extend(keys)
            start_ms = window.end_ms
            await asyncio.sleep(0.05)

    async with asyncio.timeout(100):
        await asyncio.gather(
            *(control(store, random.Random(n)) for n, store in enumerate(stores[:CONTROLS])), upkeep(), reader()
        )
    assert sum(counts) == len(events)
    assert sorted(listed_keys) == sorted(one.idempotency_key for one in events)
    async with stores[0].read() as conn:
        query = "SELECT deadlocks, (SELECT count(*) FROM events) FROM pg_stat_database WHERE datname = 'beside'"
        assert (await conn.execute(text(query))).one() == (0, len(events))
    for store in stores:
        await store.close()
    await migrated_postgres.drop_database("beside")


async def test_ingest_goes_on_while_the_table_becomes_a_partition(migrated_postgres: PostgresServer) -> None:
    """No batch is refused, and none is lost or doubled, by those who hold statements for the table of before."""
    url = await migrated_postgres.create_database("moving", template="migrated")
    stores = [Store.at(url) for _ in range(CONTROLS)]
    await migrate_down(stores[0].engine, "0008")
    now_ms = await clock_ms(stores[0])
    numbers = itertools.count()
    counts = list[int]()
    finish = asyncio.Event()

    async def older_control(store: Store) -> None:
        while not finish.is_set() or len(counts) < 20:
            mine = [next(numbers) for _ in range(20)]
            batch = [event(n, now_ms, idempotency_key=f"{first_key_of(now_ms)}{n:016d}") for n in mine]
            counts.append(await store_as_an_older_version(store, batch))
            assert await store_as_an_older_version(store, batch) == 0

    async def migrating() -> None:
        await asyncio.sleep(0.2)
        await migrate(stores[0].engine)
        await add_days(stores[0])
        await asyncio.sleep(0.2)
        finish.set()

    async with asyncio.timeout(100):
        await asyncio.gather(*(older_control(store) for store in stores[1:]), migrating())
    async with stores[0].read() as conn:
        query = "SELECT count(*), count(DISTINCT idempotency_key) FROM events"
        assert (await conn.execute(text(query))).one() == (sum(counts), sum(counts))
    for store in stores:
        await store.close()
    await migrated_postgres.drop_database("moving")
