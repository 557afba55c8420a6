"""Removes the metric series of deleted slugs every minute. Runs in the supervisor."""

import asyncio
from collections.abc import Set
from typing import Protocol

SWEEP_INTERVAL_S = 60.0


class SlugSeries(Protocol):
    """The machine's metrics."""

    def quiet_slugs(self) -> set[str]: ...

    def forget_slugs(self, slugs: Set[str]) -> None: ...


class Endpoints(Protocol):
    """The machine's replica."""

    def endpoints_among(self, slugs: Set[str]) -> Set[str]: ...


class LabelSweep:
    """Removes a slug that was not called for a while and that no endpoint has any more."""

    def __init__(self, series: SlugSeries, policy: Endpoints, interval_s: float = SWEEP_INTERVAL_S) -> None:
        self._series = series
        self._policy = policy
        self._interval_s = interval_s

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            quiet = self._series.quiet_slugs()
            if not quiet:
                continue
            if deleted := quiet - await asyncio.to_thread(self._policy.endpoints_among, quiet):
                self._series.forget_slugs(deleted)
