"""At 100 000 groups and 1 000 000 keys every list and delta query goes by an index: the plans are asserted.

The statements are taken from the functions that control itself runs, not written again here.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from control.edges.sql import endpoint_rows, group_rows, key_rows, published_rows, secret_rows, workspace_rows
from control.edges.sql.database import migrate
from control.edges.sql.store import Connection, Store
from control.resources import policy_feed
from control.resources.policy_feed import FeedReader
from tests.control.conftest import postgres
from tests.postgres_server import PostgresServer

__all__ = ["postgres"]

GROUPS, KEYS = 100_000, 1_000_000
WORKSPACE, OTHER = "ws_a", "ws_b"
LIMIT = 101
pytestmark = pytest.mark.timeout(300)

# Every tenth group is a root, the others are its children; ten keys a group; one row in twenty is a tombstone.
_FILL = (
    "INSERT INTO workspaces SELECT 'ws_a', 'a', 'basic', 'active', true, 1",
    "INSERT INTO workspaces SELECT 'ws_b', 'b', 'basic', 'active', true, 1",
    "INSERT INTO prefixes VALUES ('acme', 'ws_a')",
    """INSERT INTO groups (id, workspace_id, parent_id, root_id, path, enforcement, external_entity_id, name, models,
         created_at_ms, updated_at_ms)
       SELECT {group}, CASE WHEN n % 1000 = 0 THEN 'ws_b' ELSE 'ws_a' END, CASE WHEN n % 10 = 0 THEN NULL ELSE {root}
         END, {root}, CASE WHEN n % 10 = 0 THEN {root} || '/' ELSE {root} || '/' || {group} || '/' END, 'CASCADING',
         'entity' || n, NULL, '[]', n, n FROM {groups}""",
    """INSERT INTO api_keys (prefix, digest, kind, workspace_id, group_id, name, created_at_ms, last_used_at_ms)
       SELECT 'tg_' || n, 'digest' || n, 'FEDERATED', 'ws_a', {group_of_key}, NULL, n, NULL FROM {keys}""",
    """INSERT INTO api_keys (prefix, digest, kind, workspace_id, group_id, name, created_at_ms, last_used_at_ms)
       SELECT 'own' || n, 'own' || n, 'WORKSPACE_INVOKE', 'ws_a', NULL, NULL, n, NULL FROM {groups} WHERE n < 1000""",
    """INSERT INTO published (kind, id, revision, body, published_at_ms)
       SELECT 'key', 'digest' || n, n, CASE WHEN n % 20 = 0 THEN NULL ELSE '{{}}' END, n FROM {keys}""",
    """INSERT INTO endpoints (id, workspace_id, slug, target, secret_id, model_id, created_at_ms, updated_at_ms)
       SELECT 'ep' || n, 'ws_a', 'acme/' || n, '{{"provider":"PLATFORM"}}', NULL, NULL, n, n FROM {groups}
       WHERE n < 10000""",
    """INSERT INTO secrets SELECT 'sec' || n, 'ws_a', 'n' || n, '', n, n FROM {groups} WHERE n < 10000""",
    f"UPDATE revision SET value = {KEYS}",
    f"INSERT INTO revision_nonces VALUES ({KEYS}, 'nonce', 0)",
)
_SQLITE = {
    "group": "printf('grp_%06d', n)",
    "root": "printf('grp_%06d', n - n % 10)",
    "group_of_key": f"printf('grp_%06d', n % {GROUPS})",
    "groups": f"(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n+1 FROM s WHERE n < {GROUPS - 1}) SELECT n FROM s)",
    "keys": f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM s WHERE n < {KEYS}) SELECT n FROM s)",
}
_POSTGRESQL = {
    "group": "'grp_' || to_char(n, 'FM000000')",
    "root": "'grp_' || to_char(n - n % 10, 'FM000000')",
    "group_of_key": f"'grp_' || to_char(n % {GROUPS}, 'FM000000')",
    "groups": f"generate_series(0, {GROUPS - 1}) AS n",
    "keys": f"generate_series(1, {KEYS}) AS n",
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('scale')}/control.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = asyncio.run(server.create_database("scale"))
    asyncio.run(_fill(url))
    return url


@pytest.fixture
async def store(filled_url: str) -> AsyncIterator[Store]:
    found = Store.at(filled_url)
    yield found
    await found.close()


async def _fill(url: str) -> None:
    store = Store.at(url)
    await migrate(store.engine)
    is_sqlite = store.engine.dialect.name == "sqlite"
    async with store.write() as tx:
        if not is_sqlite:
            await tx.conn.execute(text("SET LOCAL session_replication_role = replica"))  # no foreign keys for once
        for statement in _FILL:
            await tx.conn.exec_driver_sql(statement.format(**(_SQLITE if is_sqlite else _POSTGRESQL)))
        if not is_sqlite:  # autovacuum would; nobody does it for SQLite, which must choose well without
            await tx.conn.exec_driver_sql("ANALYZE")
    await store.close()


Look = Callable[[Connection], Awaitable[Any]]


async def _subtree(conn: Connection) -> None:
    record = await group_rows.find_group(conn, WORKSPACE, "grp_050010")
    assert record is not None
    batches = [batch async for batch in group_rows.descendants_of(conn, record)]
    assert len(batches[0]) == 9


LOOKS: dict[str, Look] = {
    "a key by its digest": lambda c: key_rows.find_by_digest(c, "digest777777"),
    "a key by its prefix": lambda c: key_rows.get_key(c, WORKSPACE, "grp_077777", "tg_777777"),
    "a group's keys": lambda c: key_rows.list_keys(c, WORKSPACE, "grp_077777", None, LIMIT),
    "a group's keys, later": lambda c: key_rows.list_keys(c, WORKSPACE, "grp_077777", (500_000, "tg_"), LIMIT),
    "a workspace's keys": lambda c: key_rows.list_keys(c, WORKSPACE, None, (500, "own"), LIMIT),
    "a group": lambda c: group_rows.find_group(c, WORKSPACE, "grp_077777"),
    "groups": lambda c: group_rows.list_groups(c, WORKSPACE, None, None, LIMIT),
    "groups, later": lambda c: group_rows.list_groups(c, WORKSPACE, None, "grp_050000", LIMIT),
    "groups of a small workspace": lambda c: group_rows.list_groups(c, OTHER, None, "grp_000000", LIMIT),
    "a group by its external id": lambda c: group_rows.list_groups(c, WORKSPACE, "entity77777", None, LIMIT),
    "ancestors": lambda c: group_rows.load_groups(c, [f"grp_{n:06}" for n in range(100)]),
    "descendants": _subtree,
    "endpoints": lambda c: endpoint_rows.list_endpoints(c, WORKSPACE, "ep5", LIMIT),
    "an endpoint": lambda c: endpoint_rows.find_endpoint(c, WORKSPACE, "ep5"),
    "secrets": lambda c: secret_rows.list_secrets(c, WORKSPACE, "sec5", LIMIT),
    "changes, all": lambda c: published_rows.changes(c, (0, "", ""), KEYS, 5001),
    "changes, in the middle": lambda c: published_rows.changes(c, (500_000, "key", "digest500000"), KEYS, 5001),
    "changes, the last few": lambda c: published_rows.changes(c, (KEYS - 3, "", ""), 0, 5001),
    "the standing": published_rows.standing,
    "prefixes": lambda c: workspace_rows.owned_prefixes(c, WORKSPACE),
}
SMALL = ("revision", "workspaces", "prefixes")
"""Tables that a plan may read as a whole: they have one row, or one per tenant."""


@pytest.mark.parametrize("name", LOOKS)
async def test_reads_go_by_an_index(store: Store, name: str) -> None:
    with statements_of(store) as seen:
        async with store.read() as conn:
            await LOOKS[name](conn)
    assert seen
    for statement, parameters in seen:
        await assert_indexed(store, statement, parameters)


async def test_revoking_and_deleting_go_by_an_index(store: Store) -> None:
    class UndoneError(Exception):
        """So that the next test finds what this one found."""

    async def change() -> None:
        async with store.write() as tx:
            record = await group_rows.lock_tree(tx, WORKSPACE, "grp_050010")
            assert record is not None
            assert await group_rows.delete_subtree(tx, record) == 10
            assert await key_rows.delete_key(tx, WORKSPACE, "grp_077777", "tg_777777") == "digest777777"
            assert await published_rows.forget_tombstones(tx, 1000) == 49
            await tx.finish()
            raise UndoneError

    with statements_of(store) as seen, pytest.raises(UndoneError):
        await change()
    assert len(seen) > 8
    for statement, parameters in seen:
        await assert_indexed(store, statement, parameters)


async def test_a_refresh_costs_what_changed(store: Store) -> None:
    """One changed row among a million is one row on the wire."""
    async with store.read() as conn:
        now = await published_rows.standing(conn)
    delta = await policy_feed.read_page(store, FeedReader(now.epoch, now.revision - 1, None, 5000))
    assert [row.id for row in delta.rows] == [f"digest{KEYS}"]


@contextmanager
def statements_of(store: Store) -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            seen.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield seen
    event.remove(store.engine.sync_engine, "before_cursor_execute", note)


async def assert_indexed(store: Store, statement: str, parameters: Any) -> None:
    is_sqlite = store.engine.dialect.name == "sqlite"
    explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
    async with store.engine.connect() as conn:
        rows = (await conn.exec_driver_sql(f"{explain} {statement}", parameters)).all()
        await conn.rollback()
    steps = [str(row[-1]) for row in rows]
    bad = [step for step in steps if _reads_it_all(step)]
    assert not bad, (statement, steps)


def _reads_it_all(step: str) -> bool:
    """A whole table, a whole index, or a sort of all that was found."""
    step = step.strip(" ->")
    if step.startswith("SCAN json_each "):  # the values that were asked for
        return False
    if step.startswith(("SCAN ", "Seq Scan", "Parallel Seq Scan")):
        return not any(f" {table}" in step for table in SMALL) and "CONSTANT ROW" not in step
    rows = re.search(r"^(?:Incremental )?Sort .*rows=(\d+)", step)
    return "TEMP B-TREE" in step or (rows is not None and int(rows[1]) > 1000)


def test_the_judge_can_condemn() -> None:
    assert _reads_it_all("SCAN groups")
    assert _reads_it_all("  ->  Seq Scan on api_keys")
    assert _reads_it_all("USE TEMP B-TREE FOR ORDER BY")
    assert _reads_it_all("  ->  Sort  (cost=1.00..2.00 rows=50000 width=10)")
    assert not _reads_it_all("  ->  Sort  (cost=1.00..2.00 rows=11 width=10)")
    assert not _reads_it_all("SEARCH groups USING INDEX ix_groups_path (path>?)")
    assert not _reads_it_all("Index Scan using pk_published on published")
