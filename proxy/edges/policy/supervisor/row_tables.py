"""The tables of the replica's rows. Keys and groups have their own, which name the group above each row.

Other rows may be large. They are in `rows`, which has its rows apart from their index: a body above 1 kB would take a
page of its own, and random ids would rewrite whole bodies.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from policy.snapshot import RowKind, Wire
from proxy.edges.policy.replica_file import group_member

KEYS_AND_GROUPS = """
CREATE TABLE keys (id TEXT PRIMARY KEY NOT NULL, group_id TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (id TEXT PRIMARY KEY NOT NULL, parent_id TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""
GROUPS_BY_NAME = (
    f"CREATE INDEX groups_by_name ON groups ({group_member('external_entity_id')}, {group_member('workspace_id')});"
)
"""Tokens name a group by its external id."""
_MOVES = (
    "INSERT INTO keys SELECT id, coalesce(json_extract(CAST(body AS TEXT), '$.group_id'), ''), body"
    " FROM rows WHERE kind = 'key' ORDER BY id",
    "INSERT INTO groups SELECT id, coalesce(json_extract(CAST(body AS TEXT), '$.parent_id'), ''), body"
    " FROM rows WHERE kind = 'group' ORDER BY id",
    "DELETE FROM rows WHERE kind IN ('key', 'group')",
)
"""Statements that move keys and groups out of `rows`, which had all rows until version 3."""


class EncodedRow(NamedTuple):
    """A row as the file has it. `above`: the group of a key, or a group's parent; else "". `body`: None: deleted."""

    kind: str
    id: str
    above: str
    body: bytes | None


@dataclass(frozen=True, slots=True)
class _Table:
    """The statements of a table. Their parameters are the members of an `EncodedRow`; the first two find a row."""

    upsert: str
    """Updates in place: INSERT OR REPLACE would move the row and write three pages instead of one."""
    delete: str
    body: str
    name_known: str
    """Name the row among the changes, if something may have been kept that a change of it concerns."""


def _table(name: str, above: str) -> _Table:
    return _Table(
        f"INSERT INTO {name} VALUES (?2, ?3, ?4)"  # noqa: S608
        f" ON CONFLICT (id) DO UPDATE SET {above} = excluded.{above}, body = excluded.body",
        f"DELETE FROM {name} WHERE id = ?2",  # noqa: S608
        f"SELECT body FROM {name} WHERE id = ?2",  # noqa: S608
        f"INSERT INTO changes (kind, id) SELECT ?1, id FROM {name} WHERE id = ?2",  # noqa: S608
    )


_OTHERS = _Table(
    "INSERT INTO rows VALUES (?1, ?2, ?4) ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body",
    "DELETE FROM rows WHERE kind = ?1 AND id = ?2",
    "SELECT body FROM rows WHERE kind = ?1 AND id = ?2",
    "INSERT INTO changes (kind, id) SELECT kind, id FROM rows WHERE kind = ?1 AND id = ?2",
)
_TABLES = {
    RowKind.KEY.value: _table("keys", "group_id"),
    RowKind.GROUP.value: _table("groups", "parent_id"),
    # A route is kept without a price, too, so a first price is a change of it.
    RowKind.PRICE.value: replace(_OTHERS, name_known="INSERT INTO changes (kind, id) VALUES (?1, ?2)"),
}


def encode(kind: str, id: str, body: Wire | None) -> EncodedRow:
    """Encode a row that control published."""
    above = None if body is None else body.get("group_id" if kind == RowKind.KEY else "parent_id")
    return EncodedRow(kind, id, above or "", None if body is None else orjson.dumps(body))


def write(conn: sqlite3.Connection, rows: Iterable[EncodedRow]) -> None:
    """Insert, update or delete these rows."""
    for table, own in _by_table(rows):
        conn.executemany(table.delete, [(kind, id) for kind, id, _, body in own if body is None])
        conn.executemany(table.upsert, [row for row in own if row.body is not None])


def name_known(conn: sqlite3.Connection, rows: Iterable[EncodedRow]) -> None:
    """Name these rows among the changes. Rows that are new are not named, but for prices: nobody has read them."""
    for table, own in _by_table(rows):
        conn.executemany(table.name_known, [(kind, id) for kind, id, _, _ in own])


def body_of(conn: sqlite3.Connection, kind: str, id: str) -> bytes | None:
    """The body of a row; None if there is none."""
    row = conn.execute(_TABLES.get(kind, _OTHERS).body, (kind, id)).fetchone()
    return None if row is None else row[0]


def move_keys_and_groups(conn: sqlite3.Connection) -> None:
    """Move the keys and groups of an older file into their own tables."""
    for move in _MOVES:
        conn.execute(move)


def _by_table(rows: Iterable[EncodedRow]) -> Sequence[tuple[_Table, list[EncodedRow]]]:
    by_kind: dict[str, list[EncodedRow]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    return [(_TABLES.get(kind, _OTHERS), own) for kind, own in by_kind.items()]
