"""The policy replica's files as every process sees them: paths, the stamp, and a read-only connection.

Only the supervisor writes rows (`supervisor/replica.py`).
"""

import mmap
import os
import sqlite3
import time
from pathlib import Path

_STAMP_BYTES = 16


class ReplicaStamp:
    """Two numbers in a file that all processes of a proxy map: the current generation, and when control confirmed it.

    Only the supervisor writes them, as aligned 8-byte stores. The clock is `time.monotonic`, which all processes of a
    machine share.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        fd = os.open(path, (os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY) | os.O_CLOEXEC, 0o600)
        try:
            if writable:
                os.ftruncate(fd, _STAMP_BYTES)
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(fd, _STAMP_BYTES, access=access)
        finally:
            os.close(fd)
        self.generation_cell = memoryview(self._map)[:8].cast("Q")
        """Holds one number, the current generation. When it changes, rows that were read before may be outdated."""
        self._confirmed = memoryview(self._map)[8:].cast("d")

    @property
    def confirmed_at_s(self) -> float:
        """`time.monotonic` of control's last answer; 0 before the first."""
        return self._confirmed[0]

    def advance_generation(self) -> None:
        # Based on the wall clock, so that it also differs from every number before a restart.
        self.generation_cell[0] = max(self.generation_cell[0] + 1, time.time_ns())

    def confirm(self, now_s: float) -> None:
        self._confirmed[0] = now_s

    def close(self) -> None:
        self.generation_cell.release()
        self._confirmed.release()
        self._map.close()


def stamp_path(replica: Path) -> Path:
    return replica.with_name(replica.name + ".stamp")


def lock_path(replica: Path) -> Path:
    return replica.with_name(replica.name + ".lock")


def connect_readonly(path: Path) -> sqlite3.Connection:
    """A read-only connection. Raises sqlite3.OperationalError when there is no file."""
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    conn.execute("PRAGMA cache_size = -1024")
    return conn
