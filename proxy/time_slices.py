"""Long work on the event loop, done in time slices: other requests are served in between.

A thread would not help parsers and regular expressions: they keep the interpreter's lock. It helps plain Python that
cannot be cut, as a translation: there the interpreter lets the loop have its turns.
"""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, TypeVar

SLICE_S = 0.002
"""Longest time slice. The work should take less than this between two `yield`s."""
LONG_BYTES = 4 << 20
"""Work on more bytes than this counts as long."""

Result = TypeVar("Result")
Uncut = Callable[[], Any]
"""Plain Python that cannot be cut. Work that yields one gets its result back."""


class Slices:
    """Runs one long and one short piece of work at a time, so that many of them together do not hold the loop longer,
    and short ones do not wait for long ones. One per event loop."""

    __slots__ = ("_long", "_short", "_thread")

    def __init__(self) -> None:
        self._long, self._short = asyncio.Lock(), asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "uncut-work")

    async def beside(self, uncut: Callable[[], Result]) -> Result:
        """Return what `uncut` returns, or raise what it raises. It runs in a thread, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, uncut)

    async def run(self, work: Generator[Uncut | None, Any, Result], size_bytes: int) -> Result:
        """Return what `work` returns, or raise what it raises. At each of its `yield`s the loop may serve others."""
        async with self._long if size_bytes > LONG_BYTES else self._short:
            await asyncio.sleep(0)  # the work before this was not part of a slice
            until = perf_counter() + SLICE_S
            given: Any = None
            while True:
                try:
                    uncut = work.send(given)
                except StopIteration as done:
                    result: Result = done.value
                    return result
                given = await self.beside(uncut) if uncut is not None else None
                if perf_counter() >= until:
                    await asyncio.sleep(0)
                    until = perf_counter() + SLICE_S


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
