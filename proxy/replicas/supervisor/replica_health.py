"""What probes say about one replica, as a state table. Thresholds count probes in a row, good or bad ones.

A replica is UNKNOWN from the moment that it is listed, or that its health check was changed. It then stays what it was
(not healthy, if it was not there) until probes have decided. Pure.

See docs/reference/inference.md#replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from policy.deployments import HealthCheck


class State(Enum):
    """What is known of a replica."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class Probe(Enum):
    """How a probe went. GOOD: a 2xx in time."""

    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Move:
    """Counts the probe towards `to`, which is reached after `needs` probes in a row: a threshold, or at once."""

    to: State
    needs: str = ""
    """The name of a threshold of the health check; "" means one probe."""


TABLE: Mapping[tuple[State, Probe], Move | None] = {
    (State.UNKNOWN, Probe.GOOD): Move(State.HEALTHY, "healthy_after"),
    (State.UNKNOWN, Probe.BAD): Move(State.UNHEALTHY),
    (State.HEALTHY, Probe.GOOD): None,
    (State.HEALTHY, Probe.BAD): Move(State.UNHEALTHY, "unhealthy_after"),
    (State.UNHEALTHY, Probe.GOOD): Move(State.HEALTHY, "healthy_after"),
    (State.UNHEALTHY, Probe.BAD): None,
}
"""None confirms the state: probes in a row are counted from zero again."""


@dataclass(slots=True)
class ReplicaHealth:
    """The health of one replica under one health check. `healthy`: whether calls may be sent to it."""

    check: HealthCheck
    healthy: bool = False
    state: State = State.UNKNOWN
    in_a_row: int = 0
    """Probes in a row that contradict the state."""

    def record(self, probe: Probe) -> bool:
        """Record how a probe went. Returns whether the state has changed."""
        move = TABLE[self.state, probe]
        if move is None:
            self.in_a_row = 0
            return False
        self.in_a_row += 1
        if self.in_a_row < (getattr(self.check, move.needs) if move.needs else 1):
            return False
        self.state, self.in_a_row = move.to, 0
        self.healthy = move.to is State.HEALTHY
        return True
