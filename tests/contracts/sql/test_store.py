"""The store on SQLite and PostgreSQL: atomic and serialized writes, outages, and migrations in both directions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, insert, inspect, select, text

from control.edges.sql import model_rows, tables, workspace_rows
from control.edges.sql.billing import tables as billing_tables
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.migrations.migrate import migrate, migrate_down
from control.edges.sql.spend import tables as spend_tables
from control.edges.sql.store import Store, WriteTx, current_revision
from control.edges.sql.traffic import tables as traffic_tables
from control.edges.sql.training import tables as training_tables
from control.errors import DatabaseUnavailableError
from control.records.models import DeploymentRecord
from control.records.policy import WorkspaceRecord
from policy.snapshot import RowKind
from tests.postgres_server import PostgresServer, running_postgres

DEPLOYMENT = DeploymentRecord("d", "m", "first", "DEPLOYING", (), 1, 2)


def workspace(id: str, name: str = "") -> dict[str, object]:
    rest = {"tier": "basic", "billing": "active", "onboarded": True, "created_at_ms": 1}
    return {"id": id, "name": name or id, **rest}


async def names(store: Store) -> list[str]:
    async with store.read() as conn:
        return list((await conn.execute(select(tables.workspaces.c.name).order_by("name"))).scalars())


async def test_failed_write_is_rolled_back_entirely(store: Store) -> None:
    async def fail() -> None:
        async with store.write() as tx:
            await tx.conn.execute(insert(tables.workspaces).values(workspace("a")))
            tx.publish(RowKind.WORKSPACE, "a", {})
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert await names(store) == []
    async with store.read() as conn:
        assert await current_revision(conn) == 0


async def test_cancelled_write_is_rolled_back_and_blocks_no_other(store: Store) -> None:
    inside = asyncio.Event()

    async def wait_inside() -> None:
        async with store.write() as tx:
            await tx.conn.execute(insert(tables.workspaces).values(workspace("a")))
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_inside())
    await inside.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with store.write() as tx:
        await tx.conn.execute(insert(tables.workspaces).values(workspace("b")))
    assert await names(store) == ["b"]


async def test_each_broken_constraint_has_its_own_error(store: Store) -> None:
    async with store.write() as tx:
        await tx.conn.execute(insert(tables.workspaces).values(workspace("a")))
        await tx.conn.execute(insert(tables.prefixes).values(prefix="p", workspace_id="a"))
    with pytest.raises(TakenError) as error:
        async with store.write() as tx:
            await tx.conn.execute(insert(tables.workspaces).values(workspace("b", "a")))
    assert error.value.is_about("name")
    assert not error.value.is_about("prefix")
    with pytest.raises(DanglingError):
        async with store.write() as tx:
            await tx.conn.execute(insert(tables.prefixes).values(prefix="q", workspace_id="nobody"))
    with pytest.raises(DanglingError):
        async with store.write() as tx:
            await tx.conn.execute(text("DELETE FROM workspaces"))


async def test_read_transaction_sees_one_snapshot(store: Store) -> None:
    async with store.read() as conn:
        before = (await conn.execute(select(tables.workspaces.c.id))).all()
        async with store.write() as tx:
            await tx.conn.execute(insert(tables.workspaces).values(workspace("a")))
        assert (await conn.execute(select(tables.workspaces.c.id))).all() == before
    assert await names(store) == ["a"]


async def test_concurrent_writers_assign_revisions_without_gaps(store: Store) -> None:
    """Two stores share one database, as in two processes. No write fails and no revision is used twice."""
    other = Store.at(store.engine.url.render_as_string(hide_password=False))
    published: list[int] = []
    stores = [Store(store.engine, published.append), Store(other.engine, published.append)]

    async def write(number: int) -> None:
        async def work(tx: WriteTx) -> None:
            await tx.conn.execute(insert(tables.workspaces).values(workspace(f"w{number:02}")))
            tx.publish(RowKind.WORKSPACE, f"w{number}", {})

        await stores[number % 2].transact(work)

    await asyncio.gather(*(write(number) for number in range(40)))
    await other.close()
    assert sorted(published) == list(range(1, 41))
    assert len(await names(store)) == 40


async def test_deadlocked_transaction_is_retried(store: Store) -> None:
    """Two transactions lock two rows in opposite order. PostgreSQL aborts one of them, which succeeds on its retry."""
    async with store.write() as tx:
        await tx.conn.execute(insert(tables.workspaces), [workspace("a"), workspace("b")])
    meet = asyncio.Barrier(2)
    tries: list[str] = []

    async def swap(first: str, second: str) -> None:
        async def work(tx: WriteTx) -> None:
            tries.append(first)
            for id in (first, second):
                await tx.conn.execute(text("UPDATE workspaces SET tier = tier || 'x' WHERE id = :id"), {"id": id})
                if id == first and len(tries) <= 2 and store.engine.dialect.name == "postgresql":
                    await meet.wait()

        await store.transact(work)

    await asyncio.gather(swap("a", "b"), swap("b", "a"))
    async with store.read() as conn:
        tiers = (await conn.execute(select(tables.workspaces.c.tier))).scalars().all()
    assert list(tiers) == ["basicxx", "basicxx"]
    if store.engine.dialect.name == "postgresql":
        assert len(tries) == 3


async def test_migrations_upgrade_and_downgrade_a_filled_database(empty_url: str) -> None:
    store = Store.at(empty_url)
    await migrate(store.engine)
    await _fill(store)
    schema = await _schema(store)
    await migrate_down(store.engine, "0001")
    assert await names(store) == ["a"]
    await migrate(store.engine)
    assert await names(store) == ["a"]
    async with store.read() as conn:
        assert await model_rows.list_deployments(conn, "m", None) == [DEPLOYMENT]
    assert await _schema(store) == schema
    await migrate_down(store.engine)
    assert [table for table in await _schema(store) if table != "alembic_version"] == []
    await migrate(store.engine)
    assert await _schema(store) == schema
    await store.close()


async def test_a_workspace_of_the_version_before_has_no_asynchronous_settings(empty_url: str) -> None:
    store = Store.at(empty_url)
    await migrate(store.engine)
    await migrate_down(store.engine, "0005")
    async with store.write() as tx:
        await tx.conn.execute(text("INSERT INTO workspaces VALUES ('a', 'a', 'basic', 'active', true, 1)"))
    await migrate(store.engine)
    async with store.read() as conn:
        (workspace,) = await workspace_rows.all_workspaces(conn)
    assert workspace == WorkspaceRecord("a", "a", "basic", "active", True, 1, None, None, None, 0)
    await store.close()


async def test_tables_modules_match_the_migrated_schema(store: Store) -> None:
    """Queries use the tables modules; migrations create the real tables, with the same columns and indexes."""

    def differences(connection: Connection) -> Any:
        options = {"compare_type": True, "include_name": lambda name, kind, parents: not is_partition(name, kind)}
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, tables.metadata)

    modules = (
        training_tables.training_jobs,
        traffic_tables.traffic,
        billing_tables.hourly_sums,
        spend_tables.spend_progress,
    )
    assert all(table.metadata is tables.metadata for table in modules)
    async with store.engine.connect() as conn:
        assert await conn.run_sync(differences) == []


def is_partition(name: str | None, kind: str) -> bool:
    return kind == "table" and (name or "").startswith("events_")


async def test_damaged_sqlite_file_is_an_outage_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "control.db").write_bytes(b"no database" * 1000)
    store = Store.at(f"sqlite+aiosqlite:///{tmp_path / 'control.db'}")
    with pytest.raises(DatabaseUnavailableError) as damaged:
        await migrate(store.engine)
    assert damaged.value.reason == "file is not a database"
    await store.close()


async def test_store_recovers_after_a_postgresql_outage(
    postgres: PostgresServer, private_postgres: PostgresServer
) -> None:
    store = Store.at(await private_postgres.create_database("away"))
    await migrate(store.engine)
    private_postgres.stop()
    for _ in range(3):
        with pytest.raises(DatabaseUnavailableError):
            await names(store)
        with pytest.raises(DatabaseUnavailableError):
            async with store.write():
                pass
    private_postgres.start()
    assert await names(store) == []
    await store.close()


async def test_lost_connection_rolls_the_transaction_back(private_postgres: PostgresServer) -> None:
    store = Store.at(await private_postgres.create_database("lost"))
    await migrate(store.engine)

    async def lose() -> None:
        async with store.write() as tx:
            await tx.conn.execute(insert(tables.workspaces).values(workspace("a")))
            async with store.read() as other:
                kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                await other.execute(text(f"{kill} AND application_name = 'tollgate-control'"))
            await tx.conn.execute(insert(tables.workspaces).values(workspace("b")))

    with pytest.raises(DatabaseUnavailableError):
        await lose()
    assert await names(store) == []
    await store.close()


async def test_store_recovers_after_a_sqlite_outage(tmp_path: Path) -> None:
    place = tmp_path / "data"
    store = Store.at(f"sqlite+aiosqlite:///{place}/control.db")
    await migrate(store.engine)
    await store.engine.dispose()
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(DatabaseUnavailableError):
        await names(store)
    (tmp_path / "elsewhere").rename(place)
    assert await names(store) == []
    await store.close()


async def _fill(store: Store) -> None:
    async with store.write() as tx:
        await tx.conn.execute(insert(tables.workspaces).values(workspace("a")))
        await tx.conn.execute(insert(tables.prefixes).values(prefix="p", workspace_id="a"))
        await tx.conn.execute(insert(tables.models).values(id="m", workspace_id="a", name="m", created_at_ms=1))
        old = {name: getattr(DEPLOYMENT, name) for name in ("id", "model_id", "name", "status")}
        await tx.conn.execute(insert(tables.deployments).values(**old, replicas="[]", created_at_ms=1, updated_at_ms=2))
        tx.publish(RowKind.WORKSPACE, "a", {})


async def _schema(store: Store) -> dict[str, set[str]]:
    async with store.engine.connect() as conn:
        return await conn.run_sync(
            lambda sync: {
                table: {column["name"] for column in inspect(sync).get_columns(table)}
                for table in inspect(sync).get_table_names()
            }
        )


@pytest.fixture
async def private_postgres(postgres: PostgresServer) -> AsyncIterator[PostgresServer]:
    """A server that the test may stop. Depends on the shared one, which skips the test if no binaries are installed."""
    with running_postgres() as server:
        yield server
