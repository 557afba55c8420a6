"""Every list and delta query uses an index, at a tenth of the promised 100 000 groups and 1 000 000 keys.

The tests assert the query plans of the statements that control itself runs. The soak does so at the full size.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import event, text

from control.edges.sql import endpoint_rows, group_rows, key_rows, published_rows, secret_rows, workspace_rows
from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Connection, Store
from control.records.policy import GroupFilter
from control.resources import policy_feed
from control.resources.policy_feed import FeedReader
from tests.postgres_server import PostgresServer

WORKSPACE = "ws_a"
OTHER = "ws_b"
LIMIT = 101
NAMED = GroupFilter("entity7777")
pytestmark = pytest.mark.timeout(300)

# Every tenth group is a root, the others are its children; ten keys per group; one row in twenty is a tombstone.
_WORKSPACE = "INSERT INTO workspaces (id, name, tier, billing, onboarded, created_at_ms)"
_FILL = (
    f"{_WORKSPACE} SELECT 'ws_a', 'a', 'basic', 'active', true, 1",
    f"{_WORKSPACE} SELECT 'ws_b', 'b', 'basic', 'active', true, 1",
    "INSERT INTO prefixes VALUES ('acme', 'ws_a')",
    """INSERT INTO groups (id, workspace_id, parent_id, root_id, path, enforcement, external_entity_id, name, models,
         created_at_ms, updated_at_ms)
       SELECT {group}, CASE WHEN n % 1000 = 0 THEN 'ws_b' ELSE 'ws_a' END, CASE WHEN n % 10 = 0 THEN NULL ELSE {root}
         END, {root}, CASE WHEN n % 10 = 0 THEN {root} || '/' ELSE {root} || '/' || {group} || '/' END, 'CASCADING',
         'entity' || n, NULL, {models}, n, n FROM {groups}""",
    """INSERT INTO api_keys (prefix, digest, kind, workspace_id, group_id, name, created_at_ms, last_used_at_ms)
       SELECT 'tg_' || n, 'digest' || n, 'FEDERATED', 'ws_a', {group_of_key}, NULL, n, NULL FROM {keys}""",
    """INSERT INTO api_keys (prefix, digest, kind, workspace_id, group_id, name, created_at_ms, last_used_at_ms)
       SELECT 'own' || n, 'own' || n, 'WORKSPACE_INVOKE', 'ws_a', NULL, NULL, n, NULL FROM {groups} WHERE n < 1000""",
    """INSERT INTO published (kind, id, revision, body, published_at_ms)
       SELECT 'key', 'digest' || n, n, CASE WHEN n % 20 = 0 THEN NULL ELSE '{{}}' END, n FROM {keys}""",
    """INSERT INTO endpoints (id, workspace_id, slug, target, secret_id, model_id, created_at_ms, updated_at_ms)
       SELECT 'ep' || n, 'ws_a', 'acme/' || n, '{{"provider":"PLATFORM"}}', NULL, NULL, n, n FROM {groups}
       WHERE n < 10000""",
    """INSERT INTO secrets (id, workspace_id, name, ciphertext, created_at_ms, updated_at_ms)
    SELECT 'sec' || n, 'ws_a', 'n' || n, '', n, n FROM {groups} WHERE n < 10000""",
    "UPDATE revision SET value = {last_key}",
    "INSERT INTO revision_nonces VALUES ({last_key}, 'nonce', 0)",
)
_SERIES = "(WITH RECURSIVE s(n) AS (SELECT {} UNION ALL SELECT n+1 FROM s WHERE n < {}) SELECT n FROM s)"


@dataclass(frozen=True)
class Filled:
    """A filled database, and the rows that the tests query: a key and its group, and a root with nine children."""

    url: str
    groups: int

    @property
    def keys(self) -> int:
        return 10 * self.groups

    @property
    def key(self) -> int:
        return self.keys * 7 // 9

    @property
    def group(self) -> str:
        return f"grp_{self.key % self.groups:06}"

    @property
    def root(self) -> str:
        return f"grp_{self.groups // 2 + 10:06}"

    @property
    def words(self) -> dict[str, Any]:
        """The SQL fragments of `_FILL` that differ between the databases."""
        last_group = self.groups - 1
        last_key = self.keys
        if self.url.startswith("sqlite"):
            return {
                "group": "printf('grp_%06d', n)",
                "root": "printf('grp_%06d', n - n % 10)",
                "group_of_key": f"printf('grp_%06d', n % {self.groups})",
                "models": "'[]'",
                "groups": _SERIES.format(0, last_group),
                "keys": _SERIES.format(1, last_key),
                "last_key": last_key,
            }
        return {
            "group": "'grp_' || to_char(n, 'FM000000')",
            "root": "'grp_' || to_char(n - n % 10, 'FM000000')",
            "group_of_key": f"'grp_' || to_char(n % {self.groups}, 'FM000000')",
            "models": "'[]' || repeat(' ', 1500)",  # as long as real limits: the planner avoids scans of long rows
            "groups": f"generate_series(0, {last_group}) AS n",
            "keys": f"generate_series(1, {last_key}) AS n",
            "last_key": last_key,
        }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((database, groups), id=f"{database}-{groups}", marks=[pytest.mark.soak] if groups > 10_000 else [])
        for database in ("sqlite", "postgresql")
        for groups in (10_000, 100_000)
    ],
)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    database, groups = request.param
    if database == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('scale')}/control.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = asyncio.run(server.create_database(f"scale_{groups}"))
    filled = Filled(url, groups)
    asyncio.run(_fill(filled))
    return filled


@pytest.fixture
async def store(filled: Filled) -> AsyncIterator[Store]:
    filled_store = Store.at(filled.url)
    yield filled_store
    await filled_store.close()


async def _fill(filled: Filled) -> None:
    store = Store.at(filled.url)
    await migrate(store.engine)
    is_sqlite = store.engine.dialect.name == "sqlite"
    async with store.write() as tx:
        if not is_sqlite:
            await tx.conn.execute(text("SET LOCAL session_replication_role = replica"))  # skip foreign key checks
        for statement in _FILL:
            await tx.conn.exec_driver_sql(statement.format(**filled.words))
        if not is_sqlite:  # as autovacuum would; SQLite must choose well without statistics
            await tx.conn.exec_driver_sql("ANALYZE")
    await store.close()


Look = Callable[[Connection, Filled], Awaitable[Any]]


async def _subtree(conn: Connection, filled: Filled) -> None:
    record = await group_rows.find_group(conn, WORKSPACE, filled.root)
    assert record is not None
    batches = [batch async for batch in group_rows.descendants_of(conn, record)]
    assert len(batches[0]) == 9


async def _spend_limits_of_the_tree(conn: Connection, filled: Filled) -> None:
    record = await group_rows.find_group(conn, WORKSPACE, filled.root)
    assert record is not None
    assert [texts async for texts in group_rows.spend_limits_below(conn, record)] == []
    assert await group_rows.spend_limits_in_tree(conn, record.root_id, record.path) is None


async def _key_by_prefix(conn: Connection, filled: Filled) -> Any:
    return await key_rows.get_key(conn, WORKSPACE, filled.group, f"tg_{filled.key}")


async def _changes_in_the_middle(conn: Connection, filled: Filled) -> Any:
    middle = filled.keys // 2
    return await published_rows.changes(conn, (middle, "key", f"digest{middle}"), filled.keys, 5001)


LOOKS: dict[str, Look] = {
    "a key by its digest": lambda c, f: key_rows.find_by_digest(c, f"digest{f.key}", 0),
    "a key by its prefix": _key_by_prefix,
    "a key of a tree with spend limits": lambda c, f: key_rows.key_with_spend_limits(c, f.root, f"tg_{f.key}"),
    "a group's keys": lambda c, f: key_rows.list_keys(c, WORKSPACE, f.group, None, LIMIT),
    "a group's keys, later": lambda c, f: key_rows.list_keys(c, WORKSPACE, f.group, (f.keys // 2, "tg_"), LIMIT),
    "a workspace's keys": lambda c, f: key_rows.list_keys(c, WORKSPACE, None, (500, "own"), LIMIT),
    "a group": lambda c, f: group_rows.find_group(c, WORKSPACE, f.group),
    "groups": lambda c, f: group_rows.list_groups(c, WORKSPACE, GroupFilter(), None, LIMIT),
    "groups, later": lambda c, f: group_rows.list_groups(c, WORKSPACE, GroupFilter(), f.root, LIMIT),
    "groups of a small workspace": lambda c, f: group_rows.list_groups(c, OTHER, GroupFilter(), "grp_000000", LIMIT),
    "a group by its external id": lambda c, f: group_rows.list_groups(
        c, WORKSPACE, GroupFilter("entity7777"), None, LIMIT
    ),
    "groups of a tree": lambda c, f: group_rows.list_groups(c, WORKSPACE, GroupFilter(None, f.root), None, LIMIT),
    "ancestors": lambda c, f: group_rows.load_records(c, [f"grp_{n:06}" for n in range(100)]),
    "descendants": _subtree,
    "spend limits of a tree": _spend_limits_of_the_tree,
    "endpoints": lambda c, f: endpoint_rows.list_endpoints(c, WORKSPACE, "ep5", LIMIT),
    "an endpoint": lambda c, f: endpoint_rows.find_endpoint(c, WORKSPACE, "ep5"),
    "secrets": lambda c, f: secret_rows.list_secrets(c, WORKSPACE, "sec5", LIMIT),
    "changes, all": lambda c, f: published_rows.changes(c, (0, "", ""), f.keys, 5001),
    "changes, in the middle": _changes_in_the_middle,
    "changes, the last few": lambda c, f: published_rows.changes(c, (f.keys - 3, "", ""), 0, 5001),
    "the standing": lambda c, f: published_rows.published_state(c),
    "prefixes": lambda c, f: workspace_rows.owned_prefixes(c, WORKSPACE),
}
SMALL = ("revision", "workspaces", "prefixes")
"""Tables that a plan may read as a whole: they have one row, or one per tenant."""


@pytest.mark.parametrize("name", LOOKS)
async def test_reads_use_an_index(store: Store, filled: Filled, name: str) -> None:
    with statements_of(store) as statements:
        async with store.read() as conn:
            await LOOKS[name](conn, filled)
    assert statements
    for statement, parameters in statements:
        await assert_indexed(store, statement, parameters)


async def test_revoking_and_deleting_use_an_index(store: Store, filled: Filled) -> None:
    class UndoneError(Exception):
        """Rolls the change back for the next test."""

    async def change() -> None:
        async with store.write() as tx:
            record = await group_rows.lock_tree(tx, WORKSPACE, filled.root)
            assert record is not None
            assert (await group_rows.delete_subtree(tx, record)).groups == 10
            digest = await key_rows.delete_key(tx, WORKSPACE, filled.group, f"tg_{filled.key}")
            assert digest == f"digest{filled.key}"
            assert await published_rows.forget_tombstones(tx, 1000) == 49
            await tx.finish()
            raise UndoneError

    with statements_of(store) as statements, pytest.raises(UndoneError):
        await change()
    assert len(statements) > 8
    for statement, parameters in statements:
        await assert_indexed(store, statement, parameters)


async def test_refresh_reads_only_changed_rows(store: Store, filled: Filled) -> None:
    """One changed row among many is the only row sent."""
    async with store.read() as conn:
        now = await published_rows.published_state(conn)
    delta = await policy_feed.read_page(store, FeedReader(now.epoch, now.revision - 1, None, 5000))
    assert [row.id for row in delta.rows] == [f"digest{filled.keys}"]


@contextmanager
def statements_of(store: Store) -> Iterator[list[tuple[str, Any]]]:
    statements: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            statements.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    yield statements
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
    """Return whether the step reads a whole table or index, or sorts all rows found."""
    step = step.strip(" ->")
    if step.startswith("SCAN json_each "):  # the query's own list of values
        return False
    if step.startswith(("SCAN ", "Seq Scan", "Parallel Seq Scan")):
        return not any(f" {table}" in step for table in SMALL) and "CONSTANT ROW" not in step
    rows = re.search(r"^(?:Incremental )?Sort .*rows=(\d+)", step)
    return "TEMP B-TREE" in step or (rows is not None and int(rows[1]) > 1000)


def test_assert_indexed_fails_for_a_full_scan() -> None:
    assert _reads_it_all("SCAN groups")
    assert _reads_it_all("  ->  Seq Scan on api_keys")
    assert _reads_it_all("USE TEMP B-TREE FOR ORDER BY")
    assert _reads_it_all("  ->  Sort  (cost=1.00..2.00 rows=50000 width=10)")
    assert not _reads_it_all("  ->  Sort  (cost=1.00..2.00 rows=11 width=10)")
    assert not _reads_it_all("SEARCH groups USING INDEX ix_groups_path (path>?)")
    assert not _reads_it_all("Index Scan using pk_published on published")
