"""One deployment on this machine: its replicas, the calls that wait for it, and what a call may expect of it.

Pure: the caller passes time and randomness. `switchboard.py` acts on what this says.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile
from math import inf

from policy.deployment_load import DeploymentLoad
from policy.deployments import ACTIVE, NOT_SERVING, PARKING, UPDATING, Deployment
from policy.snapshot import ModelRow
from proxy.replicas.supervisor.platform_call import CallId, PlatformCall, WaitsFor, Why
from proxy.replicas.supervisor.replica_state import ReplicaState
from proxy.replicas.supervisor.waiting_calls import WaitingCalls

MAX_REPLICAS_TRIED = 3
Choose = Callable[[int], int]
"""A random whole number below its argument: `random.randrange`."""


class Standing(Enum):
    """A deployment's answer to its calls now: a replica, a wait, or a refusal."""

    SERVES = "serves"
    """A replica is healthy; it may have no room."""
    PARKS = "parks"
    """None is healthy, and the status says to wait."""
    LACKS_REPLICAS = "lacks replicas"
    """None is healthy, and the status says that one should be."""
    REFUSES = "refuses"


@dataclass(slots=True, eq=False)
class DeploymentCalls:
    """The calls and replicas of one deployment; `first_seen` makes it.

    `replicas` holds the listed ones, and those taken off the list that still have calls.
    """

    model_id: str
    workspace_id: str
    policy: Deployment
    replicas: dict[str, ReplicaState]
    waiting_calls: WaitingCalls = field(default_factory=WaitingCalls)
    retrying: dict[CallId, PlatformCall] = field(default_factory=dict)
    """Waiting calls that avoid some replica and may be refused if there is no other."""
    resting: dict[CallId, PlatformCall] = field(default_factory=dict)
    """Parked calls that avoid some replica for a while, about in the order in which they may try it again."""
    in_flight: int = 0
    counts: dict[WaitsFor, int] = field(default_factory=lambda: dict.fromkeys(WaitsFor, 0))
    last_request_at_ms: int | None = None
    standing: Standing | None = None
    """Standing when the waiting calls were last looked at; `usable_then`: the usable replicas then."""
    usable_then: tuple[str, ...] = ()
    reported: object = None
    """The subject of the last report to control."""
    deleted: bool = False
    """Policy no longer has it; it is forgotten when its last call has ended."""
    environments: Mapping[str, str | None] = field(default_factory=dict)
    """The model's, which the waiting calls have followed."""
    to_follow: deque[PlatformCall] = field(default_factory=deque)
    """Calls that may name another deployment now, if they still wait here."""
    to_tell: deque[PlatformCall] = field(default_factory=deque)
    """Calls that may have to be told where they stand, if they still wait here."""
    unfinished: bool = False
    """True if there is more to do for its calls than may be done at a time."""
    _health: "_Health | None" = None
    """The health at the last look; None when something has changed since."""

    @classmethod
    def first_seen(cls, model: ModelRow, policy: Deployment) -> "DeploymentCalls":
        """A deployment that serves already (this proxy has restarted) is taken at its word until probes say more."""
        good = policy.health is None or policy.status in (ACTIVE, UPDATING)
        return cls(model.id, model.workspace_id, policy, {url: ReplicaState(url, good) for url in policy.replicas})

    def update(self, policy: Deployment) -> None:
        """Follow a change of policy.

        A replica with a health check is unhealthy from its listing to its first good probe. So it is again after a
        status that does not serve, because probes have ceased meanwhile.
        """
        self.policy = policy
        self.health_changed()
        good_when_listed = policy.health is None
        listed = set(policy.replicas)
        for url in policy.replicas:
            replica = self.replicas.setdefault(url, ReplicaState(url, good_when_listed))
            if not replica.listed or good_when_listed or policy.status in NOT_SERVING:
                replica.listed = True
                replica.probed_good = good_when_listed
        for replica in [replica for url, replica in self.replicas.items() if url not in listed]:
            replica.listed = False
            self.forget_if_gone(replica)

    def forget_if_gone(self, replica: ReplicaState) -> None:
        """Forget a replica that was taken off the list, once its last call has ended."""
        if not replica.listed and not replica.in_flight:
            del self.replicas[replica.url]

    def health_changed(self) -> None:
        """Call it after every change of a probe's verdict, of a breaker's state or of the list."""
        self._health = None

    def trial_begins(self, replica: ReplicaState) -> None:
        """A call tries a replica whose breaker was open: no other may until it is known how that went."""
        if self._health is not None:
            self._health = self._health.without(replica)

    @property
    def idle(self) -> bool:
        return not self.in_flight and not self.waiting_calls

    def health(self, now: float) -> "_Health":
        """Return which replicas are healthy. Looks again only after a change: there may be hundreds."""
        if self._health is None or now >= self._health.until:
            self._health = _Health.of(self.replicas.values(), now)
        return self._health

    def usable(self, now: float) -> list[ReplicaState]:
        """The healthy ones that may get calls. While the status says to wait, only a probe's word counts."""
        status = self.policy.status
        if status in NOT_SERVING or (self.policy.health is None and status in PARKING):
            return []
        return self.health(now).replicas

    def with_room(self, usable: list[ReplicaState]) -> list[ReplicaState]:
        most = self.policy.max_concurrency
        return usable if most is None else [replica for replica in usable if replica.in_flight < most]

    def standing_with(self, usable: list[ReplicaState]) -> Standing:
        if self.policy.status in NOT_SERVING:
            return Standing.REFUSES
        if usable:
            return Standing.SERVES
        return Standing.PARKS if self.policy.status in PARKING else Standing.LACKS_REPLICAS

    def prospects(self, call: PlatformCall, usable: list[ReplicaState]) -> WaitsFor | Why:
        """Return what a call that cannot start now waits for, or why it is refused."""
        if call.request.background:
            return WaitsFor.TURN if suits(call, usable) else Why.NO_REPLICA if call.avoid else WaitsFor.REPLICA
        standing = self.standing_with(usable)
        if standing is Standing.REFUSES:
            return Why.NOT_ROUTED if call.was_parked else Why.NO_REPLICA
        if suits(call, usable):
            return WaitsFor.TURN
        if call.was_parked or standing is Standing.PARKS:
            return WaitsFor.REPLICA
        return Why.NO_REPLICA

    def first_to_shed(self, newcomer: PlatformCall, usable: list[ReplicaState]) -> PlatformCall | None:
        """Return the queued call that is one too many, now that the newcomer is queued; None if there is room."""
        if self.waiting_calls.sheddable <= self.policy.max_queued * len(usable):
            return None
        return self.waiting_calls.first_to_shed(newcomer)

    def take_forgiving(self, now: float, most: int) -> list[PlatformCall]:
        """Remove from `resting` the calls that may try any replica again."""
        forgiving = list(takewhile(lambda call: call.avoid_until <= now, islice(self.resting.values(), most)))
        for call in forgiving:
            call.avoid = frozenset()
            del self.resting[call.id]
        return forgiving

    def avoids(self, call: PlatformCall) -> None:
        """The waiting call avoids some replica."""
        (self.resting if call.was_parked else self.retrying)[call.id] = call

    def parked(self, call: PlatformCall) -> None:
        """The waiting call is parked now: never refused for want of a replica, never shed by a full queue."""
        self.waiting_calls.park(call)
        if self.retrying.pop(call.id, None) is not None:
            self.resting[call.id] = call

    def no_longer_waits(self, call: PlatformCall) -> None:
        self.retrying.pop(call.id, None)
        self.resting.pop(call.id, None)
        if call.waits_for is not None:
            self.counts[call.waits_for] -= 1
            call.waits_for = None

    def wakeup_after(self, now: float) -> float | None:
        """Return the time of the next change that needs no event; None if there is none."""
        if self.unfinished:
            return now
        first = next(iter(self.resting.values()), None)
        at = min(self.health(now).until, inf if first is None else max(first.avoid_until, now))
        return None if at == inf else at

    def load(self, now: float) -> DeploymentLoad:
        listed = [(replica.url, replica.healthy(now)) for replica in self.replicas.values() if replica.listed]
        return DeploymentLoad(
            model_id=self.model_id,
            deployment_id=self.policy.id,
            in_flight=self.in_flight,
            queued=self.counts[WaitsFor.TURN],
            parked=self.counts[WaitsFor.REPLICA],
            last_request_at_ms=self.last_request_at_ms,
            healthy=tuple(url for url, healthy in listed if healthy),
            unhealthy=tuple(url for url, healthy in listed if not healthy),
        )


