"""Who is in flight where, what is held in memory, what must be shed: bookkeeping only, pure (decisions 8).

The caller brings time and chance. Nothing here waits: parking is `stages/dispatch.py`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.breaker import Breaker, Event, State
from proxy.refusals import ShedError

Choose = Callable[[int], int]
"""A whole number below its argument, at random: `random.randrange`."""


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """What one worker takes on before it sheds."""

    max_in_flight: int = 10_000
    max_parked: int = 5_000
    max_held_bytes: int = 1 << 30
    """Request bodies in memory, all calls together."""


@dataclass(slots=True)
class Capacity:
    """One worker's load. What is entered, held or parked is left, dropped or unparked exactly once."""

    limits: CapacityLimits = field(default_factory=CapacityLimits)
    in_flight: int = 0
    parked: int = 0
    held_bytes: int = 0

    def enter(self) -> None:
        """Refuses only what it has counted: each call that came leaves, the shed ones included."""
        self.in_flight += 1
        if self.in_flight > self.limits.max_in_flight:
            raise ShedError

    def leave(self, held_bytes: int = 0) -> None:
        """With it goes what it held to the last."""
        self.in_flight -= 1
        self.held_bytes -= held_bytes

    def hold(self, size_bytes: int) -> None:
        if self.held_bytes + size_bytes > self.limits.max_held_bytes:
            raise ShedError
        self.held_bytes += size_bytes

    def drop(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes

    def park(self) -> None:
        if self.parked >= self.limits.max_parked:
            raise ShedError
        self.parked += 1

    def unpark(self) -> None:
        self.parked -= 1


@dataclass(slots=True)
class Replica:
    """One server of a deployment: how many calls it has of this worker, and its breaker."""

    url: str
    in_flight: int = 0
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def idle(self) -> bool:
        """Whether forgetting it loses nothing."""
        return self.in_flight == 0 and self.breaker.state is State.CLOSED and self.breaker.failures == 0


@dataclass(slots=True)
class Seat:
    """One call's place at a replica. Left exactly once; what was never told is told as abandoned."""

    replica: Replica
    told: bool = False
    left: bool = False

    def tell(self, event: Event, now: float) -> None:
        self.told = True
        self.replica.breaker.tell(event, now)

    def leave(self) -> None:
        if self.left:
            return
        self.left = True
        self.replica.in_flight -= 1
        if not self.told:
            self.replica.breaker.tell(Event.ABANDONED, 0.0)


class Fleet:
    """The replicas that this worker has met, by base URL."""

    def __init__(self, choose: Choose, max_known: int = 4096) -> None:
        self._choose = choose
        self._max_known = max_known
        self._known: dict[str, Replica] = {}

    def seat(self, urls: Sequence[str], now: float) -> Seat | None:
        """A place at the less loaded of two random healthy replicas; None when none is healthy."""
        healthy = [replica for replica in map(self.replica, urls) if replica.breaker.ready(now)]
        if not healthy:
            return None
        replica = self._less_loaded(healthy)
        replica.breaker.begin()
        replica.in_flight += 1
        return Seat(replica)

    def replica(self, url: str) -> Replica:
        replica = self._known.get(url)
        if replica is None:
            self._forget_idle()
            replica = self._known[url] = Replica(url)
        return replica

    def _less_loaded(self, healthy: list[Replica]) -> Replica:
        count = len(healthy)
        if count == 1:
            return healthy[0]
        one = self._choose(count)
        other = (one + 1 + self._choose(count - 1)) % count
        return min(healthy[one], healthy[other], key=lambda replica: replica.in_flight)

    def _forget_idle(self) -> None:
        """Replicas come and go; the dict must not grow with all that ever were."""
        if len(self._known) >= self._max_known:
            self._known = {url: replica for url, replica in self._known.items() if not replica.idle}
