"""Tells the queue whether a deployment's requests are parked or have a replica: on each change, and each second.

Callers are refused by it while requests are parked, and an expired request learns whether a replica was ever ready.
"""

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic

from proxy.async_requests.queues import STANDING_S, AttemptQueue, QueueUnavailableError
from proxy.async_requests.requests import DeploymentRef

INTERVAL_S = 1.0


class Standings:
    """This machine's knowledge of replicas. `asking`: deployments with requests that wait for a replica here."""

    def __init__(
        self,
        queue: AttemptQueue,
        asking: Callable[[], Iterable[DeploymentRef]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._queue = queue
        self._asking = asking
        self._clock = clock
        self._reports: dict[DeploymentRef, tuple[bool, float]] = {}  # and when the queue was last told
        self._untold: dict[DeploymentRef, None] = {}
        self._changed = asyncio.Event()

    def tell(self, deployment: DeploymentRef, ready: bool) -> None:
        """A replica of the deployment is healthy, or none is."""
        before = self._reports.get(deployment)
        if before is None or before[0] is not ready or self._clock() - before[1] >= INTERVAL_S:
            self._reports[deployment] = (ready, self._clock())
            self._untold[deployment] = None
            self._changed.set()

    async def run(self) -> None:
        """Report until cancelled. While the queue does not answer, marks are left to end."""
        while True:
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                self._repeat()
            self._changed.clear()
            untold = self._untold
            self._untold = {}
            for deployment in untold:
                try:
                    await self._queue.report_standing(deployment, self._reports[deployment][0])
                except QueueUnavailableError:
                    break

    def _repeat(self) -> None:
        """Report the deployments that still ask again; forget those that have not asked for long."""
        now = self._clock()
        for deployment in self._asking():
            if deployment in self._reports:
                self._reports[deployment] = (self._reports[deployment][0], now)
                self._untold[deployment] = None
        self._reports = {one: report for one, report in self._reports.items() if now - report[1] < STANDING_S}
