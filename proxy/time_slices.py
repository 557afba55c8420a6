"""Long work of a worker: in time slices on the event loop, or beside it. Each workspace has a share of both.

Parsers and regular expressions keep the interpreter's lock, so what they do to a long text is cut into slices. Plain
Python that cannot be cut, as a translation, runs in a thread that paces itself (decision 0064).
"""

import asyncio
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time, sleep, thread_time
from types import FrameType
from typing import Any, Generic, TypeVar

from runtime.shares.places import Places

SLICE_S = 0.002
"""Longest time slice. The work should take less than this between two `yield`s."""
REST_RATIO = 2.0
"""The longest rest after a slice, in slices, while others have work to do."""
IDLE_TURN_S = 0.00005
"""A turn of the loop in which nobody had anything to do takes less."""
PACED_SLICE_S = 0.001
"""Seconds that a thread works before it rests."""
PROBE_S = 0.0001
"""A rest for as long as the loop has nothing to do."""
LONG_BYTES = 4 << 20
"""Work on more bytes than this counts as long."""

Result = TypeVar("Result")
Uncut = Callable[[], Any]
"""Plain Python that cannot be cut. Work that yields one gets its result back."""


@dataclass(slots=True)
class _Done(Generic[Result]):
    """The end of work that was done in slices."""

    result: Result


class Slices:
    """Runs one long and one short piece of work at a time, so that many of them together do not hold the loop longer,
    and short ones do not wait for long ones. One per event loop."""

    __slots__ = ("_beside", "_long", "_short", "_worked_s")

    def __init__(self) -> None:
        self._long = Places(1, "turns for long texts")
        self._short = Places(1, "turns for short texts")
        self._beside = Places(1, "pieces of long work")
        self._worked_s = 0.0
        """Duration of the last slice, in seconds."""

    async def beside(self, workspace: str, uncut: Callable[[], Result]) -> Result:
        """Return what `uncut` returns, or raise what it raises. It runs in a thread, one at a time.

        Raises `NoPlaceError` if too many calls of the workspace wait.
        """
        return await self._beside.run(workspace, partial(_at_a_pace, uncut))

    async def step(self, workspace: str, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, or raise what it raises. It has a turn of the loop for itself.

        Raises `NoPlaceError` if too many calls of the workspace wait.
        """
        await self._short.wait(workspace)
        try:
            began = await self._rest()
            try:
                return work()
            finally:
                self._worked_s = perf_counter() - began
        finally:
            self._short.leave(workspace)

    async def run(
        self, workspace: str, work: Generator[Uncut | None, Any, Result], size_bytes: int, *, is_paid: bool = False
    ) -> Result:
        """Return what `work` returns, or raise what it raises. At each of its `yield`s the loop may serve others.

        Raises `NoPlaceError` if too many calls of the workspace wait, unless the work `is_paid`, as on an answer.
        """
        turns = self._long if size_bytes > LONG_BYTES else self._short
        outcome: Any = None
        while True:
            await turns.wait(workspace, is_bounded=not is_paid)
            try:
                uncut = await self._until_uncut(work, outcome)
            finally:
                turns.leave(workspace)
            if isinstance(uncut, _Done):
                result: Result = uncut.result
                return result
            outcome = await self._beside.run(workspace, partial(_at_a_pace, uncut), is_bounded=not is_paid)

    async def _until_uncut(self, work: Generator[Uncut | None, Any, Result], outcome: Any) -> Uncut | _Done[Result]:
        """Run `work` in slices until it ends, or has something that cannot be cut."""
        while True:
            began = await self._rest()
            try:
                while perf_counter() < began + SLICE_S:
                    uncut = work.send(outcome)
                    if uncut is not None:
                        return uncut
                    outcome = None
            except StopIteration as done:
                return _Done(done.value)
            finally:
                self._worked_s = perf_counter() - began

    async def _rest(self) -> float:
        """Let others run until the loop has nothing to do, at most twice as long as the last slice took.

        Returns when the next slice begins.
        """
        until = perf_counter() + REST_RATIO * self._worked_s
        while True:
            began = perf_counter()
            await asyncio.sleep(0)
            ended = perf_counter()
            if ended >= until or ended - began < IDLE_TURN_S:
                return ended


def at_once(work: Generator[Uncut | None, Any, Result]) -> Result:
    """Return what `work` returns, without a pause. For short work."""
    outcome: Any = None
    while True:
        try:
            uncut = work.send(outcome)
        except StopIteration as done:
            result: Result = done.value
            return result
        outcome = uncut() if uncut is not None else None


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
        self._ends = self._began + PACED_SLICE_S

    def __call__(self, _frame: FrameType, _event: str, _arg: object) -> None:
        if perf_counter() < self._ends:
            return
        worked_s = perf_counter() - self._began
        others_s = process_time() - thread_time()
        sleep(PROBE_S)
        if process_time() - thread_time() - others_s > PROBE_S / 2:  # the loop had work to do meanwhile
            sleep(REST_RATIO * worked_s)
        self._began = perf_counter()
        self._ends = self._began + PACED_SLICE_S
