"""Transactions: `read` sees one snapshot; `write` is all or nothing: what changes, its audit, what proxies learn of it.

The revision row is updated last and stays locked until the commit, so a reader of revision R sees all of R. Each
revision has a random nonce, because a restored database may repeat a number. The hint is sent after the commit.

See docs/reference/management-api.md#internal-api.
"""

import asyncio
import copy
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import orjson
from sqlalchemy import Column, ColumnElement, bindparam, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control.edges.sql.database import database_errors, is_retryable, open_engine, read_only_reason
from control.edges.sql.tables import audit_events, published, revision, revision_nonces
from control.errors import DatabaseReadOnlyError, DatabaseUnavailableError
from control.records.audit import Actor, AuditEvent, Change, Shown
from control.records.changes.conditions import Condition
from control.records.ids import new_id
from policy.snapshot import RowKind

T = TypeVar("T")
Connection = AsyncConnection
ATTEMPTS = 4
_CHUNK = 500


def now_ms() -> int:
    """Return the wall-clock time, for timestamps; never used to measure a duration."""
    return time.time_ns() // 1_000_000


class WriteTx:
    """One write transaction: `conn` runs statements, `publish` records what the proxies must learn, `audit` what
    the audit trail says of it. `condition`: what holds of the resource that it changes, or nothing is changed."""

    def __init__(self, conn: AsyncConnection, actor: Actor, condition: Condition) -> None:
        self.conn = conn
        self.condition = condition
        self._actor = actor
        self.now_ms = now_ms()
        self.revision: int | None = None
        self._rows: dict[tuple[str, str], str | None] = {}
        self._audited: list[AuditEvent] = []

    def audit(self, workspace_id: str, change: Change) -> None:
        """Write this change of one of the workspace's resources into its audit trail, with the transaction."""
        what = (self.now_ms, self._actor.name, change.action, change.resource)
        sides = (_side(change.before), _side(change.after))
        self._audited.append(AuditEvent(new_id("aud"), workspace_id, *what, *sides, self._actor.request_id))

    def publish(self, kind: RowKind, id: str, body: Mapping[str, Any] | None) -> None:
        """Put (kind, id) into the snapshot; a body of None removes it. The last call in a transaction wins."""
        encoded = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        self.publish_text(kind, id, encoded)

    def publish_text(self, kind: RowKind, id: str, encoded: str | None) -> None:
        """The same for a body that is already JSON text."""
        self._rows[(kind.value, id)] = encoded

    async def publish_tombstones(self, kind: RowKind, ids: Column[str], *where: ColumnElement[bool]) -> None:
        """Publish a tombstone for every matching id. Call this before deleting the rows."""
        revision_ = await self._next_revision()
        dead = select(literal(kind.value), ids, literal(revision_), literal(self.now_ms)).where(*where)
        columns = ["kind", "id", "revision", "published_at_ms"]
        await self.conn.execute(self._upsert(self._insert().from_select(columns, dead)))

    async def finish(self) -> int | None:
        """Write what was audited, and what was published under the next revision; None if nothing was published."""
        if self._audited:  # before the revision, whose row other writers wait for
            names = AuditEvent.__dataclass_fields__
            audited = [{name: getattr(event, name) for name in names} for event in self._audited]
            await self.conn.execute(insert(audit_events), audited)
        if not self._rows:
            return self.revision
        stamp = {"revision": await self._next_revision(), "published_at_ms": self.now_ms}
        rows = [{"kind": kind, "id": id, "body": body, **stamp} for (kind, id), body in self._rows.items()]
        columns = ("kind", "id", "revision", "body", "published_at_ms")
        statement = self._upsert(self._insert().values({name: bindparam(name) for name in columns}))
        for start in range(0, len(rows), _CHUNK):
            await self.conn.execute(statement, rows[start : start + _CHUNK])
        return self.revision

    async def _next_revision(self) -> int:
        if self.revision is None:
            bump = update(revision).values(value=revision.c.value + 1).returning(revision.c.value)
            self.revision = (await self.conn.execute(bump)).scalar_one()
            stamp = {"revision": self.revision, "nonce": secrets.token_hex(8), "published_at_ms": self.now_ms}
            await self.conn.execute(insert(revision_nonces).values(stamp))
        return self.revision

    def _insert(self) -> Any:
        return (sqlite if self.conn.dialect.name == "sqlite" else postgresql).insert(published)

    @staticmethod
    def _upsert(insert: Any) -> Any:
        new = {name: insert.excluded[name] for name in ("revision", "body", "published_at_ms")}
        return insert.on_conflict_do_update(index_elements=["kind", "id"], set_=new)


