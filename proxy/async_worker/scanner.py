"""Finds the work in the queue: sweeps every workspace each second, and those that hints name at once.

Hints may be lost, so they only make it faster. While the queue does not answer, it asks again with pauses.
"""

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic

from proxy.async_requests.queues import AttemptQueue, QueueUnavailableError
from proxy.async_requests.requests import Work

SCAN_INTERVAL_S = 1.0
GAP_S = 0.01
"""Time between two rounds of sweeps. Hints that arrive within it share one."""
SWEEPS_AT_ONCE = 8
FIRST_RETRY_S = 0.25
LAST_RETRY_S = 2.0
"""Time to the next question after the queue did not answer; it doubles."""
NOTHING = Work({}, 0, 0)


class Scanner:
    """Sweeps workspaces. Each of `listeners` is called with a workspace's id and its work, after every sweep."""

    def __init__(self, queue: AttemptQueue, *listeners: Callable[[str, Work], None]) -> None:
        self._queue = queue
        self._listeners = listeners
        self._due_ids: dict[str, None] = {}
        self._workspace_ids: set[str] = set()
        self._due_at: dict[str, float] = {}
        """Time at which something in a workspace is due before the next scan."""
        self._wake = asyncio.Event()
        self._next_scan_at = 0.0

    async def run(self) -> None:
        """Scan until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._scan())

    async def _listen(self) -> None:
        async for workspace_id in self._queue.queue_hints():
            if workspace_id:
                self._due_ids[workspace_id] = None
            else:  # some may have been missed
                self._next_scan_at = 0.0
            self._wake.set()

    async def _scan(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._round()
            except QueueUnavailableError:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            await asyncio.sleep(GAP_S)
            await self._until_due()

    async def _until_due(self) -> None:
        at = min(self._next_scan_at, *self._due_at.values()) if self._due_at else self._next_scan_at
        if not self._due_ids:
            try:
                async with asyncio.timeout(max(0.0, at - monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()

    async def _round(self) -> None:
        """Sweep what is due. What could not be swept is due again."""
        now = monotonic()
        is_scan = now >= self._next_scan_at
        if is_scan:
            names = await self._queue.workspaces()
            self._next_scan_at = now + SCAN_INTERVAL_S
            self._due_ids |= dict.fromkeys(names)
            self._forget(self._workspace_ids.difference(names, self._due_ids))
        self._due_ids |= {name: None for name, at in self._due_at.items() if at <= now}
        due = self._due_ids
        self._due_ids = {}
        try:
            await self._sweep_all(due)
        except BaseException:
            self._due_ids = due | self._due_ids
            raise

    async def _sweep_all(self, names: Iterable[str]) -> None:
        rest = list(names)
        while rest:
            some = rest[:SWEEPS_AT_ONCE]
            rest = rest[SWEEPS_AT_ONCE:]
            results = await asyncio.gather(*map(self._sweep, some), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _sweep(self, workspace_id: str) -> None:
        self._due_at.pop(workspace_id, None)
        work = await self._queue.sweep(workspace_id)
        if work.more:
            self._due_ids[workspace_id] = None
        if work.next_due_in_ms is not None:
            self._plan(workspace_id, work.next_due_in_ms / 1000)
        self._workspace_ids.add(workspace_id)
        self._tell(workspace_id, work)

    def _plan(self, workspace_id: str, wait_s: float) -> None:
        """Sweep in `wait_s`, if no scan does by then."""
        if wait_s < SCAN_INTERVAL_S:
            self._due_at[workspace_id] = monotonic() + max(wait_s, 0.05)

    def _forget(self, workspace_ids: Iterable[str]) -> None:
        """Report that there is no more work in these workspaces."""
        for workspace_id in workspace_ids:
            self._workspace_ids.discard(workspace_id)
            self._due_at.pop(workspace_id, None)
            self._tell(workspace_id, NOTHING)

    def _tell(self, workspace_id: str, work: Work) -> None:
        for listener in self._listeners:
            listener(workspace_id, work)
