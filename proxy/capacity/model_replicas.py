"""The replicas of platform models as one worker sees them: load balancing and circuit breaking.

Pure bookkeeping. The caller passes the time and the source of randomness.

See docs/reference/inference.md#replicas.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.capacity.circuit_breaker import Breaker, Event, State

Choose = Callable[[int], int]
"""A random whole number below its argument: `random.randrange`."""


@dataclass(slots=True)
class ModelReplica:
    """One server of a deployment: the calls that this worker has in flight there, and its circuit breaker."""

    url: str
    in_flight: int = 0
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def idle(self) -> bool:
        """Whether it can be forgotten: no calls in flight, no failures counted."""
        return self.in_flight == 0 and self.breaker.state is State.CLOSED and self.breaker.failures == 0


@dataclass(slots=True)
class ReplicaCall:
    """One call in flight at a replica. A call that ends without an outcome counts as abandoned."""

    replica: ModelReplica
    recorded: bool = False
    ended: bool = False

    def record(self, event: Event, now: float) -> None:
        self.recorded = True
        self.replica.breaker.record(event, now)

    def end(self) -> None:
        """Idempotent."""
        if self.ended:
            return
        self.ended = True
        self.replica.in_flight -= 1
        if not self.recorded:
            self.replica.breaker.record(Event.ABANDONED, 0.0)


class Fleet:
    """The replicas that this worker knows, by base URL."""

    def __init__(self, choose: Choose, max_known: int = 4096) -> None:
        self._choose = choose
        self._max_known = max_known
        self._known: dict[str, ModelReplica] = {}

    def begin_call(self, urls: Sequence[str], now: float) -> ReplicaCall | None:
        """Choose the less loaded of two random healthy replicas. None if none is healthy."""
        healthy = [replica for replica in map(self.replica, urls) if replica.breaker.ready(now)]
        if not healthy:
            return None
        replica = self._less_loaded(healthy)
        replica.breaker.begin()
        replica.in_flight += 1
        return ReplicaCall(replica)

    def replica(self, url: str) -> ModelReplica:
        replica = self._known.get(url)
        if replica is None:
            self._forget_idle()
            replica = self._known[url] = ModelReplica(url)
        return replica

    def _less_loaded(self, healthy: list[ModelReplica]) -> ModelReplica:
        count = len(healthy)
        if count == 1:
            return healthy[0]
        one = self._choose(count)
        other = (one + 1 + self._choose(count - 1)) % count
        return min(healthy[one], healthy[other], key=lambda replica: replica.in_flight)

    def _forget_idle(self) -> None:
        """Bound the dict: replicas come and go."""
        if len(self._known) >= self._max_known:
            self._known = {url: replica for url, replica in self._known.items() if not replica.idle}