@dataclass(frozen=True, slots=True)
class _Health:
    """The healthy replicas until the time at which the first open breaker allows a trial."""

    replicas: list[ReplicaState]
    urls: tuple[str, ...]
    until: float

    @classmethod
    def of(cls, replicas: Iterable[ReplicaState], now: float) -> "_Health":
        healthy = [replica for replica in replicas if replica.healthy(now)]
        paused = (at for replica in replicas if (at := replica.paused_until) is not None and at > now)
        return cls(healthy, tuple(replica.url for replica in healthy), min(paused, default=inf))

    def without(self, replica: ReplicaState) -> "_Health":
        others = [one for one in self.replicas if one is not replica]
        return _Health(others, tuple(one.url for one in others), self.until)


def suits(call: PlatformCall, replicas: list[ReplicaState]) -> bool:
    """Return whether the call may go to one of these."""
    if not call.avoid:
        return bool(replicas)
    if len(call.avoid) >= MAX_REPLICAS_TRIED and not call.was_parked:
        return False
    return any(replica.url not in call.avoid for replica in replicas)


def less_loaded(replicas: list[ReplicaState], choose: Choose) -> ReplicaState:
    """Choose two replicas at random, and return the one with fewer calls in flight."""
    count = len(replicas)
    if count == 1:
        return replicas[0]
    one = choose(count)
    other = (one + 1 + choose(count - 1)) % count
    return min(replicas[one], replicas[other], key=lambda replica: replica.in_flight)
