"""A database that can be read and not written: control reads on, says so, and notices when it can write again."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from control.edges.sql.store import Store, WriteTx, current_revision
from control.errors import DatabaseReadOnlyError
from control.readiness import ReadinessChecks
from policy.snapshot import RowKind


@asynccontextmanager
async def read_only(store: Store) -> AsyncIterator[None]:
    """The database takes no writes meanwhile, on the connections that the store has and on new ones."""
    if store.engine.dialect.name == "sqlite":
        event.listen(store.engine.sync_engine, "connect", _take_no_writes)
        await store.engine.dispose()
        yield
        event.remove(store.engine.sync_engine, "connect", _take_no_writes)
        await store.engine.dispose()
        return
    name = store.engine.url.database
    await _administer(store, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    yield
    await _administer(store, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


def _take_no_writes(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


async def _administer(store: Store, statement: str) -> None:
    async with store.engine.connect() as conn:
        await conn.execute(text("SET default_transaction_read_only = off"))
        await conn.commit()
        await conn.execute(text("BEGIN READ WRITE"))
        await conn.execute(text(statement))
        await conn.commit()
    await store.engine.dispose()


async def write(store: Store) -> None:
    async with store.write() as tx:
        tx.publish(RowKind.WORKSPACE, "a", {})


async def transact(store: Store) -> None:
    async def work(tx: WriteTx) -> None:
        tx.publish(RowKind.WORKSPACE, "a", {})

    await store.transact(work)


@pytest.mark.parametrize("change", [write, transact], ids=lambda one: one.__name__)
async def test_change_is_refused_as_read_only_and_reads_go_on(
    store: Store, change: Callable[[Store], Awaitable[None]]
) -> None:
    await change(store)
    assert await store.write_trouble() == ""
    async with read_only(store):
        trouble = "" if store.engine.dialect.name == "sqlite" else "default_transaction_read_only is on"
        assert await store.write_trouble() == trouble, "before a write has failed"
        with pytest.raises(DatabaseReadOnlyError, match="can be read but not written"):
            await change(store)
        assert "read" in await store.write_trouble()
        (entry,) = [text for text in await ReadinessChecks(store, (), None).degraded() if "database" in text]
        assert entry.startswith("database_read_only: ")
        async with store.read() as conn:
            assert await current_revision(conn) == 1
    assert await store.write_trouble() == ""
    await change(store)


async def test_full_sqlite_database_is_read_only_until_it_has_room(migrated_file: Path, tmp_path: Path) -> None:
    shutil.copy(migrated_file, tmp_path / "control.db")
    store = Store.at(f"sqlite+aiosqlite:///{tmp_path / 'control.db'}")
    async with store.engine.connect() as conn:
        await conn.execute(text("PRAGMA max_page_count = 1"))  # as many as there are
    with pytest.raises(DatabaseReadOnlyError):
        async with store.write() as tx:
            tx.publish(RowKind.WORKSPACE, "large", {"name": "x" * 1_000_000})
    assert await store.write_trouble() == "", "a small change still fits"
    await store.close()
