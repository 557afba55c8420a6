"""Stores billing events: each once, none in a window that was already served.

An event's timestamp is the end of its call, but never earlier than *clock − holdback / 2*. A transaction that takes
longer than holdback / 4 is rolled back and retried. `clock.py` explains why this suffices.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import bindparam, or_, select, text, update

from control.edges.sql.events.clock import EventClock
from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.tables import api_keys, events
from control.resources.errors import EventsLostError, IngestTooSlowError
from control.time_slices import each
from policy.billing import BillingEvent

log = logging.getLogger(__name__)

ATTEMPTS = 3
SHORTEST_HOLDBACK_S = 0.2
"""With a shorter holdback no transaction meets its deadline of a quarter. It gives no guarantee; only tests use one."""
LONGEST_STATEMENT_S = 600.0
LAST_USED_TOLERANCE_MS = 10_000
_COLUMNS = [str(column.name) for column in events.columns]

Outbox = Callable[[WriteTx, Sequence[dict[str, Any]]], Awaitable[None]]
"""Called with the rows of new events, inside the transaction that stores them."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """Stores events. Several processes may store the same events at the same time."""

    store: Store
    holdback_s: float
    clock: EventClock
    outbox: Outbox | None = None

    async def take(self, batch: Sequence[BillingEvent], after: str | None = None) -> int:
        """Commit a batch; returns how many events were new.

        `after`: the key of an event that was committed before. Raises `EventsLostError` if it is missing, and
        `IngestTooSlowError` if the database cannot keep the deadline.
        """
        if not batch:
            async with self.store.read() as conn:
                await _find(conn, after)
            return 0
        for attempt in range(ATTEMPTS):
            try:
                return await self.store.transact(lambda tx: self._within_deadline(tx, batch, after))
            except IngestTooSlowError:
                log.warning(
                    "Storing %d events took longer than a quarter of TOLLGATE_EVENT_HOLDBACK_S; retrying."
                    " Check the database's load.",
                    len(batch),
                )
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _within_deadline(self, tx: WriteTx, batch: Sequence[BillingEvent], after: str | None) -> int:
        """Checks the deadline at the end instead of cancelling: a cancelled SQLite statement may keep its lock.
        PostgreSQL aborts a statement that hangs by itself."""
        began_s, deadline_s = time.monotonic(), self.holdback_s / 4
        await _find(tx.conn, after)
        if self.holdback_s < SHORTEST_HOLDBACK_S:
            return await self._insert(tx, batch)
        if tx.conn.dialect.name == "postgresql":
            limit_ms = str(int(min(deadline_s, LONGEST_STATEMENT_S) * 1000))
            await tx.conn.execute(text("SELECT set_config('statement_timeout', :ms, true)"), {"ms": limit_ms})
        new = await self._insert(tx, batch)
        if time.monotonic() - began_s > deadline_s:
            raise IngestTooSlowError
        return new

    async def _insert(self, tx: WriteTx, batch: Sequence[BillingEvent]) -> int:
        now_ms = (await self.clock.read_to_stamp(tx)).now_ms
        earliest_ms = now_ms - int(self.holdback_s * 500)
        made = await each(batch, lambda event: _row(event, earliest_ms, now_ms))
        rows = {row["idempotency_key"]: row for row in made}
        # Ordered by key, so that two transactions with the same events cannot deadlock.
        sent = _encoded([rows[key] for key in sorted(rows)], tx.conn.dialect.name)
        inserted = await tx.conn.execute(text(_INSERTS[tx.conn.dialect.name]), {"rows": sent})
        new = [rows[key] for key in inserted.scalars()]
        if new:
            await _mark_keys_used(tx, new)
            if self.outbox is not None:
                await self.outbox(tx, new)
        return len(new)


async def _find(conn: Connection, key: str | None) -> None:
    """Raise `EventsLostError` if there is no event with this key."""
    if key is None:
        return
    known = select(events.c.idempotency_key).where(events.c.idempotency_key == key)
    if (await conn.execute(known)).first() is None:
        raise EventsLostError


def _row(event: BillingEvent, earliest_ms: int, now_ms: int) -> dict[str, Any]:
    """In the order of the table's columns."""
    metadata = event.request_metadata
    return {
        "idempotency_key": event.idempotency_key,
        "workspace_id": event.workspace_id,
        "group_id": event.group_id,
        "external_entity_id": event.external_entity_id,
        "api_key_prefix": event.api_key_prefix,
        "request_id": event.request_id,
        "model_slug": event.model_slug,
        "timestamp_ms": max(event.ended_at_ms, earliest_ms),
        "input_tokens": event.tokens.input,
        "output_tokens": event.tokens.output,
        "cached_input_tokens": event.tokens.cached_input,
        "status": event.status,
        "request_metadata": None if metadata is None else orjson.dumps(metadata).decode(),
        "ingested_at_ms": now_ms,
    }


def _encoded(rows: Sequence[dict[str, Any]], dialect: str) -> str:
    """As JSON: arrays for SQLite; objects for PostgreSQL, which reads an object once and an array once per value."""
    return orjson.dumps([list(row.values()) for row in rows] if dialect == "sqlite" else rows).decode()


def _insert_text(values: Iterable[str], source: str) -> str:
    """One statement with one parameter for any number of rows: binding each value costs more than the insert."""
    return (
        f"INSERT INTO events ({', '.join(_COLUMNS)}) SELECT {', '.join(values)} FROM {source} WHERE true"  # noqa: S608
        " ON CONFLICT (idempotency_key) DO NOTHING RETURNING idempotency_key"
    )


def _type_of(name: str) -> str:
    return "text" if events.columns[name].type.python_type is str else "bigint"


_TYPED = ", ".join(f"{name} {_type_of(name)}" for name in _COLUMNS)
_INSERTS = {
    "sqlite": _insert_text((f"json_extract(value, '$[{n}]')" for n in range(len(_COLUMNS))), "json_each(:rows)"),
    "postgresql": _insert_text(_COLUMNS, f"json_to_recordset(CAST(:rows AS json)) AS r({_TYPED})"),
}


async def _mark_keys_used(tx: WriteTx, rows: Sequence[dict[str, Any]]) -> None:
    """Update `last_used_at` with a tolerance of ten seconds, so that transactions do not queue for a busy key's row."""
    used: dict[str, int] = {}
    for row in rows:
        used[row["api_key_prefix"]] = max(used.get(row["api_key_prefix"], 0), row["timestamp_ms"])
    stale = or_(api_keys.c.last_used_at_ms.is_(None), api_keys.c.last_used_at_ms < tx.now_ms - LAST_USED_TOLERANCE_MS)
    query = select(api_keys.c.prefix).where(one_of(api_keys.c.prefix, used), stale).order_by(api_keys.c.prefix)
    prefixes = (await tx.conn.execute(query.with_for_update(key_share=True))).scalars().all()
    if prefixes:
        change = update(api_keys).where(api_keys.c.prefix == bindparam("of")).values(last_used_at_ms=bindparam("at_ms"))
        await tx.conn.execute(change, [{"of": prefix, "at_ms": used[prefix]} for prefix in prefixes])
