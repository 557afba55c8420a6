"""Events in partitions by the day of their key: each once and all listed, whatever times key and event have."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text

from control.edges.sql.billing.event_sums import EventSums
from control.edges.sql.billing.hourly_progress import add_events, begin_sums
from control.edges.sql.billing.sum_records import Apart, Entities
from control.edges.sql.events import rows
from control.edges.sql.events.days import DAY_MS, first_key_of, partition_of, time_of
from control.edges.sql.events.partitions import (
    REST,
    KeyRange,
    Partition,
    PartitionedWindow,
    part_of,
    partitions_of,
    parts_of,
)
from control.edges.sql.events.upkeep import DAYS_AHEAD, add_days, drop_days
from control.edges.sql.migrations.migrate import migrate, migrate_down
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.tables import events
from control.records.events import EventPosition, EventWindow
from control.retention import RetentionDays, delete_old_records
from policy.billing import BillingEvent, Details
from tests.control.billing import clock_ms, event, ingest_and_reader, store_as_an_older_version
from tests.postgres_server import PostgresServer

FAR_MS = 1 << 60
LONG_S = 1e9
"""A holdback that leaves every timestamp as it is told."""


@pytest.fixture
async def server_store(migrated_postgres: PostgresServer) -> AsyncIterator[Store]:
    """A store on a migrated PostgreSQL database without partitions of days."""
    store = Store.at(await migrated_postgres.create_database("partitions", template="migrated"))
    yield store
    await store.close()
    await migrated_postgres.drop_database("partitions")


def key_at(ms: int, number: int) -> str:
    return f"{first_key_of(ms)}{number:016d}"


def event_at(ms: int, number: int, lasting_ms: int = 1000, **more: Any) -> BillingEvent:
    """A call that began at `ms`."""
    return event(number, ms + lasting_ms, **{"idempotency_key": key_at(ms, number), **more})


async def partitions(store: Store) -> dict[str, Partition]:
    async with store.read() as conn:
        return {one.name: one for one in await partitions_of(conn)}


async def listed(store: Store, window: EventWindow, limit: int = 7) -> list[EventPosition]:
    """The positions of all events of the window, page by page."""
    positions: list[EventPosition] = []
    while True:
        async with store.read() as conn:
            page = await rows.page_of_events(conn, window, positions[-1] if positions else None, limit)
        positions += [(row.timestamp_ms, row.idempotency_key) for row in page]
        if len(page) < limit:
            return positions


async def where(store: Store) -> dict[str, str]:
    """The partition of each event."""
    async with store.read() as conn:
        query = text("SELECT idempotency_key, CAST(CAST(tableoid AS regclass) AS text) FROM events")
        return {row[0]: row[1] for row in await conn.execute(query)}


def test_a_day_is_a_range_of_keys() -> None:
    day = partition_of(1_796_083_200_000)
    assert (day.name, day.first_key) == ("events_20261201", "01M8QEDC00")
    assert day.beyond_key == first_key_of(day.earliest_ms + DAY_MS)
    assert time_of(day.first_key) == day.earliest_ms
    assert day.first_key <= key_at(day.earliest_ms, 0) < key_at(day.earliest_ms + DAY_MS - 1, 7) < day.beyond_key


def test_a_window_needs_the_partitions_that_may_have_its_times_and_no_others() -> None:
    days = [partition_of(n * DAY_MS) for n in range(10)]
    late = days[2]._replace(until_ms=20 * DAY_MS)
    rest = Partition(REST, "", None, FAR_MS, 0)
    assert part_of([rest, *days], 5 * DAY_MS, 6 * DAY_MS) == PartitionedWindow(
        5 * DAY_MS, 6 * DAY_MS, [KeyRange(days[4].first_key, first_key_of(6 * DAY_MS))]
    )
    part = part_of([rest._replace(earliest_ms=0, until_ms=FAR_MS), *days[:2], late, *days[3:]], 8 * DAY_MS, FAR_MS)
    assert part is not None
    assert part.rest
    assert part.spans == [
        KeyRange(late.first_key, days[3].first_key),
        KeyRange(days[7].first_key, first_key_of(10 * DAY_MS)),
    ]
    assert part_of([rest, *days], 30 * DAY_MS, FAR_MS) is None
    assert part_of(days[:1], days[0].until_ms - 1, FAR_MS) is not None
    assert part_of(days[:1], days[0].until_ms, FAR_MS) is None
    assert part_of(days[1:2], 0, days[1].earliest_ms) is None
    strays = [one._replace(until_ms=FAR_MS) for one in days[::2]]
    part = part_of([rest, *strays], 20 * DAY_MS, FAR_MS)
    assert part is not None
    assert [span.first_key for span in part.spans] == [days[0].first_key, days[6].first_key, days[8].first_key]
    assert part.spans[0].beyond_key == days[5].first_key


def test_a_page_reads_a_day_then_twice_as_many_each_time() -> None:
    days = [partition_of(n * DAY_MS) for n in range(20)]
    parts = list(parts_of(days, DAY_MS // 2, 40 * DAY_MS))
    assert [(one.start_ms / DAY_MS, one.end_ms / DAY_MS) for one in parts] == [
        *((0.5, 1), (1, 3), (3, 7), (7, 15), (15, 40))
    ]
    assert list(parts_of([], 3, 9)) == [PartitionedWindow(3, 9)]


async def test_events_of_any_key_and_time_are_listed_in_order_each_once(server_store: Store) -> None:
    """Late by weeks, early, of days without a partition, with keys that are no ULIDs; sent again with other times."""
    chance = random.Random(5)
    await add_days(server_store)
    now_ms = await clock_ms(server_store)
    ingest, _ = ingest_and_reader(server_store, LONG_S)
    by_key: dict[str, BillingEvent] = {}
    for number in range(600):
        ms = now_ms + int(chance.uniform(-4, DAYS_AHEAD + 3) * DAY_MS)
        lasting_ms = chance.choice([1000, 1000, 72_000_000, -5000, 9 * DAY_MS, 40 * DAY_MS, -3 * DAY_MS])
        more: dict[str, Any] = {"external_entity_id": f"customer-{number % 3}", "api_key_prefix": f"tg_{number % 2}"}
        if chance.random() < 0.1:
            more["idempotency_key"] = chance.choice(["!", "key-", "zzz", "01k"]) + str(number)
        one = event_at(ms, number, lasting_ms, **more)
        by_key[one.idempotency_key] = one
    for _ in range(12):
        batch = chance.sample(sorted(by_key), 100)
        await ingest.commit([by_key[key] for key in batch])
        other = [event(0, now_ms, idempotency_key=key) for key in batch]
        assert await ingest.commit(other) == 0
    await ingest.commit(list(by_key.values()))
    homes = await where(server_store)
    assert homes.keys() == by_key.keys()
    assert len(set(homes.values())) > DAYS_AHEAD
    for _ in range(15):
        start_ms, end_ms = sorted(now_ms + int(chance.uniform(-10, 50) * DAY_MS) for _ in range(2))
        entities = tuple(chance.sample(["customer-0", "customer-1", "customer-2", "nobody"], chance.randrange(3)))
        keys = ("tg_1",) * chance.randrange(2)
        expected = sorted(
            (one.ended_at_ms, one.idempotency_key)
            for one in by_key.values()
            if start_ms <= one.ended_at_ms < end_ms
            and (not entities or one.external_entity_id in entities)
            and (not keys or one.api_key_prefix in keys)
        )
        window = EventWindow("ws_1", start_ms, end_ms, keys, entities)
        assert await listed(server_store, window, chance.choice([7, 50])) == expected
        await assert_sums(server_store, by_key.values(), replace(window, api_keys=(), external_entity_ids=()))


async def assert_sums(store: Store, ingested: Iterable[BillingEvent], window: EventWindow) -> None:
    """Usage reports look into the same partitions as pages."""
    expected = Counter(one.external_entity_id for one in ingested if window.start_ms <= one.ended_at_ms < window.end_ms)
    async with store.read() as conn:
        sums = EventSums(conn, window, ())
        whole = await sums.totals(Apart.NOTHING)
        each = await sums.of_entities(Entities("", None), Apart.KEY)
    in_all = [figures[0] for day in whole for of_day in day.slices() for figures in of_day.figures]
    assert sum(in_all) == sum(expected.values())
    calls = Counter[str]()
    for day in each:
        for of_day in day.slices():
            for entity, figures in zip(of_day.entities, of_day.figures, strict=True):
                calls[entity] += figures[0]
    assert calls == expected


async def test_a_page_of_one_day_looks_at_no_other_day(server_store: Store) -> None:
    await add_days(server_store)
    now_ms = await clock_ms(server_store)
    today_ms = now_ms // DAY_MS * DAY_MS
    ingest, _ = ingest_and_reader(server_store, LONG_S)
    await ingest.commit([event_at(today_ms + day * DAY_MS + n, n) for day in range(-1, 5) for n in range(30)])
    async with server_store.read() as conn:
        part = next(parts_of(await partitions_of(conn), today_ms + DAY_MS + 10, FAR_MS))
        (query,) = await rows.queries_of(conn, EventWindow("ws_1", today_ms, FAR_MS), part, None, 10)
        plan = "\n".join((await conn.execute(text(f"EXPLAIN {query.sql}"), query.values)).scalars())
    names = {partition_of(today_ms + day * DAY_MS).name for day in (0, 1)}
    assert {name for name in await partitions(server_store) if f" on {name} " in plan} == names


async def test_several_controls_add_the_same_days_once_and_take_in_what_came_before(server_store: Store) -> None:
    other = Store.at(server_store.engine.url.render_as_string(hide_password=False))
    now_ms = await clock_ms(server_store)
    ingest, _ = ingest_and_reader(server_store, LONG_S)
    batch = [event_at(now_ms + day * DAY_MS, n) for day in (-1, 0, DAYS_AHEAD) for n in range(5)]
    await ingest.commit(batch)
    assert set((await where(server_store)).values()) == {REST}
    while sum(await asyncio.gather(add_days(server_store), add_days(other))):
        pass
    homes = await where(server_store)
    for one in batch:
        assert homes[one.idempotency_key] == partition_of((one.ended_at_ms - 1000) // DAY_MS * DAY_MS).name
    assert await ingest.commit(batch) == 0
    by_name = await partitions(server_store)
    assert len(by_name) == DAYS_AHEAD + 3  # yesterday, today, the days ahead, and the rest
    assert by_name[REST].earliest_ms > by_name[REST].until_ms
    await other.close()


async def test_days_past_their_retention_are_dropped_and_late_events_stay(server_store: Store) -> None:
    await add_days(server_store)
    now_ms = await clock_ms(server_store)
    today_ms = now_ms // DAY_MS * DAY_MS
    ingest, _ = ingest_and_reader(server_store, LONG_S)
    late = event_at(today_ms, 1, 8 * DAY_MS)
    late_events = [late, event_at(today_ms + 5 * DAY_MS, 2)]
    await ingest.commit([event_at(today_ms - 1000 + n, n) for n in range(2000)] + late_events)
    before_ms = today_ms + 5 * DAY_MS
    assert await drop_days(server_store, before_ms) == DAYS_AHEAD - 3  # yesterday, days 1 to 3; day 0 has a late event
    assert await drop_days(server_store, before_ms) == 0
    async with server_store.write() as tx:
        assert await rows.delete_events_before(tx, "ws_1", before_ms, 5000) == 1000
    assert await listed(server_store, EventWindow("ws_1", 0, FAR_MS)) == sorted(
        (one.ended_at_ms, one.idempotency_key) for one in late_events
    )
    again = event_at(today_ms + DAY_MS, 3)  # of a day that was dropped
    assert await ingest.commit([again]) == 1
    assert (await where(server_store))[again.idempotency_key] == REST


async def test_a_day_is_dropped_only_after_its_events_are_added_to_the_hourly_sums(server_store: Store) -> None:
    await add_days(server_store, 5)
    today_ms = await clock_ms(server_store) // DAY_MS * DAY_MS
    ingest, _ = ingest_and_reader(server_store, LONG_S)
    await ingest.commit([event_at(today_ms - day * DAY_MS, day) for day in (5, 3, 2)])
    async with server_store.write() as tx:
        await begin_sums(tx, "ws_1", today_ms - 5 * DAY_MS)
        await add_events(tx, EventWindow("ws_1", today_ms - 5 * DAY_MS, today_ms - 3 * DAY_MS))
    days = RetentionDays(events=1, sums=400, audit=400)
    await delete_old_records(server_store, days)
    remaining_days = {time_of(key) // DAY_MS for key in await where(server_store)}
    assert remaining_days == {(today_ms - day * DAY_MS) // DAY_MS for day in (3, 2)}
    async with server_store.write() as tx:
        await add_events(tx, EventWindow("ws_1", today_ms - 3 * DAY_MS, today_ms))
    await delete_old_records(server_store, days)
    assert partition_of(today_ms - 3 * DAY_MS).name not in await partitions(server_store)


async def test_a_day_that_gets_an_event_while_it_is_to_be_dropped_stays(server_store: Store) -> None:
    await add_days(server_store)
    now_ms = await clock_ms(server_store)
    today_ms = now_ms // DAY_MS * DAY_MS
    late = event_at(today_ms - 1, 1, 100 * DAY_MS)
    day = partition_of(today_ms - DAY_MS)
    ingest, _ = ingest_and_reader(server_store, LONG_S, outbox=partial(_wait_for_a_waiter, server_store))
    taking = asyncio.create_task(ingest.commit([late]))
    while not await _is_locked(server_store, granted=True):
        await asyncio.sleep(0.01)
    assert await drop_days(server_store, day.until_ms) == 0
    assert await taking == 1
    assert (await where(server_store))[late.idempotency_key] == day.name


async def _wait_for_a_waiter(store: Store, tx: WriteTx, rows: object, receivers: object) -> None:
    """Keep the transaction open until another one waits for its locks."""
    while not await _is_locked(store, granted=False):
        await asyncio.sleep(0.01)


async def _is_locked(store: Store, granted: bool) -> bool:
    """Return whether a connection may write events (`granted`) or waits for a lock that excludes all others."""
    mode = "RowExclusiveLock" if granted else "AccessExclusiveLock"
    query = "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation WHERE relname = 'events'"
    bound = text(f"{query} AND granted = :granted AND mode = :mode")
    async with store.read() as conn:
        return bool((await conn.execute(bound, {"granted": granted, "mode": mode})).scalar_one())


async def test_a_long_transaction_defers_the_upkeep_and_is_not_disturbed(
    server_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await add_days(server_store)
    async with server_store.read() as reading:
        await reading.execute(select(events.c.idempotency_key))
        assert await drop_days(server_store, FAR_MS) == 0
        assert "stayed locked by long transactions" in caplog.text
        assert (await reading.execute(select(events.c.idempotency_key))).all() == []
    assert await drop_days(server_store, FAR_MS) == DAYS_AHEAD + 2


async def test_a_table_of_the_version_before_becomes_the_first_partition(server_store: Store) -> None:
    """The events keep their places, whatever keys and times they have; new days begin where their keys end."""
    now_ms = await clock_ms(server_store)
    await migrate_down(server_store.engine, "0008")
    odd = [event(n, now_ms + n * DAY_MS, idempotency_key=f"plain-{n}") for n in range(3)]
    for more in ([event_at(now_ms - n, n) for n in range(50)], odd):
        assert await store_as_an_older_version(server_store, more) == len(more)
        before = await listed_plainly(server_store)
        await migrate(server_store.engine)
        assert await listed(server_store, EventWindow("ws_1", 0, FAR_MS)) == before
        await migrate_down(server_store.engine, "0008")
        assert await listed_plainly(server_store) == before
    await migrate(server_store.engine)
    await add_days(server_store)
    by_name = await partitions(server_store)
    first = by_name["events_before"]
    assert (
        min(name for name in by_name if name.startswith("events_2"))
        == partition_of(time_of(str(first.beyond_key))).name
    )
    assert set((await where(server_store)).values()) == {"events_before", REST}


async def listed_plainly(store: Store) -> list[EventPosition]:
    async with store.read() as conn:
        query = select(events.c.timestamp_ms, events.c.idempotency_key)
        return sorted((row.timestamp_ms, row.idempotency_key) for row in await conn.execute(query))


async def test_a_migration_waits_for_a_long_transaction_and_says_so(
    server_store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.edges.sql.migrations.migrate.LOCK_PAUSE_S", 0.3)
    await migrate_down(server_store.engine, "0008")
    async with server_store.read() as reading:
        await reading.execute(select(events.c.idempotency_key))
        migrating = asyncio.create_task(migrate(server_store.engine))
        while "The database migration waits" not in caplog.text:
            await asyncio.sleep(0.05)
        # Between two tries nobody waits for the migration.
        assert await store_as_an_older_version(server_store, [event_at(0, 1)]) == 1
    await migrating
    assert len(await listed(server_store, EventWindow("ws_1", 0, FAR_MS))) == 1


async def test_details_reach_all_partitions_and_no_partition_is_rewritten_for_them(server_store: Store) -> None:
    now_ms = await clock_ms(server_store)
    await migrate_down(server_store.engine, "0014")
    old = event_at(now_ms, 1)
    assert await store_as_an_older_version(server_store, [old]) == 1
    file = text(f"SELECT pg_relation_filenode('{REST}')")
    async with server_store.read() as conn:
        before = (await conn.execute(file)).scalar_one()
    await migrate(server_store.engine)
    async with server_store.read() as conn:
        assert (await conn.execute(file)).scalar_one() == before
    ingest, _ = ingest_and_reader(server_store, LONG_S)
    moved = event_at(now_ms, 2, source="REPORTED", details=Details(cache_write=7))
    late = event_at(now_ms, 3, source="COUNTED", details=Details(reasoning=8))
    assert await ingest.commit([old, moved]) == 1
    await add_days(server_store)
    assert await ingest.commit([moved, late]) == 1
    assert REST not in (await where(server_store)).values()
    query = select(events.c.source, events.c.cache_write_tokens, events.c.reasoning_tokens, events.c.charged)
    async with server_store.read() as conn:
        assert (await conn.execute(query.order_by(events.c.idempotency_key))).all() == [
            (None, None, None, 1),
            ("REPORTED", 7, None, 1),
            ("COUNTED", None, 8, 1),
        ]
