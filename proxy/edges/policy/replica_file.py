"""The policy replica's files as every process sees them: paths, the stamp, and a read-only connection.

Only the supervisor writes rows (`supervisor/policy_replica.py`).
"""

import mmap
import os
import sqlite3
import struct
import time
from pathlib import Path

SCHEMA_VERSION = 5
"""The file's `PRAGMA user_version`. Files of earlier versions are upgraded; others are rebuilt from control."""
FIRST_WITH_ALL_TABLES = 4
"""The first version with the tables of this one. Since then, indexes have been added."""
_GENERATION = struct.Struct("=Q")
_CONFIRMED = struct.Struct("=d")
_STAMP_BYTES = _GENERATION.size + _CONFIRMED.size
_VIEWS_UNTIL_VERSION_3 = """
CREATE TEMP VIEW keys AS
SELECT id, coalesce(json_extract(CAST(body AS TEXT), '$.group_id'), '') AS group_id, body
FROM main.rows WHERE kind = 'key';
CREATE TEMP VIEW groups AS
SELECT id, coalesce(json_extract(CAST(body AS TEXT), '$.parent_id'), '') AS parent_id, body
FROM main.rows WHERE kind = 'group';
"""
# Until version 2 a group's models were within its own row.
_VIEWS_UNTIL_VERSION_2 = """
CREATE TEMP VIEW group_models AS
SELECT groups.id AS group_id, json_extract(entry.value, '$.slug') AS slug, entry.key AS place, entry.value AS body
FROM main.rows AS groups, json_each(CAST(groups.body AS TEXT), '$.models') AS entry WHERE groups.kind = 'group';
"""


class ReplicaStamp:
    """Two numbers in a file that all processes of a proxy map: the current generation, and when control confirmed it.

    Only the supervisor writes them, 8 aligned bytes at once. The clock is `time.monotonic`, which all processes of a
    machine share.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        fd = os.open(path, (os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY) | os.O_CLOEXEC, 0o600)
        try:
            if writable:
                os.ftruncate(fd, _STAMP_BYTES)
            self._map = mmap.mmap(fd, _STAMP_BYTES, access=mmap.ACCESS_READ)
        finally:
            if not writable:
                os.close(fd)
        self._fd = fd if writable else -1
        self.generation_cell = memoryview(self._map)[:8].cast("Q")
        """Holds one number, the current generation. When it changes, rows that were read before may be outdated."""
        self._confirmed = memoryview(self._map)[8:].cast("d")

    @property
    def confirmed_at_s(self) -> float:
        """`time.monotonic` of control's last answer; 0 before the first."""
        return self._confirmed[0]

    def advance_generation(self) -> None:
        """Advance the generation. Disk I/O: call it in a thread."""
        # Based on the wall clock, so that it also differs from every number before a restart.
        self._write(_GENERATION.pack(max(self.generation_cell[0] + 1, time.time_ns())), 0)

    def confirm(self, now_s: float) -> None:
        """Record when control confirmed the replica. Disk I/O: call it in a thread."""
        self._write(_CONFIRMED.pack(now_s), _GENERATION.size)

    def _write(self, data: bytes, offset: int) -> None:
        """Write by a system call: a store to the map would hold the GIL while a stalled disk holds up the page."""
        os.pwrite(self._fd, data, offset)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self.generation_cell.release()
        self._confirmed.release()
        self._map.close()


def named_group(table: str = "") -> str:
    """The condition on a group's external id and workspace, two parameters, as the index `groups_by_name` has it."""
    names = ("external_entity_id", "workspace_id")
    return " AND ".join(f"{group_member(name, table)} = ?" for name in names)


def group_member(name: str, table: str = "") -> str:
    """The expression for a member of a group's body."""
    return f"json_extract(CAST({table}body AS TEXT), '$.{name}')"


def stamp_path(replica: Path) -> Path:
    return replica.with_name(replica.name + ".stamp")


def lock_path(replica: Path) -> Path:
    return replica.with_name(replica.name + ".lock")


def connect_readonly(path: Path) -> sqlite3.Connection:
    """A read-only connection. Raises sqlite3.OperationalError when there is no file."""
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    conn.execute("PRAGMA cache_size = -1024")
    version = file_version(conn)  # the supervisor may be of an older version, and start workers of this one
    if version <= 3:
        conn.executescript(_VIEWS_UNTIL_VERSION_3)
    if version <= 2:
        conn.executescript(_VIEWS_UNTIL_VERSION_2)
    return conn


def file_version(conn: sqlite3.Connection) -> int:
    (version,) = conn.execute("PRAGMA user_version").fetchone()
    return int(version)
