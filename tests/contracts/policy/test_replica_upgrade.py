"""Replica files of older versions serve until control is asked: it may be away while a proxy is upgraded."""

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from policy.identity.providers import IdentityProviderRow
from policy.limits.effective import Plan
from policy.snapshot import Row
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.replica_file import ReplicaStamp, stamp_path
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica, upgrade
from proxy.records.supervisor.policy_replica import ReplicaVersion
from tests.contracts.policy.test_replica import (
    KEYS,
    ScriptedConfirmer,
    World,
    endpoint,
    group,
    key,
    route_of,
    workspace,
)

PROVIDER = IdentityProviderRow("p", "ws", "https://i", "a", "org", ())
SCHEMAS = {
    1: "CREATE TABLE standing (epoch TEXT NOT NULL, revision INTEGER NOT NULL); INSERT INTO standing VALUES ('e1', 1);",
    2: "CREATE TABLE standing (epoch TEXT NOT NULL, revision INTEGER NOT NULL, nonce TEXT NOT NULL);"
    "INSERT INTO standing VALUES ('e1', 1, 'n1');",
}
SCHEMAS[3] = (
    f"{SCHEMAS[2]} CREATE TABLE changes (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, id TEXT NOT NULL);"
    f"CREATE TABLE group_models (group_id TEXT NOT NULL, slug TEXT NOT NULL, place INTEGER NOT NULL,"
    f" body BLOB NOT NULL, PRIMARY KEY (group_id, slug)) WITHOUT ROWID;"
)
_ROWS = "CREATE TABLE rows (kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, id));"


def old_file(path: Path, version: int, *rows: Row) -> None:
    """A replica as a proxy of an older version wrote it: one table has all rows, and until version 2 whole groups."""
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(f"PRAGMA journal_mode = WAL; {_ROWS} {SCHEMAS[version]} PRAGMA user_version = {version};")
        write(conn, version, *rows)


def write(conn: sqlite3.Connection, version: int, *rows: Row) -> None:
    for row in rows:
        body = dict(row.body or {})
        for place, entry in enumerate(body.pop("models", ()) if version == 3 else ()):
            value = (row.id, entry.pop("slug"), place, orjson.dumps(entry))
            conn.execute("INSERT OR REPLACE INTO group_models VALUES (?, ?, ?, ?)", value)
            conn.execute("INSERT INTO changes (kind, id) VALUES (?, ?)", value[:2])
        conn.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (row.kind, row.id, orjson.dumps(body)))
    conn.commit()


def policy() -> list[Row]:
    groups = [group("root", threshold=9), group("leaf", "root", 5)]
    provider = Row("identity_provider", PROVIDER.id, 1, PROVIDER.to_wire())
    return [key("d", "leaf"), workspace(), *groups, endpoint("acme/a"), provider]


def thresholds(plan: Plan | None) -> list[tuple[str, int]]:
    assert plan is not None
    return [(bound.source_group, bound.limit.threshold) for bound in plan.bounds]


def check_policy(directory: SnapshotDirectory) -> None:
    holder = directory.key_holder("d")
    assert holder is not None
    assert holder.group is not None
    assert holder.group.external_entity_id == "ext-leaf"
    token_holder = directory.token_holder(PROVIDER, "ext-leaf", holder.key)
    assert token_holder is not None
    assert token_holder.group == holder.group
    route = route_of(directory, "leaf", "acme/a")
    assert route is not None
    assert thresholds(route.plan) == [("leaf", 5), ("root", 9)]
    assert directory.slugs("leaf") == ("acme/a",)
    assert route_of(directory, "leaf", "acme/b") is None


@pytest.mark.parametrize("version", SCHEMAS)
def test_replica_file_of_an_older_version_serves_and_is_followed(tmp_path: Path, version: int) -> None:
    path = tmp_path / "replica.db"
    old_file(path, version, *policy())
    world = World(path)
    assert world.replica.version == ReplicaVersion("e1", 1, "n1" if version > 1 else "")
    check_policy(world.directory)
    world.publish(group("root", threshold=8))
    assert thresholds(world.directory.plan("leaf", "acme/a")) == [("leaf", 5), ("root", 8)]
    world.directory.close()
    world.replica.close()
    again = PolicyReplica(path)
    assert again.version == ReplicaVersion("e1", 2)
    again.close()


def test_upgrade_that_was_interrupted_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "replica.db"
    old_file(path, 2, *policy())

    def full(conn: sqlite3.Connection) -> None:
        conn.execute("DELETE FROM rows")
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("proxy.edges.policy.supervisor.group_rows.split_groups", full)
        with closing(sqlite3.connect(path, isolation_level=None)) as conn, pytest.raises(sqlite3.OperationalError):
            upgrade(conn, 2)
    world = World(path)
    check_policy(world.directory)
    world.directory.close()
    world.replica.close()


@pytest.mark.parametrize("version", SCHEMAS)
def test_worker_serves_from_the_file_of_an_older_supervisor_until_that_is_replaced(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "replica.db"
    old_file(path, version, *policy())
    stamp = ReplicaStamp(stamp_path(path), writable=True)
    stamp.advance_generation()
    directory = SnapshotDirectory(path, KEYS, stamp, ScriptedConfirmer())
    check_policy(directory)
    with closing(sqlite3.connect(path)) as conn:
        write(conn, version, group("leaf", "root", 4))
    stamp.advance_generation()
    assert thresholds(directory.plan("leaf", "acme/a")) == [("leaf", 4), ("root", 9)]
    newer = PolicyReplica(path)
    assert thresholds(directory.plan("leaf", "acme/a")) == [("leaf", 4), ("root", 9)]
    directory.close()
    newer.close()
    stamp.close()
