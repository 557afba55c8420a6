"""Runs long computations in slices, so that one tenant's large request does not block the event loop for the others.

All computations in progress share one slice per turn of the loop (decision 0018). A thread would not help: it holds the
interpreter's lock all the same.
"""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from time import monotonic, perf_counter
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")
SLICE_S = 0.002
AT_ONCE = 3
"""Requests of one workspace that are processed at the same time; they share the slices."""
NEVER = 2**31 - 1
_OLDEST = 2
"""The collector's oldest generation. Collecting it examines every object."""
_CHECK_EVERY_S, _COLLECT_AFTER_S = 1.0, 600.0


class _Slices:
    """Of one event loop. Each turn has one slice, for the first task that asks; the others queue."""

    __slots__ = ("_ends_s", "_waiting")

    def __init__(self) -> None:
        self._ends_s: float | None = None  # None: no task has asked in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def pause(self) -> None:
        if self._ends_s is None:
            self._begin(asyncio.get_running_loop())
        elif perf_counter() >= self._ends_s:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ends_s = perf_counter() + SLICE_S
        loop.call_soon(self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the loop's next turn: the slice goes to the first task in the queue."""
        self._ends_s = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its request was cancelled
                turn.set_result(None)
                self._begin(loop)
                return


_SLICES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slices] = WeakKeyDictionary()


async def pause() -> None:
    """Call it between the steps of a long computation, and before a long step. Waits when the slice is used up."""
    loop = asyncio.get_running_loop()
    slices = _SLICES.get(loop)
    if slices is None:
        slices = _SLICES[loop] = _Slices()
    await slices.pause()


async def each(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """`work(item)` for each item, in slices. One call must take tens of microseconds at most."""
    done: list[R] = []
    for item in items:
        await pause()
        done.append(work(item))
    return done


class WorkspaceTurns:
    """Admits at most `AT_ONCE` requests of each workspace at a time; further ones of that workspace queue."""

    def __init__(self) -> None:
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being processed."""
        return not self._users

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


def defer_full_collections() -> None:
    """Exempt the objects that exist now from collection, and leave full collections to `collect_when_idle`.

    A full collection cannot be cut into slices.
    """
    gc.collect()
    gc.freeze()
    young, middle, _old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def collect_when_idle(turns: WorkspaceTurns) -> None:
    """Run full garbage collections for ever, as often as the collector would, but while no request is processed.

    A full collection takes 30 ms during large requests, otherwise 5 ms. After ten minutes without an idle moment it
    runs anyway.
    """
    collected_s, due = monotonic(), gc.get_threshold()[1]
    while True:
        await asyncio.sleep(_CHECK_EVERY_S)
        if gc.get_count()[_OLDEST] < due:
            collected_s = monotonic()
        elif turns.is_idle or monotonic() - collected_s > _COLLECT_AFTER_S:
            gc.collect()
            collected_s = monotonic()
