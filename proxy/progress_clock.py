"""Journals once a second how much of each flowing stream was delivered: that is billed if this worker dies.

One timer serves all streams of a worker. It goes off ten times a second and looks at a tenth of them each time, so that
thousands of streams do not hold the event loop; the records of one look are one write.
"""

import logging
from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections.abc import Callable, Sequence
from time import time_ns
from typing import Protocol

log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 1.0
"""Time between two looks at a stream."""
LOOKS = 10
"""Parts that the interval is divided into."""


class Flowing(Protocol):
    """A stream that the caller has begun to receive."""

    def progress(self, now_ms: int) -> bytes | None:
        """The record of what was delivered so far; None if no more was than the last one says."""
        ...


class ProgressClock:
    """Looks at streams from `add` until they are discarded from what it returns."""

    def __init__(self, write: Callable[[Sequence[bytes]], None]) -> None:
        """`write`: the journal's `progress`."""
        self._write = write
        self._parts: list[set[Flowing]] = [set() for _ in range(LOOKS)]
        self._latest = 0
        """The part that was looked at last."""
        self._timer: TimerHandle | None = None
        """Set while there are streams."""
        self._loop: AbstractEventLoop
        self._due_at = 0.0

    def add(self, stream: Flowing) -> set[Flowing]:
        """Look at `stream` from now on, first within `PROGRESS_INTERVAL_S`. To end that, discard it from this set."""
        if self._timer is None:
            self._loop = get_running_loop()
            self._due_at = self._loop.time()
            self._wait()
        part = self._parts[self._latest]  # its turn comes last
        part.add(stream)
        return part

    def _wait(self) -> None:
        self._due_at += PROGRESS_INTERVAL_S / LOOKS  # not from now on: looks that are late must not move the next ones
        self._timer = self._loop.call_at(self._due_at, self._look)

    def _look(self) -> None:
        self._latest = (self._latest + 1) % LOOKS
        now_ms = time_ns() // 1_000_000
        records = []
        for stream in list(self._parts[self._latest]):
            try:
                record = stream.progress(now_ms)
            except Exception:
                log.exception(
                    "The progress of a stream could not be counted; the others go on. Please report this bug."
                )
                continue
            if record is not None:
                records.append(record)
        self._timer = None
        if any(self._parts):
            self._wait()
        if records:
            self._write(records)
