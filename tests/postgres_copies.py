"""Databases for tests that need one alike: a database that was migrated once is copied, and the copy is used again.

To copy a database takes 200 ms of CPU, to empty one 20 ms. A copy whose schema a test changed is dropped.
"""

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from tests.postgres_server import PostgresServer

# What a test may leave in the schema: tables, partitions, columns, constraints, triggers, functions, statistics.
_SCHEMA = """
WITH ours AS (SELECT oid, relname, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace),
  parts (part) AS (
    SELECT concat_ws(' ', 'relation', oid, relname, relkind) FROM ours
    UNION ALL SELECT concat_ws(' ', 'column', attrelid, attname, atttypid, attnotnull, atthasdef)
      FROM pg_attribute WHERE attrelid IN (SELECT oid FROM ours)
    UNION ALL SELECT concat_ws(' ', 'constraint', oid, conname, convalidated) FROM pg_constraint
    UNION ALL SELECT concat_ws(' ', 'trigger', oid, tgname, tgenabled) FROM pg_trigger
    UNION ALL SELECT concat_ws(' ', 'index', indexrelid, indisvalid) FROM pg_index
    UNION ALL SELECT concat_ws(' ', 'schema', oid, nspname) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'
    UNION ALL SELECT concat_ws(' ', 'function', oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT concat_ws(' ', 'statistics', starelid) FROM pg_statistic
      WHERE starelid IN (SELECT oid FROM ours)
    UNION ALL SELECT concat_ws(' ', 'setting', setconfig) FROM pg_db_role_setting
  )
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM parts"""
_WRITTEN = """
SELECT oid::regclass::text FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0"""
_DISCONNECT = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""

_numbers = itertools.count()
Rows = Mapping[str, list[tuple[Any, ...]]]


@dataclass
class PostgresCopies:
    """Copies of one database of a server, lent to one test at a time. No number of its sequences is used yet."""

    server: PostgresServer
    original: str
    count: int = 0
    _rows: Rows | None = None
    _free: dict[str, str] = field(default_factory=dict)
    """Copies that nobody uses, by name, with what their schema was when they were made."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[str]:
        """The URL of a copy, whose tables hold what the original's do."""
        name, schema = self._free.popitem() if self._free else await self._make()
        yield self.server.url(name)
        if await self._restored(name, schema):
            self._free[name] = schema
        else:
            await self.server.drop_database(name)

    async def _make(self) -> tuple[str, str]:
        self.count += 1
        name = f"{self.original}_{next(_numbers)}"
        await self.server.create_database(name, template=self.original)
        async with self.server.connection(name) as connection:
            if self._rows is None:
                tables = [table for (table,) in await connection.fetch(_WRITTEN)]
                self._rows = {table: await connection.fetch(f"SELECT * FROM {table}") for table in tables}
            return name, await connection.fetchval(_SCHEMA)

    async def _restored(self, name: str, schema: str) -> bool:
        """Give the copy its first rows again. False if its schema is another one, or the database is gone."""
        assert self._rows is not None
        try:
            async with self.server.connection(name) as connection:
                await connection.execute(_DISCONNECT)
                if await connection.fetchval(_SCHEMA) != schema:
                    return False
                # TRUNCATE makes new files for each table and for each that refers to it: ten times as much work.
                await connection.execute("SET session_replication_role = replica")  # checks no foreign keys
                for (table,) in await connection.fetch(_WRITTEN):
                    await connection.execute(f"DELETE FROM {table}")
                    await connection.execute(f"VACUUM {table}")
                await connection.execute("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'")
                for table, rows in self._rows.items():
                    await connection.copy_records_to_table(table, records=rows)
                return True
        except asyncpg.InvalidCatalogNameError:
            return False
