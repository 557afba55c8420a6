"""Every decision about replicas: which to start, list, drain, stop and kill. Pure; the caller brings time and events.

A replica is STARTING until its first good probe, SERVING while it should be listed, DRAINING while it is off the list
and finishes its calls, STOPPING after SIGTERM. At most `max_replicas` processes exist at any time, in all phases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from launcher.demand import Demand, Load
from launcher.options import Options
from launcher.start_attempts import MAX_FAILED_STARTS, StartAttempts
from launcher.statuses import FAILED, LOADING_MODEL, WAKING_UP

SETTLE_S = 2.0
"""Proxies learn of a changed list within a second. A replica takes calls for this long after it left the list."""
LONGEST_CALL_S = 1200.0
"""The proxies' request timeout. A replica that left the list this long ago has no call any more."""
STOP_GRACE_S = 10.0
"""The time from SIGTERM to SIGKILL."""
MAX_ERROR_CHARS = 1000


class Phase(Enum):
    """The phase of a replica's life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"


@dataclass(slots=True)
class Replica:
    """One process. `since`: when its phase began. `is_killed`: SIGKILL was sent."""

    number: int
    phase: Phase
    since: float
    url: str = ""
    port: int = 0
    is_killed: bool = False

    def enters(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.since = now


@dataclass(frozen=True, slots=True)
class Start:
    """Start a replica with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM."""

    number: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL."""

    number: int
    why: str


Action = Start | Terminate | Kill


