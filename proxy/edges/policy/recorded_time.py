"""The latest time that this machine has recorded on disk, as a worker reads it.

The supervisor writes it (`supervisor/time_recorder.py`) to a file in the directory of the journals: those are never
copied back, so a restored copy of the policy replica does not take the time back with it (decision 0087).
"""

import mmap
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

RECORD = struct.Struct("=Q")
"""Milliseconds since 1970: all that the file holds."""


class LatestTime:
    """The later of the machine's clock and the recorded time: it never goes back.

    `recorded`: the cell of `RecordedTime`.
    """

    def __init__(self, recorded: Sequence[int], clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._recorded = recorded
        self._clock_ns = clock_ns
        self._latest_ms = 0
        """The latest time that this process has seen: the record of the last second may be missing."""

    def now_ms(self) -> int:
        now_ms = self._latest_ms = max(self._clock_ns() // 1_000_000, self._recorded[0], self._latest_ms)
        return now_ms


class RecordedTime:
    """The file, mapped into memory. Without one the time is 0: a supervisor of an older version writes none."""

    def __init__(self, path: Path) -> None:
        self._map = _mapped(path)
        self._cell = None if self._map is None else memoryview(self._map).cast("Q")

    @property
    def cell(self) -> Sequence[int]:
        """One number, the recorded time: indexing a memory cell waits for no disk."""
        return (0,) if self._cell is None else self._cell

    def close(self) -> None:
        if self._cell is not None and self._map is not None:
            self._cell.release()
            self._map.close()


def recorded_time_path(journal_dir: Path) -> Path:
    return journal_dir / ".latest-time"


def _mapped(path: Path) -> mmap.mmap | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the supervisor says in `/readyz` why there is none
        return None
    try:
        if os.fstat(fd).st_size < RECORD.size:
            return None
        return mmap.mmap(fd, RECORD.size, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
