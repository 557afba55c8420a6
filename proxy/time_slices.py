"""Long work of a worker: in time slices on the event loop, or beside it. Each workspace has a share of both.

Parsers and regular expressions keep the interpreter's lock, so what they do to a long text is cut into slices. Plain
Python that cannot be cut, as a translation, runs beside the loop (`runtime/shares/long_work.py`).
"""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, TypeVar

from runtime.shares.long_work import LongWork
from runtime.shares.places import Places

SLICE_S = 0.002
"""Longest time slice. The work should take less than this between two `yield`s."""
REST_RATIO = 2.0
IDLE_TURN_S = 0.00005
"""A turn of the loop in which nobody had anything to do takes less."""
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
        self._beside = LongWork()
        self._worked_s = 0.0
        """How long the last slice took."""

    async def beside(self, workspace: str, uncut: Callable[[], Result]) -> Result:
        """Return what `uncut` returns, or raise what it raises. It runs in a thread, one at a time.

        Raises `NoPlaceError` if too many calls of the workspace wait.
        """
        return await self._beside.run(workspace, uncut)

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
        given: Any = None
        while True:
            await turns.wait(workspace, is_bounded=not is_paid)
            try:
                uncut = await self._until_uncut(work, given)
            finally:
                turns.leave(workspace)
            if isinstance(uncut, _Done):
                result: Result = uncut.result
                return result
            given = await self._beside.run(workspace, uncut, is_bounded=not is_paid)

    async def _until_uncut(self, work: Generator[Uncut | None, Any, Result], given: Any) -> Uncut | _Done[Result]:
        """Run `work` in slices until it ends, or has something that cannot be cut."""
        while True:
            began = await self._rest()
            try:
                while perf_counter() < began + SLICE_S:
                    uncut = work.send(given)
                    if uncut is not None:
                        return uncut
                    given = None
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
    given: Any = None
    while True:
        try:
            uncut = work.send(given)
        except StopIteration as done:
            result: Result = done.value
            return result
        given = uncut() if uncut is not None else None
