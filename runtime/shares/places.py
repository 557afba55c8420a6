"""Places of one kind: as many as there are may be taken at once, and each workspace has a share of them.

A workspace may hold three times as many places as it leaves free, so that the next one finds some; its first place may
be the last one (as in decision 0015). Who waits gets a place workspace by workspace (decision 0064). Pure
bookkeeping of one event loop: nothing here knows what a place is for.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from runtime.daemon_threads import in_daemon_thread
from runtime.log_lines import PacedLog

MAX_WAITING = 100
"""Calls of one workspace that may wait for a place."""
_TIMES_FREE = 3

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class NoPlaceError(Exception):
    """No place is free for the workspace, or too many of its calls wait for one. `what`: the kind, as a plural."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Places:
    """`most` places for `what`, which is a plural for the log. Workspaces that wait take turns in rotation; the calls
    of one workspace, in the order in which they came."""

    __slots__ = ("_counts", "_free", "_last", "_log", "_most", "_queues", "_what")

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._free = most
        self._what = what
        self._counts: Counter[str] = Counter()
        """Places by workspace, without those that hold none."""
        self._last = ""
        """The workspace that got the last place."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """The workspaces that wait; the next one first."""
        self._log = PacedLog(log)

    def acquire(self, workspace: str) -> None:
        """Take a place without waiting. Whoever has one must `leave` it. Raises `NoPlaceError`."""
        if not self._may_take(workspace):
            self._log.warning(
                f"Workspace {workspace} got no further place: it holds {self._counts[workspace]} of {self._most}"
                f" {self._what}, and {self._free} are free. Its request is refused; others go on. The workspace"
                " must end some of its own, or wait."
            )
            raise NoPlaceError(self._what)
        self._give(workspace)

    async def wait(self, workspace: str, *, is_bounded: bool = True) -> None:
        """Wait for a place. Whoever has one must `leave` it. Raises `NoPlaceError`, if the queue `is_bounded`."""
        if self._may_take(workspace):
            self._give(workspace)
            return
        queue = self._queues.setdefault(workspace, deque())
        if is_bounded and len(queue) >= MAX_WAITING:
            raise NoPlaceError(self._what)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(workspace, place)
            else:
                self.leave(workspace)
            raise

    def leave(self, workspace: str) -> None:
        """Give a place back; whoever waits and may have it gets it."""
        self._free += 1
        self._counts[workspace] -= 1
        if not self._counts[workspace]:
            del self._counts[workspace]
        while (following := self._next()) is not None:
            queue = self._queues.pop(following)
            place = queue.popleft()
            if queue:
                self._queues[following] = queue
            if not place.done():
                self._give(following)
                place.set_result(None)

    @contextmanager
    def taken(self, workspace: str) -> Iterator[None]:
        """Hold a place for as long as the block lasts. Raises `NoPlaceError` at once if none is free for it."""
        self.acquire(workspace)
        try:
            yield
        finally:
            self.leave(workspace)

    async def run(self, workspace: str, work: Callable[[], Result], *, is_bounded: bool = True) -> Result:
        """Wait for a place, run `work` in a thread, and return what it returns or raise what it raises.

        If the caller is cancelled, work that has begun goes on, and keeps its place. Raises `NoPlaceError`.
        """
        await self.wait(workspace, is_bounded=is_bounded)
        running = asyncio.ensure_future(in_daemon_thread(work))
        running.add_done_callback(lambda ended: self._ended(workspace, ended))
        try:
            return await asyncio.shield(running)
        finally:
            del running  # an error refers to this frame, and would keep itself (`runtime/daemon_threads.py`)

    def _may_take(self, workspace: str) -> bool:
        count = self._counts[workspace]
        return self._free > 0 and (not count or count < _TIMES_FREE * (self._free - 1))

    def _give(self, workspace: str) -> None:
        self._free -= 1
        self._counts[workspace] += 1
        self._last = workspace

    def _next(self) -> str | None:
        """The workspace that gets the next place: not the last one, if another may have it."""
        workspaces = [workspace for workspace in self._queues if self._may_take(workspace)]
        return next((one for one in workspaces if one != self._last), workspaces[0] if workspaces else None)

    def _forget(self, workspace: str, place: asyncio.Future[None]) -> None:
        queue = self._queues.get(workspace)
        if queue is None:
            return
        with suppress(ValueError):  # `leave` has dropped it
            queue.remove(place)
        if not queue:
            del self._queues[workspace]

    def _ended(self, workspace: str, running: "asyncio.Future[Result]") -> None:
        self.leave(workspace)
        if not running.cancelled():
            running.exception()  # else asyncio logs one that nobody waits for any more
