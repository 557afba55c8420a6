"""Runs long work of many workspaces beside the event loop: plain synchronous functions, values in and values out.

Each workspace has a share: who waits gets a turn workspace by workspace, and one workspace may have only so many calls
that wait (`runtime/shares/places.py`). A thread cannot be stopped, so bound the input before the work starts. Work
shares no state with the loop.
"""

import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time, sleep, thread_time
from types import FrameType
from typing import TypeVar

from runtime.shares.places import Places

SLICE_S = 0.001
"""The time that a thread works before it rests."""
PROBE_S = 0.0001
"""A rest for as long as the loop has nothing to do."""
REST_RATIO = 2.0
"""The time that a thread rests after a slice while the loop is busy, in slices."""

Result = TypeVar("Result")


class LongWork:
    """Runs one piece of work at a time. One per event loop."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places = Places(1, "pieces of long work")

    async def run(self, workspace: str, work: Callable[[], Result], *, is_bounded: bool = True) -> Result:
        """Return what `work` returns, or raise what it raises. Raises `NoPlaceError`.

        If the caller is cancelled, work that has begun goes on, and keeps its turn.
        """
        return await self._places.run(workspace, partial(_at_a_pace, work), is_bounded=is_bounded)


def _at_a_pace(work: Callable[[], Result]) -> Result:
    sys.settrace(_Pace())
    try:
        return work()
    finally:
        sys.settrace(None)


class _Pace:
    """Lets the loop run: called with each call of a Python function, it rests when a slice is over.

    A thread that works without a rest takes the interpreter's lock whenever the loop lets go of it, for a whole switch
    interval: of a busy loop's calls a second it leaves a fifth. This one rests twice as long as it worked, while other
    threads need the processor. `sys.settrace` costs the work as much again (decision 0064).
    """

    __slots__ = ("_began", "_ends")

    def __init__(self) -> None:
        self._began = perf_counter()
        self._ends = self._began + SLICE_S

    def __call__(self, _frame: FrameType, _event: str, _arg: object) -> None:
        if perf_counter() < self._ends:
            return
        worked_s = perf_counter() - self._began
        others_s = process_time() - thread_time()
        sleep(PROBE_S)
        if process_time() - thread_time() - others_s > PROBE_S / 2:  # the loop had work to do meanwhile
            sleep(REST_RATIO * worked_s)
        self._began = perf_counter()
        self._ends = self._began + SLICE_S
