"""Long work on the event loop, done in time slices: other requests are served in between.

A thread would not help: parsers and regular expressions keep the interpreter's lock.
"""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.002
"""Longest time slice. The work should take less than this between two `yield`s."""
LONG_BYTES = 4 << 20
"""Work on more bytes than this counts as long."""

Result = TypeVar("Result")


class Slices:
    """Runs one long and one short piece of work at a time, so that many of them together do not hold the loop longer,
    and short ones do not wait for long ones. One per event loop."""

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._long, self._short = asyncio.Lock(), asyncio.Lock()

    async def run(self, work: Generator[None, None, Result], size_bytes: int) -> Result:
        """Return what `work` returns, or raise what it raises. At each of its `yield`s the loop may serve others."""
        async with self._long if size_bytes > LONG_BYTES else self._short:
            await asyncio.sleep(0)  # the work before this was not part of a slice
            until = perf_counter() + SLICE_S
            while True:
                try:
                    next(work)
                except StopIteration as done:
                    result: Result = done.value
                    return result
                if perf_counter() >= until:
                    await asyncio.sleep(0)
                    until = perf_counter() + SLICE_S


def at_once(work: Generator[None, None, Result]) -> Result:
    """Return what `work` returns, without a pause. For short work."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
