"""Creates the partitions of coming days, and drops those whose events are all past their retention.

On PostgreSQL only. Several processes may do both at once. Every lock is short or not had at all, because statements on
`events` wait behind whoever waits for one: what fails for a busy table is tried again an hour later.

See docs/decisions/0045-event-partitions.md.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from sqlalchemy import delete, insert, text
from sqlalchemy.exc import DBAPIError

from control.edges.sql.database import LOCK_NOT_AVAILABLE, sqlstate_of
from control.edges.sql.events.clock import database_ms
from control.edges.sql.events.days import DAY_MS, partition_of, time_of
from control.edges.sql.events.partitions import REST, Partition, partitions_of
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.tables import event_partitions

log = logging.getLogger(__name__)

DAYS_AHEAD = 7
"""The days for which partitions exist ahead: longer than an operator may need to notice that new ones fail."""
_LOCK = 0x7011_6A80  # any number: the same in every process, different from the clock's and the migrations'
_LOCK_TIMEOUT_MS = 500


async def add_days(store: Store, days_back: int = 1) -> int:
    """Create the partitions up to a week ahead; returns how many were missing. Events without one go to `REST`.

    `days_back`: how many days before today the first one is, if there is none yet.
    """
    if store.engine.dialect.name != "postgresql":
        return 0
    async with store.read() as conn:
        partitions = _missing(await partitions_of(conn), await database_ms(conn), days_back)
    added = 0
    for partition in partitions:
        if not await _changed(store, partial(_add, day=partition), f"Creating partition {partition.name}"):
            break
        added += 1
    return added


async def drop_days(store: Store, before_ms: int) -> int:
    """Drop every partition without an event of `before_ms` or later; returns how many."""
    if store.engine.dialect.name != "postgresql":
        return 0
    async with store.read() as conn:
        old = [one.name for one in await partitions_of(conn) if one.is_past(before_ms)]
    dropped = 0
    for name in old:
        if not await _changed(store, partial(_drop, name=name, before_ms=before_ms), f"Dropping partition {name}"):
            break
        dropped += 1
    return dropped


def _missing(partitions: Sequence[Partition], now_ms: int, days_back: int) -> list[Partition]:
    """The partitions that are missing from the end of the last one, so that none is left out after a long outage."""
    today_ms = now_ms // DAY_MS * DAY_MS
    ends = [time_of(one.beyond_key) for one in partitions if one.beyond_key is not None]
    first_ms = max(ends, default=today_ms - days_back * DAY_MS)
    return [partition_of(day_ms) for day_ms in range(first_ms, today_ms + DAYS_AHEAD * DAY_MS + 1, DAY_MS)]


async def _changed(store: Store, change: Callable[[WriteTx], Awaitable[bool]], what: str) -> bool:
    """Run a change with short lock waits. False if it was not needed, or a lock was not free in time."""

    async def alone(tx: WriteTx) -> bool:
        await tx.conn.execute(text(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}"))
        lock = await tx.conn.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK})
        return lock.scalar_one() and await change(tx)

    try:
        return await store.transact(alone)
    except DBAPIError as error:
        if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
            raise
        log.warning("%s failed: events stayed locked by long transactions. It is tried again within an hour.", what)
        return False


async def _add(tx: WriteTx, day: Partition) -> bool:
    """Add the partition of a day. Locks in the order of other statements: the whole table, then its partitions.

    Keeps writers out: one that has chosen `REST` for an event must not write there when the event's day exists.
    """
    await tx.conn.execute(text("LOCK TABLE ONLY events IN SHARE ROW EXCLUSIVE MODE"))
    if day.name in {one.name for one in await partitions_of(tx.conn)}:
        return False
    await tx.conn.execute(text(f"LOCK TABLE {REST} IN ACCESS EXCLUSIVE MODE"))
    await tx.conn.execute(insert(event_partitions).values(**day._asdict()))
    for statement in _statements(day):
        await tx.conn.execute(text(statement))
    return True


def _statements(day: Partition) -> list[str]:
    """Create the partition with the events of its keys that had none so far. No statement has parameters of others."""
    keys = f"idempotency_key >= '{day.first_key}' AND idempotency_key < '{day.beyond_key}'"
    outside = f"NEW.timestamp_ms < {day.earliest_ms} OR NEW.timestamp_ms >= {day.until_ms}"
    return [
        f"CREATE TABLE {day.name} (LIKE events)",
        f"CREATE TRIGGER note_stray_event AFTER INSERT ON {day.name} FOR EACH ROW WHEN ({outside})"
        f" EXECUTE FUNCTION note_stray_event('{day.name}')",
        f"WITH moved AS (DELETE FROM {REST} WHERE {keys} RETURNING *)"  # noqa: S608 (ours)
        f" INSERT INTO {day.name} SELECT * FROM moved",
        f"UPDATE event_partitions SET earliest_ms = {2**62}, until_ms = 0"  # noqa: S608 (ours)
        f" WHERE name = '{REST}' AND NOT EXISTS (SELECT FROM {REST})",
        f"ALTER TABLE events ATTACH PARTITION {day.name} FOR VALUES FROM ('{day.first_key}') TO ('{day.beyond_key}')",
    ]


async def _drop(tx: WriteTx, name: str, before_ms: int) -> bool:
    await tx.conn.execute(text("LOCK TABLE ONLY events IN ACCESS EXCLUSIVE MODE"))
    # Read again behind the lock: an event may have arrived for this day meanwhile.
    if not any(one.name == name and one.is_past(before_ms) for one in await partitions_of(tx.conn)):
        return False
    await tx.conn.execute(text(f"DROP TABLE {name}"))
    await tx.conn.execute(delete(event_partitions).where(event_partitions.c.name == name))
    return True
