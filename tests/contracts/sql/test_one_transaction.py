"""The view of a store whose transactions are one, on SQLite and PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import DBAPIError

from control.edges.sql.database import TakenError
from control.edges.sql.idempotency.one_transaction import OneTransaction
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.tables import workspaces
from control.errors import DatabaseUnavailableError
from policy.snapshot import RowKind


class Beginnings:
    """Counts the transactions that begin."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, _tx: WriteTx) -> None:
        self.count += 1


def row(id: str) -> dict[str, Any]:
    return {"id": id, "name": id, "tier": "basic", "billing": "active", "onboarded": True, "created_at_ms": 1}


async def add(store: Store, id: str) -> None:
    async def work(tx: WriteTx) -> None:
        await tx.conn.execute(insert(workspaces).values(row(id)))
        tx.publish(RowKind.WORKSPACE, id, {})

    await store.transact(work)


async def ids_in(conn: Connection) -> list[str]:
    return list((await conn.execute(select(workspaces.c.id).order_by("id"))).scalars())


async def ids(store: Store) -> list[str]:
    async with store.read() as conn:
        return await ids_in(conn)


async def test_writes_commit_together_at_the_end_and_are_told_of_once(database_url: str) -> None:
    revisions: list[int] = []
    store = Store.at(database_url, revisions.append)
    begin = Beginnings()
    async with OneTransaction(store, begin) as one:
        assert await ids(one) == []
        assert begin.count == 0
        await add(one, "a")
        await add(one, "b")
        assert one.has_written
        assert await ids(one) == ["a", "b"]
        assert await ids(store) == []
        assert revisions == []
    assert await ids(store) == ["a", "b"]
    assert (begin.count, revisions) == (1, [1])
    await store.close()


async def test_an_error_undoes_all(store: Store) -> None:
    async def fail() -> None:
        async with OneTransaction(store, Beginnings()) as one:
            await add(one, "a")
            await add(one, "b")
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert await ids(store) == []
    await add(store, "c")  # no lock is left


async def test_a_first_write_that_fails_may_be_tried_anew(store: Store) -> None:
    await add(store, "a")
    begin = Beginnings()
    async with OneTransaction(store, begin) as one:
        with pytest.raises(TakenError):
            await add(one, "a")
        assert not one.has_written
        await add(one, "b")
    assert await ids(store) == ["a", "b"]
    assert begin.count == 2


async def test_without_a_write_nothing_begins(store: Store) -> None:
    begin = Beginnings()
    async with OneTransaction(store, begin) as one:
        assert await ids(one) == []
    assert begin.count == 0


class ConflictError(Exception):
    """A driver's report of a deadlock."""

    sqlstate = "40P01"


async def test_a_conflict_after_the_first_write_is_an_outage_and_undoes_all(store: Store) -> None:
    async def conflict(_tx: WriteTx) -> None:
        raise DBAPIError("UPDATE", {}, ConflictError())

    async def write_twice() -> None:
        async with OneTransaction(store, Beginnings()) as one:
            await add(one, "a")
            await one.transact(conflict)

    with pytest.raises(DatabaseUnavailableError):
        await write_twice()
    assert await ids(store) == []
