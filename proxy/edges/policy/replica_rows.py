"""Reads the policy replica's rows for a worker, and the names of those that changed.

Each look-up reads a bounded number of small rows, however many there are. A file that cannot be read raises
`PolicyUnavailableError`; it must never look like a missing row.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from policy.groups import MAX_DEPTH
from proxy.edges.policy.replica_file import connect_readonly, is_outdated
from proxy.exchange import PolicyUnavailableError
from runtime.exhaustion import no_descriptor_is_left, out_of_descriptors

Name = tuple[str, str]
"""The name of a row: its kind and id; of an entry of a group's models, the group's id and the slug."""
_BODY = "SELECT body FROM rows WHERE kind = ? AND id = ?"
_SLUGS = "SELECT slug FROM group_models WHERE group_id = ? ORDER BY place"
_CHANGES = "SELECT number, kind, id FROM changes WHERE number > ? ORDER BY number"
_ENTRIES = [
    f"SELECT group_id, body FROM group_models WHERE slug = ? AND group_id IN ({','.join('?' * groups)})"  # noqa: S608
    for groups in range(MAX_DEPTH + 1)
]
"""Queries by the number of groups."""


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

    def entries(self, group_ids: Sequence[str], slug: str) -> dict[str, bytes]:
        """Return the entries that at most `MAX_DEPTH` groups have in their own models for the slug, by group."""
        return dict(self._read(_ENTRIES[len(group_ids)], (slug, *group_ids)))

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
        self._names_changes = not is_outdated(conn)
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
