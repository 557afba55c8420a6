"""The number of replicas that the load needs, and how long they stay needed. Pure; the caller brings the time.

A replica stays needed until the load has done without it for the whole idle timeout. So one rule scales down from many
to few and from one to zero.
"""

from collections import deque
from dataclasses import dataclass

DEFAULT_CALLS_PER_REPLICA = 8
"""Calls that one replica is expected to run at a time when its deployment has no `max_concurrency`."""
GAP_S = 10.0
"""The time without news of the load after which the last known demand is assumed to have lasted until now."""


@dataclass(frozen=True, slots=True)
class Load:
    """The `load` of a deployment. `last_request_at` is only compared with itself: the clock is control's."""

    in_flight: int = 0
    queued: int = 0
    parked: int = 0
    last_request_at: str | None = None

    @property
    def calls(self) -> int:
        return self.in_flight + self.queued + self.parked


def replicas_for(calls: int, max_concurrency: int | None) -> int:
    """The replicas that so many calls need: one for each `max_concurrency` of them, rounded up."""
    return -(-calls // (max_concurrency or DEFAULT_CALLS_PER_REPLICA))


class Demand:
    """The highest number of replicas that were needed at any time within the idle timeout."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._needs: deque[tuple[float, int]] = deque()  # times ascend, needs descend: the first is the peak
        self._told_at: float | None = None
        self._last_request_at: str | None = None

    def is_needed(self, now: float, replicas: int = 1) -> None:
        """Note that so many replicas are needed now."""
        while self._needs and self._needs[-1][1] <= replicas:
            self._needs.pop()
        self._needs.append((now, replicas))

    def observe(self, now: float, load: Load, max_concurrency: int | None) -> None:
        """Note the load. A call that began and ended since the last look counts too."""
        if self._told_at is not None and now - self._told_at > GAP_S:
            self.is_needed(now, self.peak())
        had_call = self._told_at is not None and load.last_request_at != self._last_request_at
        self._told_at = now
        self._last_request_at = load.last_request_at
        self.is_needed(now, max(replicas_for(load.calls, max_concurrency), int(had_call)))
        while self._needs[0][0] <= now - self._idle_timeout_s:
            self._needs.popleft()

    def peak(self) -> int:
        """Return the peak as of the last look: while control is unreachable, nothing becomes idle."""
        return self._needs[0][1] if self._needs else 0
