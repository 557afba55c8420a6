"""Long computations in slices, so that one tenant's large request never holds the event loop for all others.

All that are under way share one slice in each turn of the loop (decision 0018). A thread would not help: the
interpreter's lock is held all the same.
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
"""Calls of one workspace that are worked on at the same time: each of them may have every n-th slice."""
NEVER = 2**31 - 1
_OLDEST = 2
"""The generation that holds all that lives long: a look at it is a look at everything."""
_LOOK_EVERY_S, _LOOK_AT_LAST_S = 1.0, 600.0


class _Slices:
    """Of one event loop: in each turn one slice, for whoever asks first; the others wait in turn."""

    __slots__ = ("_ends_s", "_waiting")

    def __init__(self) -> None:
        self._ends_s: float | None = None  # None: nobody has asked in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def pause(self) -> None:
        if self._ends_s is None:
            self._begin(asyncio.get_running_loop())
        elif perf_counter() >= self._ends_s:
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ends_s = perf_counter() + SLICE_S
        loop.call_soon(self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop's next turn."""
        self._ends_s = None
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else its request was cancelled
                place.set_result(None)
                self._begin(loop)  # after it: a slice, then its end
                return


_SLICES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slices] = WeakKeyDictionary()


async def pause() -> None:
    """Between two steps of a long computation, and before what cannot be cut: others run when the slice is used up."""
    loop = asyncio.get_running_loop()
    slices = _SLICES.get(loop)
    if slices is None:
        slices = _SLICES[loop] = _Slices()
    await slices.pause()


async def each(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """`work` of every item, in slices. One step must be short: tens of microseconds."""
    done: list[R] = []
    for item in items:
        await pause()
        done.append(work(item))
    return done


class Turns:
    """Lets at most `AT_ONCE` calls of each workspace go on at a time; the others of that workspace wait in turn."""

    def __init__(self) -> None:
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @property
    def is_idle(self) -> bool:
        """Whether no call is being worked on."""
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


def spare_the_collector() -> None:
    """What stands now stays, and a full look for cycles, which no slice can cut, waits for `collect_when_idle`."""
    gc.collect()
    gc.freeze()
    young, middle, _old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def collect_when_idle(turns: Turns) -> None:
    """For ever: look for cycles among all objects, as often as the collector would, but between calls.

    In the middle of large calls a full look takes 30 ms; between calls, 5. One that found no such moment for ten
    minutes takes what there is.
    """
    looked_s, due = monotonic(), gc.get_threshold()[1]
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if gc.get_count()[_OLDEST] < due:
            looked_s = monotonic()
        elif turns.is_idle or monotonic() - looked_s > _LOOK_AT_LAST_S:
            gc.collect()
            looked_s = monotonic()
