"""Drops the metrics' series of slugs that were deleted, once in a while. The supervisor's."""

import asyncio
from collections.abc import Set
from typing import Protocol

SWEEP_S = 60.0


class Series(Protocol):
    """The machine's metrics."""

    def quiet_slugs(self) -> set[str]: ...

    def forget_slugs(self, slugs: Set[str]) -> None: ...


class Policy(Protocol):
    """The machine's replica."""

    def endpoints_among(self, slugs: Set[str]) -> Set[str]: ...


class LabelSweep:
    """A slug goes when it was not called for a while and no endpoint has it any more."""

    def __init__(self, series: Series, policy: Policy, interval_s: float = SWEEP_S) -> None:
        self._series = series
        self._policy = policy
        self._interval_s = interval_s

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            quiet = self._series.quiet_slugs()
            if not quiet:
                continue
            if deleted := quiet - await asyncio.to_thread(self._policy.endpoints_among, quiet):
                self._series.forget_slugs(deleted)
