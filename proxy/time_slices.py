"""Long work on the event loop, done in slices: other calls are served between them.

A thread would not help: parsers and pattern matchers keep the interpreter's lock.
"""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.002
"""How long the loop is kept at a stretch. What runs between two `yield`s of the work should take less."""
LONG_BYTES = 4 << 20
"""Of what is worked on."""

Result = TypeVar("Result")


class Slices:
    """One per event loop. One long piece of work and one short one have their slices at a time, so that many together
    hold the loop no longer, and short ones do not wait for long ones."""

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._long, self._short = asyncio.Lock(), asyncio.Lock()

    async def run(self, work: Generator[None, None, Result], size_bytes: int) -> Result:
        """What `work` returns, or raises. Each of its `yield`s is a place where the loop may turn."""
        async with self._long if size_bytes > LONG_BYTES else self._short:
            await asyncio.sleep(0)  # what was done before was no slice
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
    """What `work` returns, without a pause: for what is known to be short."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
