"""One replica of one deployment, as this machine sees it: calls in flight, probes, circuit breaker."""

from dataclasses import dataclass, field

from proxy.replicas.supervisor.circuit_breaker import Breaker, State


@dataclass(slots=True, eq=False)
class ReplicaState:
    """`probed_good`: what the machine's probes say, or true while the deployment has no health check."""

    url: str
    probed_good: bool
    listed: bool = True
    in_flight: int = 0
    breaker: Breaker = field(default_factory=Breaker)

    def healthy(self, now: float) -> bool:
        """Return whether the replica may get calls."""
        return self.listed and self.probed_good and self.breaker.ready(now)

    @property
    def paused_until(self) -> float | None:
        """The time at which its open breaker allows a trial; None if it is not open."""
        return self.breaker.retry_at if self.listed and self.breaker.state is State.OPEN else None
