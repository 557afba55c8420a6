"""Bounds how many probes run at once and how many start per second, so that probes cannot take the machine.

The pace also spreads replicas that are listed together: a thousand of them are not probed in the same instant.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType


class ProbeLane:
    """`async with lane` waits, in order, until a probe may start."""

    def __init__(self, at_once: int, per_s: float) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._gap_s = 1 / per_s
        self._free_at_s = 0.0

    async def __aenter__(self) -> None:
        await self._places.acquire()
        try:
            now_s = asyncio.get_running_loop().time()
            start_s = max(now_s, self._free_at_s)
            self._free_at_s = start_s + self._gap_s
            if start_s > now_s:
                await asyncio.sleep(start_s - now_s)
        except BaseException:
            self._places.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places.release()


@dataclass(frozen=True, slots=True)
class ProbeLanes:
    """Slow replicas have a lane of their own, so they delay no others; so have those that calls are waiting for.

    Together they use fewer file descriptors than a process has by default.
    """

    regular: ProbeLane = field(default_factory=lambda: ProbeLane(at_once=192, per_s=500))
    slow: ProbeLane = field(default_factory=lambda: ProbeLane(at_once=64, per_s=100))
    hurried: ProbeLane = field(default_factory=lambda: ProbeLane(at_once=64, per_s=1000))
