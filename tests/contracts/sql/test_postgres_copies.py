"""The databases that tests borrow: each is as if it had just been copied."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.postgres_copies import PostgresCopies
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    """The server, with a database to copy."""
    asyncio.run(_make_original(postgres))
    return postgres


@pytest.fixture
def copies(server: PostgresServer) -> PostgresCopies:
    return PostgresCopies(server, "original")


@asynccontextmanager
async def connected(copies: PostgresCopies, url: str) -> AsyncIterator[Any]:
    async with copies.server.connection(urlsplit(url).path[1:]) as connection:
        yield connection


async def test_rows_and_numbers_are_those_of_the_original_again(copies: PostgresCopies) -> None:
    for _ in range(2):
        async with copies.one() as url, connected(copies, url) as connection:
            assert await connection.fetch("SELECT * FROM parent") == [(0, "first")]
            assert await connection.fetch("SELECT * FROM child") == []
            assert await connection.fetchval("INSERT INTO parent (name) VALUES ('second') RETURNING id") == 1
            await connection.execute("INSERT INTO child VALUES (0), (1)")
            await connection.execute("UPDATE parent SET name = 'changed'")
    assert copies.count == 1


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE another ()",
        "ALTER TABLE parent ADD COLUMN more int",
        "ALTER TABLE parent ALTER COLUMN name SET NOT NULL",
        "ALTER TABLE child ADD CONSTRAINT few CHECK (parent < 9)",
        "DROP TABLE child",
        "CREATE INDEX ON child (parent)",
        "CREATE SCHEMA another",
        "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "ANALYZE parent",
    ],
)
async def test_a_copy_whose_schema_changed_is_not_used_again(copies: PostgresCopies, change: str) -> None:
    async with copies.one() as first, connected(copies, first) as connection:
        await connection.execute(change)
    async with copies.one() as second:
        assert second != first
    assert copies.count == 2


async def test_a_connection_that_a_test_left_open_is_closed(copies: PostgresCopies) -> None:
    async with copies.one() as url:
        connection = await asyncpg.connect(
            host=str(copies.server.directory), user="tollgate", database=urlsplit(url).path[1:]
        )
        await connection.execute("BEGIN; LOCK TABLE parent")
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await connection.execute("SELECT 1")


async def _make_original(server: PostgresServer) -> None:
    await server.create_database("original")
    async with server.connection("original") as connection:
        await connection.execute("CREATE TABLE parent (id serial PRIMARY KEY, name text)")
        await connection.execute("CREATE TABLE child (parent int NOT NULL REFERENCES parent)")
        await connection.execute("INSERT INTO parent VALUES (0, 'first')")
