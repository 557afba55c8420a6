"""Reads the policy replica's rows for a worker, and the names of those that changed.

Each look-up reads a bounded number of small rows, however many there are. A file that cannot be read raises
`PolicyUnavailableError`; it must never look like a missing row.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from policy.limits.groups import MAX_DEPTH
from proxy.edges.policy.replica_file import (
    FIRST_WITH_ALL_TABLES,
    SCHEMA_VERSION,
    connect_readonly,
    file_version,
    named_group,
)
from proxy.errors import PolicyUnavailableError
from runtime.exhaustion import no_descriptor_is_left, out_of_descriptors

Name = tuple[str, str]
"""The name of a row: its kind and id; of an entry of a group's models, the group's id and the slug."""
_BODY = "SELECT body FROM rows WHERE kind = ? AND id = ?"
_LINE = "||'\n'||"
# One text for what a path has of a kind, since each column of a result costs. Neither ids nor bodies have a line feed
# within them.
_IDS = _LINE.join(("g0.id", *[f"coalesce(g{n}.parent_id, '?')" for n in range(MAX_DEPTH)]))
_GROUP = f"{_IDS}, " + _LINE.join([f"coalesce(g{n}.body, '')" for n in range(MAX_DEPTH)])
_ANCESTORS = " ".join(f"LEFT JOIN groups g{n} ON g{n}.id = g{n - 1}.parent_id" for n in range(1, MAX_DEPTH))
_GROUP_BY_ID = f"SELECT {_GROUP} FROM groups g0 {_ANCESTORS} WHERE g0.id = ?"  # noqa: S608
_KEY = (
    f"SELECT keys.body, {_GROUP} FROM keys LEFT JOIN groups g0 ON g0.id = keys.group_id {_ANCESTORS}"  # noqa: S608
    " WHERE keys.id = ?"
)
_GROUP_BY_NAME = f"SELECT {_GROUP} FROM groups g0 {_ANCESTORS} WHERE {named_group('g0.')}"  # noqa: S608
_ENTRY = "coalesce((SELECT body FROM group_models WHERE group_id = ?{} AND slug = ?1), '')"
_ENTRIES = [
    f"SELECT CAST({_LINE.join(_ENTRY.format(2 + place) for place in range(groups))} AS TEXT)"
    for groups in range(MAX_DEPTH + 1)
]
"""Queries by the number of groups. Five of these take half as long as one with `IN`."""
_SLUGS = "SELECT slug FROM group_models WHERE group_id = ? ORDER BY place"
_CHANGES = "SELECT number, kind, id FROM changes WHERE number > ? ORDER BY number"


class EncodedGroup(NamedTuple):
    """The rows of a group, its parent, and so on to the root, and their ids. `bodies`: each on a line."""

    bodies: str
    path: tuple[str, ...]

    @property
    def each_body(self) -> list[str]:
        """The body of each of these rows."""
        return self.bodies.split("\n")[: len(self.path)]


class ReplicaRows:
    """The rows of the replica at `path`. The file is opened by the first `changes`."""

    def __init__(self, path: Path, report_damage: Callable[[], None]) -> None:
        self._path = path
        self._report_damage = report_damage
        self._file: tuple[int, int] | None = None
        self._conn: sqlite3.Connection | None = None
        self._names_changes = False
        self._latest_change = 0

    def body(self, kind: str, id: str) -> bytes | None:
        """The body of one row; None if there is none."""
        rows = self._read(_BODY, (kind, id))
        return rows[0][0] if rows else None

    def key(self, digest: str) -> tuple[bytes, EncodedGroup | None] | None:
        """The body of a key's row, and its group; None if there is no such key."""
        rows = self._read(_KEY, (digest,))
        return (rows[0][0], _group_in(rows[0][1:])) if rows else None

    def group(self, id: str) -> EncodedGroup | None:
        """The group, if there is one."""
        rows = self._read(_GROUP_BY_ID, (id,))
        return _group_in(rows[0]) if rows else None

    def group_named(self, workspace_id: str, external_id: str) -> EncodedGroup | None:
        """The workspace's group with this external id, if there is one."""
        rows = self._read(_GROUP_BY_NAME, (external_id, workspace_id))
        return _group_in(rows[0]) if rows else None

    def entries(self, path: Sequence[str], slug: str) -> str:
        """The entries of at most `MAX_DEPTH` groups in their own models for the slug, each on a line; "" for none."""
        rows: list[tuple[str]] = self._read(_ENTRIES[len(path)], (slug, *path))
        return rows[0][0] if rows else ""

    def slugs(self, group_id: str) -> tuple[str, ...]:
        """The slugs of the group's own models, in their order."""
        return tuple(slug for (slug,) in self._read(_SLUGS, (group_id,)))

    def changes(self) -> list[Name] | None:
        """The names of the rows that were changed or deleted since the last call. None: all may have been."""
        try:
            status = os.stat(self._path)
            file = (status.st_dev, status.st_ino)
            if self._conn is not None and file == self._file and self._names_changes:
                return self._changes_since(self._conn)
            self._open()
            self._file = file
        except (OSError, sqlite3.DatabaseError) as error:
            if no_descriptor_is_left():  # SQLite does not say so
                raise out_of_descriptors() from None
            raise PolicyUnavailableError(f"the replica cannot be opened: {error}") from None
        return None

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        if self._conn is None:
            raise PolicyUnavailableError("no policy replica on this machine yet")
        try:
            # fetchall, not fetchone: an unfinished statement keeps its read transaction open.
            return self._conn.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._report_damage()
            raise PolicyUnavailableError(f"the replica cannot be read: {error}") from None
        except UnicodeEncodeError:
            return []  # a lone surrogate from a JSON body matches no row

    def _open(self) -> None:
        """Open the file, unless it is still empty."""
        self.close()
        conn = connect_readonly(self._path)
        if not conn.execute("SELECT epoch FROM standing").fetchall():
            conn.close()
            return
        # Else it has views in place of tables to come.
        self._names_changes = FIRST_WITH_ALL_TABLES <= file_version(conn) <= SCHEMA_VERSION
        if self._names_changes:
            (latest,) = conn.execute("SELECT max(number) FROM changes").fetchone()
            self._latest_change = latest or 0
        self._conn = conn

    def _changes_since(self, conn: sqlite3.Connection) -> list[Name] | None:
        rows = conn.execute(_CHANGES, (self._latest_change,)).fetchall()
        if not rows:
            return []
        is_complete = rows[0][0] == self._latest_change + 1
        self._latest_change = rows[-1][0]
        return [(kind, id) for _, kind, id in rows] if is_complete else None


def _group_in(row: Sequence[Any]) -> EncodedGroup | None:
    """The group of a row that `_GROUP` selects; None if there is none. A broken path raises: it would drop limits."""
    text, bodies = row
    if text is None:
        return None
    ids = text.split("\n")
    if "" not in ids or len(ids) != 1 + MAX_DEPTH:
        raise PolicyUnavailableError("the limits of a group's ancestors cannot be read")
    return EncodedGroup(bodies, tuple(ids[: ids.index("")]))
