"""One call to a platform model, as the supervisor knows it: what it asks for, and where it stands."""

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

from proxy.replicas.replica_calls import Wanted
from proxy.replicas.supervisor.replica_state import ReplicaState

CallId = tuple[int, int]
"""The worker's slot, and the call's number in that worker."""


class WaitsFor(StrEnum):
    """The object of a call's wait. A call that waits for a REPLICA is parked, one that waits for its TURN is queued."""

    REPLICA = "replica"
    TURN = "turn"


class Why(StrEnum):
    """Reason to refuse a call."""

    NO_MODEL = "no_model"
    """Unknown model, environment or deployment, or another workspace's (404)."""
    NO_REPLICA = "no_replica"
    """No healthy replica, or a status that does not serve (503). Never for a call that was parked."""
    NOT_ROUTED = "not_routed"
    """The call was parked, and its deployment ceased to serve (500)."""
    FULL = "full"
    """The deployment's queue is full (529)."""
    NO_POLICY = "no_policy"
    """The policy replica cannot be read (503)."""


@dataclass(slots=True, eq=False)
class PlatformCall:
    """A call to a platform model. It waits if `waits_for` is set, and runs if `replica` is set.

    Otherwise it was refused, or will ask again.
    """

    id: CallId
    request: Wanted
    deployment_id: str | None = None
    replica: ReplicaState | None = None
    outcome_known: bool = False
    """True once the circuit breaker has learned the outcome of the call at `replica`."""
    waits_for: WaitsFor | None = None
    was_parked: bool = False
    """True from the first time that the call was parked. It is then never answered 503, and no full queue sheds it."""
    asked_before: bool = False
    avoid: Set[str] = frozenset()
    """Replicas that were unreachable for this call."""
    avoid_until: float = 0.0
    """Time at which a parked call may try them again."""
