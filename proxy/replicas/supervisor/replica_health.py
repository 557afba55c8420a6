"""Health of one replica by its probes. Thresholds count probes in a row, good or bad ones.

A replica is UNKNOWN from the moment that it is listed, that its deployment's health check is changed, or that this
proxy starts, until probes have decided. Pure.

See docs/reference/inference.md#health-checks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from policy.deployments import HealthCheck


class State(Enum):
    """The health of a replica as far as it is known."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Probe(Enum):
    """The result of a probe. GOOD: a 2xx in time."""

    GOOD = "good"
    BAD = "bad"


VERDICTS: Mapping[Probe, tuple[State, str]] = {
    Probe.GOOD: (State.HEALTHY, "healthy_after"),
    Probe.BAD: (State.UNHEALTHY, "unhealthy_after"),
}
"""The state that probes lead to, and how many of them in a row it takes: a threshold of the health check."""


@dataclass(slots=True)
class ReplicaHealth:
    """The health of one replica under one health check."""

    check: HealthCheck
    state: State = State.UNKNOWN
    last: Probe | None = None
    in_a_row: int = 0
    """Number of probes in a row with the result of the last one."""

    @property
    def healthy(self) -> bool:
        return self.state is State.HEALTHY

    def record(self, probe: Probe) -> bool:
        """Record how a probe went. Returns whether the state has changed."""
        self.in_a_row = self.in_a_row + 1 if probe is self.last else 1
        self.last = probe
        before = self.state
        (state, threshold) = VERDICTS[probe]
        if self.in_a_row >= getattr(self.check, threshold):
            self.state = state
        return self.state is not before
