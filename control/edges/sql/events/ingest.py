"""Stores billing events: each once, none in a window that was already served.

An event's timestamp is the end of its call, but never earlier than *clock − holdback / 2*. A transaction that takes
longer than holdback / 4 is rolled back and retried. `clock.py` explains why this suffices.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import orjson
from sqlalchemy import bindparam, or_, select, text, update

from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.deadline import within_deadline
from control.edges.sql.group_rows import paths_of
from control.edges.sql.one_of import one_of
from control.edges.sql.spend.balance_rows import add_draws
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.tables import DETAIL_FIGURES, api_keys, events
from control.edges.sql.webhook_rows import enabled_webhooks
from control.errors import EventsLostError, IngestTooSlowError
from control.long_work import OPERATOR, beside
from control.records.webhooks import Receiver
from policy.billing import EVENT_TYPE, Details, EventColumns, is_charged

log = logging.getLogger(__name__)

ATTEMPTS = 3
LAST_USED_TOLERANCE_MS = 10_000
_EVENTS_PER_ITEM = 10
"""The number of events that are stamped in the time of one item of long work."""


class NewEvent(NamedTuple):
    """A row of `events` that is being stored: its columns by name."""

    idempotency_key: str
    workspace_id: str
    group_id: str
    external_entity_id: str
    api_key_prefix: str
    request_id: str
    model_slug: str
    timestamp_ms: int
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    status: int
    request_metadata: str | None
    ingested_at_ms: int
    source: str | None = None
    group_path: str = ""
    service_tier: str | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    reasoning_tokens: int | None = None
    audio_input_tokens: int | None = None
    audio_output_tokens: int | None = None
    image_input_tokens: int | None = None
    image_output_tokens: int | None = None
    server_tool_calls: int | None = None
    charged: int = 1
    balance_group: str | None = None
    draw: str | None = None


_COLUMNS = NewEvent._fields
_UNCHANGED = (*_COLUMNS[:7], "status")


class NewRows(NamedTuple):
    """Rows of `events` that are being stored: the columns that have a value in any of them, and the values.

    The key is the first column. Plain tuples: sqlite3 binds them in half the time of named ones.
    """

    names: Sequence[str]
    values: Sequence[tuple[Any, ...]]

    def column(self, name: str) -> list[Any]:
        place = self.names.index(name)
        return [row[place] for row in self.values]

    def events(self) -> list[NewEvent]:
        """The rows with all columns, by name."""
        nothing = [None] * len(self.values)
        columns = dict(zip(self.names, zip(*self.values, strict=True), strict=True))
        return list(map(NewEvent._make, zip(*(columns.get(name, nothing) for name in _COLUMNS), strict=True)))


Receivers = Mapping[str, Sequence[Receiver]]
"""The enabled webhooks of each workspace that has any which are told of billing events."""
Outbox = Callable[[WriteTx, Sequence[NewEvent], Receivers], Awaitable[None]]
"""A function that is called inside the transaction that stores new events, with these if anybody receives some."""
Draws = Callable[[WriteTx, Sequence[NewEvent]], Awaitable[Sequence[NewEvent]]]
"""A function that returns events with what each draws from its balance (`draw`), before they are stored. Their balance
groups exist until the transaction ends."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """Stores events. Several processes may store the same events at the same time."""

    store: Store
    holdback_s: float
    clock: EventClock
    draws: Draws
    outbox: Outbox | None = None

    async def commit(self, batch: EventColumns, after: str | None = None) -> int:
        """Commit a batch; returns how many events were new.

        `after`: the key of an event that was committed before. Raises `EventsLostError` if it is missing, and
        `IngestTooSlowError` if the database cannot keep the deadline.
        """
        if not batch["idempotency_key"]:
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
                    len(batch["idempotency_key"]),
                )
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the loop returns or raises")

    async def _within_deadline(self, tx: WriteTx, batch: EventColumns, after: str | None) -> int:
        async with within_deadline(tx, self.holdback_s):
            await _find(tx.conn, after)
            return await self._insert(tx, batch)

    async def _insert(self, tx: WriteTx, batch: EventColumns) -> int:
        now_ms = (await self.clock.read_to_stamp(tx)).now_ms
        earliest_ms = now_ms - int(self.holdback_s * 500)
        receivers = await enabled_webhooks(tx.conn, sorted(set(batch["workspace_id"])), EVENT_TYPE)
        # A proxy of an older version does not tell them.
        pathless = {id for id, path in zip(batch["group_id"], batch["group_path"], strict=True) if not path}
        stamped = partial(_stamped, batch, earliest_ms, now_ms, receivers, await paths_of(tx.conn, pathless))
        items = len(batch["idempotency_key"]) // _EVENTS_PER_ITEM
        rows: NewRows = await beside(OPERATOR, items, stamped)
        if any(batch["balance_group"]):
            rows = _drawing(rows, await self.draws(tx, await beside(OPERATOR, items, rows.events)))
        rows = await _INSERTS[tx.conn.dialect.name](tx.conn, rows)
        if rows.values:
            await _mark_keys_used(tx, rows)
            draws = "draw" in rows.names
            new = await beside(OPERATOR, items, rows.events) if draws or receivers else ()
            if self.outbox is not None:
                await self.outbox(tx, new, receivers)
            if draws:
                await add_draws(tx, new)  # last: other transactions wait for these rows
        return len(rows.values)


async def _find(conn: Connection, key: str | None) -> None:
    """Raise `EventsLostError` if there is no event with this key."""
    if key is None:
        return
    query = select(events.c.idempotency_key).where(events.c.idempotency_key == key)
    if (await conn.execute(query)).first() is None:
        raise EventsLostError


def _stamped(
    batch: EventColumns,
    earliest_ms: int,
    now_ms: int,
    receivers: Container[str],
    paths: Mapping[str, str],
) -> NewRows:
    """The rows of these events, each once, by key: two transactions with the same events cannot deadlock.

    Made column by column. Metadata is for webhooks alone: without a receiver none is stored. A group that is no more
    has its id as its path.
    """
    columns: dict[str, Iterable[Any]] = {name: batch[name] for name in _UNCHANGED}
    of_groups = zip(batch["group_id"], batch["group_path"], strict=True)
    figures = zip(*batch["tokens"], strict=True)
    columns |= dict(zip(("input_tokens", "output_tokens", "cached_input_tokens"), figures, strict=True))
    columns |= {
        "timestamp_ms": [max(at_ms, earliest_ms) for at_ms in batch["ended_at_ms"]],
        "ingested_at_ms": repeat(now_ms, len(batch["idempotency_key"])),
        "group_path": [path or paths.get(id) or f"{id}/" for id, path in of_groups],
        "charged": _charged(batch),
        **_detail_columns(batch["details"]),
    }
    if receivers:
        of_calls = zip(batch["workspace_id"], batch["request_metadata"], strict=True)
        columns["request_metadata"] = [_text_of(metadata) if id in receivers else None for id, metadata in of_calls]
    for name in ("source", "balance_group"):
        if any(batch[name]):
            columns[name] = [text or None for text in batch[name]]
    rows = list(zip(*columns.values(), strict=True))
    if len(set(batch["idempotency_key"])) < len(rows):
        rows = list({row[0]: row for row in rows}.values())
    rows.sort()  # by the key, in which no two are equal
    return NewRows(list(columns), rows)


def _charged(batch: EventColumns) -> list[int]:
    """Return for each call whether it costs `per_call`: 1 or 0."""
    calls = list(zip(batch["source"], batch["status"], batch["is_count"], strict=True))
    charged = {call: int(is_charged(*call)) for call in set(calls)}  # most calls end alike
    return [charged[call] for call in calls]


def _detail_columns(details: Sequence[Details]) -> dict[str, Iterable[Any]]:
    """The columns of these details that have a value: null where there is nothing."""
    columns = zip((*DETAIL_FIGURES, "service_tier"), zip(*details, strict=True), strict=True)
    return {name: [value or None for value in column] for name, column in columns if any(column)}


def _text_of(metadata: Mapping[str, Any] | None) -> str | None:
    return None if metadata is None else orjson.dumps(metadata).decode()


def _drawing(rows: NewRows, priced: Sequence[NewEvent]) -> NewRows:
    """The rows with what each draws from its balance."""
    return NewRows([*rows.names, "draw"], [(*row, event.draw) for row, event in zip(rows.values, priced, strict=True)])


async def _insert_in_sqlite(conn: Connection, rows: NewRows) -> NewRows:
    """Insert those that are new. This transaction is the only writer, so it may look first.

    Binding values costs less than SQLite's JSON: 4.2 µs a row instead of 6.6.
    """
    keys = orjson.dumps([row[0] for row in rows.values]).decode()
    old_keys = set((await conn.execute(_KNOWN, {"keys": keys})).scalars())
    if old_keys:
        rows = NewRows(rows.names, [row for row in rows.values if row[0] not in old_keys])
    if rows.values:
        places = ", ".join("?" * len(rows.names))
        statement = f"INSERT INTO events ({', '.join(rows.names)}) VALUES ({places})"  # noqa: S608 (ours)
        await conn.exec_driver_sql(statement, rows.values)
    return rows


_KNOWN = text("SELECT idempotency_key FROM events WHERE idempotency_key IN (SELECT value FROM json_each(:keys))")


async def _insert_in_postgresql(conn: Connection, rows: NewRows) -> NewRows:
    """Insert those that are new, whatever other transactions insert. One parameter for any number of rows, of objects:
    PostgreSQL reads an object once, and an array once per value. Their keys come back as one text, too."""
    objects = orjson.dumps([dict(zip(rows.names, row, strict=True)) for row in rows.values]).decode()
    inserted = set(orjson.loads((await conn.execute(_INSERT_OBJECTS, {"rows": objects})).scalar_one()))
    if len(inserted) == len(rows.values):
        return rows
    return NewRows(rows.names, [row for row in rows.values if row[0] in inserted])


def _type_of(name: str) -> str:
    return "text" if events.columns[name].type.python_type is str else "bigint"


_TYPED = ", ".join(f"{name} {_type_of(name)}" for name in _COLUMNS)
_INSERT_OBJECTS = text(
    f"WITH new AS (INSERT INTO events ({', '.join(_COLUMNS)}) SELECT {', '.join(_COLUMNS)}"  # noqa: S608 (ours)
    f" FROM json_to_recordset(CAST(:rows AS json)) AS r({_TYPED}) WHERE true"
    " ON CONFLICT (idempotency_key) DO NOTHING RETURNING idempotency_key)"
    " SELECT CAST(coalesce(json_agg(idempotency_key), '[]') AS text) FROM new"
)
_INSERTS = {"sqlite": _insert_in_sqlite, "postgresql": _insert_in_postgresql}


async def _mark_keys_used(tx: WriteTx, rows: NewRows) -> None:
    """Update `last_used_at` with a tolerance of ten seconds, so that transactions do not queue for a busy key's row."""
    last_uses: dict[str, int] = {}
    for prefix, at_ms in zip(rows.column("api_key_prefix"), rows.column("timestamp_ms"), strict=True):
        if at_ms > last_uses.get(prefix, -1):
            last_uses[prefix] = at_ms
    stale = or_(api_keys.c.last_used_at_ms.is_(None), api_keys.c.last_used_at_ms < tx.now_ms - LAST_USED_TOLERANCE_MS)
    query = select(api_keys.c.prefix).where(one_of(api_keys.c.prefix, last_uses), stale).order_by(api_keys.c.prefix)
    prefixes = (await tx.conn.execute(query.with_for_update(key_share=True))).scalars().all()
    if prefixes:
        change = update(api_keys).where(api_keys.c.prefix == bindparam("of")).values(last_used_at_ms=bindparam("at_ms"))
        await tx.conn.execute(change, [{"of": prefix, "at_ms": last_uses[prefix]} for prefix in prefixes])
