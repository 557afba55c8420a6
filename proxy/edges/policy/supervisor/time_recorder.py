"""Records the machine's time on disk, so that a clock that is set back revives no key that has expired.

Used by the supervisor only. Workers read the record from memory: see `recorded_time.py` and decision 0087.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proxy.edges.policy.recorded_time import RECORD
from proxy.records.supervisor.findings import OK, Finding
from runtime.background import repeat_in_thread
from runtime.log_lines import cause_of

INTERVAL_S = 1.0
SYNC_EVERY = 10
"""The number of records until one is forced to the disk. Losing the power takes back at most the time between."""
TOLD_MS = 60_000
"""A clock that is so far behind the record is reported."""
_TROUBLE_MEANS = "a clock that is set back could revive keys that have expired. Check the disk of TOLLGATE_JOURNAL_DIR"


class Clocks(NamedTuple):
    """The machine's clock, and one that nobody sets: both in nanoseconds."""

    time_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns


class TimeRecorder:
    """Writes the record at `path` each second while `run` runs. Not thread-safe."""

    def __init__(self, path: Path, clocks: Clocks | None = None) -> None:
        self._path = path
        self._clocks = clocks or Clocks()
        self._fd = -1
        self._last_ms = 0
        self._last_monotonic_ns = 0
        self._records = 0
        self._trouble = ""
        self.recorded_ms = 0
        """The latest time that is known to be recorded."""

    async def run(self) -> None:
        """Record the time now, and then for ever."""
        await repeat_in_thread(self.record, INTERVAL_S)

    def record(self) -> None:
        """Record the machine's time, unless a later one is recorded. Disk I/O: call it in a thread.

        A clock that was set back since the last record had gone on until then, by at most what the other clock says.
        """
        now_ms = self._clocks.time_ns() // 1_000_000
        monotonic_ns = self._clocks.monotonic_ns()
        went_on_ms = (monotonic_ns - self._last_monotonic_ns) // 1_000_000
        latest_ms = max(now_ms, self._last_ms + went_on_ms) if self._last_ms else now_ms
        self._last_ms = now_ms
        self._last_monotonic_ns = monotonic_ns
        try:
            self._write(latest_ms)
        except OSError as error:
            self._trouble = f"the time cannot be recorded ({cause_of(error)})"
        else:
            self._trouble = ""

    def _write(self, time_ms: int) -> None:
        if self._fd < 0:
            self._open()
        self.recorded_ms = max(self.recorded_ms, time_ms)
        # A system call: a store to a map would hold the GIL while a stalled disk holds up the page.
        os.pwrite(self._fd, RECORD.pack(self.recorded_ms), 0)
        if self._records % SYNC_EVERY == 0:
            os.fdatasync(self._fd)
        self._records += 1

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, RECORD.size)
        (recorded_ms,) = RECORD.unpack(os.pread(self._fd, RECORD.size, 0))
        self.recorded_ms = max(self.recorded_ms, recorded_ms)

    async def finding(self) -> Finding:
        """Return a degraded finding while the time cannot be recorded, or the clock is behind the record."""
        if self._trouble:
            return Finding(degraded=f"{self._trouble}; {_TROUBLE_MEANS}")
        behind_ms = self.recorded_ms - self._clocks.time_ns() // 1_000_000
        return Finding(degraded=self._behind, note=f"by {behind_ms // 1000} s") if behind_ms > TOLD_MS else OK

    @property
    def _behind(self) -> str:
        """Cause, consequence and remedy."""
        return (
            "the machine's clock is behind the time that this machine has recorded; keys expire by the later one."
            f" Set the clock. If it is right, and was ahead before: stop the proxy, delete {self._path}, and start it"
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