@dataclass(slots=True)
class Fleet:
    """All replicas of the deployment, and what is known of the calls."""

    options: Options
    replicas: dict[int, Replica] = field(default_factory=dict)
    attempts: StartAttempts = field(default_factory=StartAttempts)
    error: str = ""
    """The reason why no replica could be started, once it was given up."""
    has_told_failure: bool = False
    """True if control shows FAILED because of `error`."""
    is_stopping: bool = False
    _demand: Demand = field(init=False)
    _in_flight: int = 0
    _looked_at: float = 0.0
    _listed: tuple[str, ...] = ()
    _stop_by: float = float("inf")
    _last_number: int = 0

    def __post_init__(self) -> None:
        self._demand = Demand(self.options.idle_timeout_s)

    # --- what happened ------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Someone needs a replica. After giving up, this is a new attempt."""
        self._demand.is_needed(now)
        if self.error:
            self.error = ""
            self.has_told_failure = False
            self.attempts.reset()

    def observe(self, now: float, status: str, load: Load, max_concurrency: int | None) -> None:
        """Take in what control says of the deployment. A status other than FAILED after we set it is a retry."""
        self._in_flight = load.in_flight
        self._looked_at = now
        self._demand.observe(now, load, max_concurrency)
        if self.error and status == FAILED:
            self.has_told_failure = True
        elif self.error and self.has_told_failure:
            self.wake(now)

    def listed(self, now: float, urls: tuple[str, ...]) -> None:
        """Control has this list now."""
        for replica in self._in(Phase.DRAINING):
            if replica.url in self._listed and replica.url not in urls:
                replica.since = now
        self._listed = urls

    def became_ready(self, number: int, now: float) -> None:
        replica = self.replicas[number]
        self.attempts.start_succeeded()
        self.error = ""
        self.has_told_failure = False
        self._demand.is_needed(now)
        if replica.phase is Phase.STARTING:
            replica.enters(Phase.SERVING, now)

    def ended(self, number: int, now: float, why: str) -> bool:
        """A process has ended; `why` completes "the replica …". Returns whether that was a failure."""
        replica = self.replicas.pop(number)
        if replica.phase is Phase.STARTING:
            self.attempts.start_failed(now)
            if self.attempts.is_exhausted and not self._in(Phase.STARTING, Phase.SERVING):
                self.error = f"{MAX_FAILED_STARTS} starts in a row failed; the last replica {why}"[:MAX_ERROR_CHARS]
        elif replica.phase is Phase.SERVING:
            self.attempts.serving_failed(now, now - replica.since)
        return replica.phase in (Phase.STARTING, Phase.SERVING)

    def stop(self, now: float, drain_s: float) -> None:
        """The launcher is asked to end, and to let calls end for at most so long."""
        self.is_stopping = True
        self._stop_by = min(self._stop_by, now + drain_s)

    # --- what to do ---------------------------------------------------------------------------------------------------

    @property
    def ports(self) -> set[int]:
        return {replica.port for replica in self.replicas.values()}

    @property
    def wanted_list(self) -> tuple[str, ...]:
        return tuple(replica.url for replica in self._in(Phase.SERVING))

    @property
    def wanted_status(self) -> str | None:
        """The status that control should show if it can; None: it follows from the list."""
        if self.is_stopping or self._in(Phase.SERVING):
            return None
        if self.error:
            return FAILED
        if self._in(Phase.STARTING):
            return LOADING_MODEL
        return WAKING_UP if self._demand.peak() else None

    @property
    def is_over(self) -> bool:
        return self.is_stopping and not self.replicas

    def actions(self, now: float) -> list[Action]:
        """Decide, change phases, and say what to do to processes."""
        target = 0 if self.is_stopping or self.error else min(self.options.max_replicas, self._demand.peak())
        self._drain(now, target)
        self._take_back(now, target)
        return [*self._endings(now), *self._starts(now, target)]

    def _drain(self, now: float, target: int) -> None:
        """Take surplus replicas off the list, the newest first. One that is still starting is not idle yet."""
        serving = self._in(Phase.SERVING)
        surplus = len(serving) if self.is_stopping else len(serving) + len(self._in(Phase.STARTING)) - target
        for replica in serving[::-1][: max(surplus, 0)]:
            replica.enters(Phase.DRAINING, now)

    def _take_back(self, now: float, target: int) -> None:
        """A draining replica serves again before a new one is started."""
        missing = target - len(self._in(Phase.SERVING, Phase.STARTING))
        for replica in self._in(Phase.DRAINING)[: max(missing, 0)]:
            replica.enters(Phase.SERVING, now)

    def _starts(self, now: float, target: int) -> Iterator[Start]:
        starting = self._in(Phase.STARTING)
        active = self._in(Phase.STARTING, Phase.SERVING)
        if now < self.attempts.not_before or (self.attempts.has_failed and starting):
            return
        room = min(target - len(active), self.options.max_replicas - len(self.replicas))
        for _ in range(min(room, 1) if self.attempts.has_failed else room):
            self._last_number += 1
            self.replicas[self._last_number] = Replica(self._last_number, Phase.STARTING, now)
            yield Start(self._last_number)

    def _endings(self, now: float) -> Iterator[Action]:
        for replica in self.replicas.values():
            age_s = now - replica.since
            match replica.phase:
                case Phase.STARTING if self.is_stopping:
                    replica.enters(Phase.STOPPING, now)
                    yield Terminate(replica.number)
                case Phase.STARTING if age_s >= self.options.start_timeout_s and not replica.is_killed:
                    replica.is_killed = True
                    yield Kill(replica.number, f"did not become healthy within {self.options.start_timeout_s:.0f} s")
                case Phase.DRAINING if self._is_drained(replica, now):
                    replica.enters(Phase.STOPPING, now)
                    yield Terminate(replica.number)
                case Phase.STOPPING if age_s >= STOP_GRACE_S and not replica.is_killed:
                    replica.is_killed = True
                    yield Kill(replica.number, f"did not end within {STOP_GRACE_S:.0f} s after SIGTERM")

    def _is_drained(self, replica: Replica, now: float) -> bool:
        """Return whether it has left control's list and no call can be running on it any more."""
        if now >= self._stop_by:
            return True
        if replica.url in self._listed:
            return False
        has_settled = self._looked_at >= replica.since + SETTLE_S
        return (has_settled and not self._in_flight) or now - replica.since >= LONGEST_CALL_S

    def _in(self, *phases: Phase) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.phase in phases]
