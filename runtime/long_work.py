"""Runs long work of many workspaces beside the event loop: plain synchronous functions, values in and values out.

Each workspace has a share: who waits gets a turn workspace by workspace, and one workspace may have only so many calls
that wait. A thread cannot be stopped, so bound the input before the work starts. Work shares no state with the loop.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter, process_time, sleep, thread_time
from types import FrameType
from typing import TypeVar

from runtime.daemon_threads import in_daemon_thread

MAX_WAITING = 100
"""Calls of one workspace that may wait for a turn."""
SLICE_S = 0.001
"""How long a thread works before it rests."""
PROBE_S = 0.0001
"""A rest for as long as the loop has nothing to do."""
REST_RATIO = 2.0
"""How long a thread rests after a slice while the loop is busy, in slices."""

Result = TypeVar("Result")


class TooMuchWorkError(Exception):
    """The workspace has too many calls that wait for their turn."""


class Turns:
    """One turn at a time. Workspaces take turns in rotation; the calls of one workspace, in the order in which they
    came."""

    __slots__ = ("_is_taken", "_last", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._last = ""
        """The workspace that had the last turn."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By workspace; the next one first."""

    async def begin(self, workspace: str, *, is_bounded: bool = True) -> None:
        """Wait for a turn. Whoever has one must `end` it. Raises `TooMuchWorkError`, if the queue `is_bounded`."""
        if not self._is_taken:
            self._is_taken = True
            self._last = workspace
            return
        queue = self._waiting.setdefault(workspace, deque())
        if is_bounded and len(queue) >= MAX_WAITING:
            raise TooMuchWorkError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(workspace, turn)
            else:
                self.end()
            raise

    def end(self) -> None:
        """Give the turn to the next workspace."""
        while self._waiting:
            workspace = next((one for one in self._waiting if one != self._last), self._last)
            queue = self._waiting.pop(workspace)
            turn = queue.popleft()
            if queue:
                self._waiting[workspace] = queue
            if not turn.done():
                self._last = workspace
                turn.set_result(None)
                return
        self._is_taken = False

    def _forget(self, workspace: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(workspace)
        if queue is None:
            return
        with suppress(ValueError):  # `end` has dropped it
            queue.remove(turn)
        if not queue:
            del self._waiting[workspace]


class LongWork:
    """Runs one piece of work at a time. One per event loop."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = Turns()

    async def run(self, workspace: str, work: Callable[[], Result], *, is_bounded: bool = True) -> Result:
        """Return what `work` returns, or raise what it raises. Raises `TooMuchWorkError`.

        If the caller is cancelled, work that has begun goes on, and keeps its turn.
        """
        await self._turns.begin(workspace, is_bounded=is_bounded)
        running = asyncio.ensure_future(in_daemon_thread(_at_a_pace, work))
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: "asyncio.Future[Result]") -> None:
        self._turns.end()
        if not running.cancelled():
            running.exception()  # else asyncio logs one that nobody waits for any more


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