def _side(fields: Shown | None) -> str | None:
    return None if fields is None else orjson.dumps(fields).decode()


class Writability:
    """The reason why the last write failed, if it was because the database can be read and not written."""

    def __init__(self) -> None:
        self.trouble = ""

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note how the write within ends."""
        try:
            yield
        except DatabaseReadOnlyError as error:
            self.trouble = error.reason
            raise
        self.trouble = ""


class Store:
    """The database as transactions. Calls `on_published` with each new revision after its commit; it must not block.

    Changes are audited as those of the command line, unless the store is one of `acting_as`.
    """

    def __init__(self, engine: AsyncEngine, on_published: Callable[[int], None] | None = None) -> None:
        self.engine = engine
        self._actor = Actor()
        self._condition = Condition()
        self._on_published = on_published
        self._writability = Writability()
        # SQLite has one writer. A lock here is fair; SQLite itself would poll.
        self._write_lock = asyncio.Lock() if engine.dialect.name == "sqlite" else nullcontext()

    @classmethod
    def at(cls, database_url: str, on_published: Callable[[int], None] | None = None) -> "Store":
        """A store for the database at that URL. Connects with the first transaction."""
        return cls(open_engine(database_url), on_published)

    def acting_as(self, actor: Actor) -> "Store":
        """The same store; changes through it are audited as this actor's."""
        view = copy.copy(self)
        view._actor = actor
        return view

    def on_condition(self, condition: Condition) -> "Store":
        """The same store; its transactions have this condition."""
        view = copy.copy(self)
        view._condition = condition
        return view

    async def close(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection that sees one snapshot of the database."""
        with database_errors():
            async with self.engine.connect() as conn:
                if conn.dialect.name == "postgresql":
                    conn = await conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                async with conn.begin():
                    yield conn

    @asynccontextmanager
    async def write(self) -> AsyncIterator[WriteTx]:
        """A transaction that commits unless the block raises. On PostgreSQL it may need a retry: see `transact`."""
        with self._writability.noting(), database_errors():
            async with self._write() as tx:
                yield tx

    async def transact(self, work: Callable[[WriteTx], Awaitable[T]]) -> T:
        """Run `work` in a write transaction; retry it after a serialization failure or deadlock."""
        with self._writability.noting(), database_errors():
            for attempt in range(ATTEMPTS):
                try:
                    async with self._write() as tx:
                        return await work(tx)
                except DBAPIError as error:
                    if attempt == ATTEMPTS - 1 or not is_retryable(error):
                        raise
                    await asyncio.sleep(0.02 * 2**attempt)
            raise AssertionError("the loop returns or raises")

    async def write_trouble(self) -> str:
        """The reason why the database can be read only; "" if not. Tries to write after a write has failed."""
        async with self.read() as conn:
            reason = await read_only_reason(conn)
        if reason or not self._writability.trouble:
            return reason
        with suppress(DatabaseUnavailableError):
            async with self.write() as tx:
                await tx.conn.execute(update(revision).values(value=revision.c.value))
        return self._writability.trouble

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[WriteTx]:
        async with self._write_lock, self.engine.connect() as conn:
            conn = await conn.execution_options(tollgate_writes=True)
            async with conn.begin():
                tx = WriteTx(conn, self._actor, self._condition)
                yield tx
                await tx.finish()
        if tx.revision is not None and self._on_published is not None:
            self._on_published(tx.revision)


class UncancelledWork:
    """Runs transactions that complete even if the task that awaits them is cancelled: SQLite might keep its lock."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def finish(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def in_batches(store: Store, change: Callable[[WriteTx], Awaitable[int]]) -> int:
    """Repeat a small transaction until it changes no row; returns how many rows it changed in all."""
    total = 0
    while (changed := await store.transact(change)) > 0:
        total += changed
    return total


async def current_revision(conn: AsyncConnection) -> int:
    """The revision that `conn` sees."""
    value: int = (await conn.execute(select(revision.c.value))).scalar_one()
    return value
