"""Helpers for tests of billing events: build them, store many of them, ingest and read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from control.edges.sql.events.clock import ClockReading, EventClock
from control.edges.sql.events.ingest import Ingest, Outbox
from control.edges.sql.store import Connection, Store, WriteTx
from control.records.events import EventWindow
from control.resources.billing_events import EventReader
from control.resources.spend.draws import EventDraws
from policy.billing import BillingEvent, Tokens, columns_of

EVENT_COLUMNS = (
    "idempotency_key, workspace_id, group_id, external_entity_id, api_key_prefix, request_id, model_slug, timestamp_ms,"
    " input_tokens, output_tokens, cached_input_tokens, status, request_metadata, ingested_at_ms"
)
"""The columns of `events` in every version, and all that older ones write."""
HOLDBACK_S = 60.0
FAR_MS = 1 << 60


class ShiftedClock(EventClock):
    """The database's clock, set forward by `offset_ms`."""

    offset_ms = 0

    async def _read(self, conn: Connection) -> ClockReading:
        reading = await super()._read(conn)
        return ClockReading(reading.clock_ms + self.offset_ms, reading.recorded_ms)


def event_key(number: int) -> str:
    return f"01K{number:023d}"


def event(number: int, ended_at_ms: int = 0, **more: Any) -> BillingEvent:
    fields: dict[str, Any] = {
        "idempotency_key": event_key(number),
        "workspace_id": "ws_1",
        "group_id": "grp_1",
        "external_entity_id": "customer-1",
        "api_key_prefix": "tg_aaaaaaaaaaaa",
        "request_id": f"req-{number}",
        "model_slug": "acme/chat",
        "ended_at_ms": ended_at_ms,
        "status": 200,
        "tokens": Tokens(input=100 + number, output=20, cached_input=30),
        "request_metadata": None,
    }
    return BillingEvent(**{**fields, **more})


async def fill_events(store: Store, workspace_id: str, first: int, beyond: int) -> None:
    """Insert one event per millisecond, of a thousand entities with one key each. The database generates the rows."""
    for start in range(first, beyond, _ROWS_AT_ONCE):
        async with store.write() as tx:
            numbers = {"workspace": workspace_id, "first": start, "last": min(start + _ROWS_AT_ONCE, beyond) - 1}
            await tx.conn.execute(text(_FILL_QUERIES[tx.conn.dialect.name]), numbers)
    async with store.write() as tx:
        await tx.conn.execute(text("ANALYZE events"))


_ROWS_AT_ONCE = 250_000
_ROW = (
    "SELECT {key}, :workspace, 'grp_1', 'customer-' || (n % 1000), {prefix}, '0123456789abcdef0123456789abcdef',"
    " 'acme/chat', n, 100, 500, 20, 200, NULL, n"
)
_LITE_ROW = _ROW.format(key="printf('01K%023d', n)", prefix="printf('tg_key%08d', n % 1000)")
_POSTGRES_ROW = _ROW.format(
    key="'01K' || lpad(CAST(n AS text), 23, '0')", prefix="'tg_key' || lpad(CAST(n % 1000 AS text), 8, '0')"
)
_FILL_QUERIES = {
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)"
    f" INSERT INTO events ({EVENT_COLUMNS}) {_LITE_ROW} FROM numbers",
    "postgresql": f"INSERT INTO events ({EVENT_COLUMNS}) {_POSTGRES_ROW}"
    " FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n",
}


async def store_as_an_older_version(store: Store, batch: Sequence[BillingEvent]) -> int:
    """Insert what is new of a batch as control did before events had details; returns how many that were."""
    rows = [
        {
            **event._asdict(),
            "timestamp_ms": event.ended_at_ms,
            **{f"{name}_tokens": count for name, count in event.tokens._asdict().items()},
            "ingested_at_ms": event.ended_at_ms,
        }
        for event in batch
    ]
    places = ", ".join(f":{name.strip()}" for name in EVENT_COLUMNS.split(","))
    statement = text(f"INSERT INTO events ({EVENT_COLUMNS}) VALUES ({places}) ON CONFLICT DO NOTHING")

    async def work(tx: WriteTx) -> int:
        return sum([(await tx.conn.execute(statement, row)).rowcount for row in rows])

    return await store.transact(work)


@dataclass(frozen=True, slots=True)
class EventIngest:
    """Ingest of events that are made one by one."""

    ingest: Ingest

    async def commit(self, batch: Sequence[BillingEvent], after: str | None = None) -> int:
        return await self.ingest.commit(columns_of(batch), after)


def ingest_and_reader(store: Store, holdback_s: float = HOLDBACK_S, **more: Any) -> tuple[EventIngest, EventReader]:
    """Ingest and reader of billing events, on one clock."""
    clock: EventClock = more.get("clock", EventClock())
    outbox: Outbox | None = more.get("outbox")
    ingest = EventIngest(Ingest(store, holdback_s, clock, EventDraws().price, outbox))
    return ingest, EventReader(store, holdback_s, clock)


async def clock_ms(store: Store) -> int:
    async with store.read() as conn:
        return (await EventClock().read(conn)).clock_ms


async def all_pages(reader: EventReader, window: EventWindow, limit: int) -> tuple[EventWindow, list[str]]:
    """The window of the answer, and the keys of the events on all its pages."""
    page = await reader.first_page(window, limit)
    window = page.window
    rows = list(page.rows)
    while page.next is not None:
        page = await reader.next_page(window, page.next, page.limit)
        assert page.rows
        rows += page.rows
    assert_ordered(rows)
    return window, [row.idempotency_key for row in rows]


def assert_ordered(rows: Sequence[Any]) -> None:
    order = [(row.timestamp_ms, row.idempotency_key) for row in rows]
    assert order == sorted(set(order))
