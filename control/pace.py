"""Long computations in slices, so that one tenant's large request never holds the event loop for all others.

A thread would not help: the interpreter's lock is held all the same. Slices are of about 5 ms (decisions/0018).
"""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
SLICE_S = 0.005
AT_ONCE = 3
"""Calls of one workspace that are worked on at the same time: each of them may use a slice in each turn of the loop."""


class Pace:
    """One computation: `pause` between its steps lets others run whenever a slice is used up."""

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        self._began_s = perf_counter()

    async def pause(self) -> None:
        if perf_counter() - self._began_s >= SLICE_S:
            await asyncio.sleep(0)
            self._began_s = perf_counter()


async def each(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """`work` of every item, in slices. One step must be short: tens of microseconds."""
    pace = Pace()
    done: list[R] = []
    for item in items:
        done.append(work(item))
        await pace.pause()
    return done


def spare_the_collector() -> None:
    """What stands now stays: a full look for cycles, which no slice can cut, takes 25 ms instead of 100 without it."""
    gc.collect()
    gc.freeze()


class Turns:
    """Lets at most `AT_ONCE` calls of each workspace go on at a time; the others of that workspace wait in turn."""

    def __init__(self) -> None:
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, workspace_id: str) -> AsyncIterator[None]:
        semaphore = self._semaphores.setdefault(workspace_id, asyncio.Semaphore(AT_ONCE))
        self._users[workspace_id] += 1
        try:
            async with semaphore:
                yield
        finally:
            self._users[workspace_id] -= 1
            if not self._users[workspace_id]:
                del self._users[workspace_id], self._semaphores[workspace_id]
