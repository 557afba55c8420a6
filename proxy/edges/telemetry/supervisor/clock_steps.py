"""Steps of Redis' clock, as this machine's processes notice them: counted once each, and reported for an hour.

See docs/reference/limits.md#time.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.records.supervisor.findings import OK, Finding

TOLD_S = 3600.0
"""The time for which `/readyz` names a step."""
SAME_MS = 2000
"""The most by which two processes' figures of one step differ."""
_REMEDY = "Let NTP slew the clocks of all Redis servers instead of stepping them, and check that they agree"


@dataclass(slots=True)
class _Step:
    server: str
    by_ms: int
    at_s: float
    processes: set[int | None]


class RedisClockSteps(Collector):
    """The steps of all servers. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: list[_Step] = []
        self._total = 0

    def add(self, worker: int, steps: Iterable[tuple[str, int]]) -> None:
        """Record the steps that a worker noticed, each as (server, by how many ms)."""
        for server, by_ms in steps:
            self.noticed(worker, server, by_ms)

    def noticed(self, worker: int | None, server: str, by_ms: int) -> None:
        """Record a step that a worker, or with None the supervisor, noticed.

        It is the same step if another process has reported it, and a new one if this process has reported it itself.
        """
        now_s = self._clock()
        self._steps = [step for step in self._steps if now_s - step.at_s < TOLD_S]
        for step in self._steps:
            if step.server == server and abs(step.by_ms - by_ms) <= SAME_MS and worker not in step.processes:
                step.processes.add(worker)
                return
        self._steps.append(_Step(server, by_ms, now_s, {worker}))
        self._total += 1

    async def finding(self) -> Finding:
        """Return a degraded finding for an hour after the latest step, whose age is the note."""
        age_s = self._clock() - self._steps[-1].at_s if self._steps else TOLD_S
        return OK if age_s >= TOLD_S else Finding(degraded=_text(self._steps[-1]), note=f"{age_s // 60:.0f} min ago")

    def collect(self) -> Iterator[Metric]:
        about = "Steps of Redis' clock that processes of this machine noticed, each once"
        family = CounterMetricFamily("tollgate_redis_clock_jumps", about)
        family.add_metric([], self._total)
        yield family


def _text(step: _Step) -> str:
    """Cause, consequence and remedy."""
    moved = f"back by {-step.by_ms / 1000:.1f} s; limits keep what they have counted"
    if step.by_ms > 0:
        moved = f"forward by {step.by_ms / 1000:.1f} s; rolling windows began empty, so up to a threshold more passed"
    return f"{step.server}: its clock stepped {moved}, and DAY limits count in that clock's day. {_REMEDY}"
