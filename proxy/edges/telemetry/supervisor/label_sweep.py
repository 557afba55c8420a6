"""Removes the metric series of deleted slugs and models every minute. Runs in the supervisor."""

import asyncio
from collections.abc import Set
from typing import Protocol

SWEEP_INTERVAL_S = 60.0


class SlugSeries(Protocol):
    """The machine's metrics."""

    def quiet_slugs(self) -> set[str]: ...

    def forget_slugs(self, slugs: Set[str]) -> None: ...


class Policy(Protocol):
    """The machine's replica."""

    def callable_among(self, names: Set[str]) -> Set[str]: ...


class LabelSweep:
    """Removes a slug, or a model's id, that was not called for a while and does not exist any more."""

    def __init__(self, series: SlugSeries, policy: Policy, interval_s: float = SWEEP_INTERVAL_S) -> None:
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
            if deleted := quiet - await asyncio.to_thread(self._policy.callable_among, quiet):
                self._series.forget_slugs(deleted)
