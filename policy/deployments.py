"""The statuses of deployments and who may change them, and the deployment that a call names. Pure.

See docs/reference/management-api.md#deployments.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BUILDING = "BUILDING"
DEPLOYING = "DEPLOYING"
LOADING_MODEL = "LOADING_MODEL"
ACTIVE = "ACTIVE"
UPDATING = "UPDATING"
UNHEALTHY = "UNHEALTHY"
SCALED_TO_ZERO = "SCALED_TO_ZERO"
WAKING_UP = "WAKING_UP"
FAILED = "FAILED"
DEPLOY_FAILED = "DEPLOY_FAILED"
DEACTIVATING = "DEACTIVATING"
INACTIVE = "INACTIVE"

PARKING = frozenset((SCALED_TO_ZERO, WAKING_UP, DEPLOYING, LOADING_MODEL))
"""The statuses in which calls wait until a replica is ready."""
NOT_SERVING = frozenset((BUILDING, FAILED, DEPLOY_FAILED, DEACTIVATING, INACTIVE))
"""The statuses in which calls are refused. With any other, known or not, a deployment serves from healthy replicas."""
HAS_FAILED = frozenset((FAILED, DEPLOY_FAILED))
"""The statuses that `retry` leaves by a new try."""
MOVES_FROM_OUTSIDE: Mapping[str, frozenset[str]] = {
    SCALED_TO_ZERO: frozenset((WAKING_UP,)),
    DEPLOYING: frozenset((WAKING_UP,)),
    WAKING_UP: frozenset((LOADING_MODEL,)),
    LOADING_MODEL: frozenset((FAILED,)),
}
"""The statuses that a launcher of replicas may set, by the present status. `ACTIVE` comes from replicas alone."""

DEFAULT_ENVIRONMENT = "production"
DEVELOPMENT = "development"
DEFAULT_MAX_QUEUED = 100


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The probes of a deployment's replicas: `GET {replica}{path}`; a 2xx within `timeout_s` is good.

    A replica is healthy after `healthy_after` good probes in a row, unhealthy after `unhealthy_after` bad ones.
    """

    path: str = "/health"
    interval_s: float = 5.0
    timeout_s: float = 2.0
    healthy_after: int = 1
    unhealthy_after: int = 3


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment of a platform model: its status, its replicas' base URLs, and how calls reach them."""

    id: str
    status: str
    replicas: tuple[str, ...] = ()
    health: HealthCheck | None = None
    """None: no probes; a replica is healthy from the moment it is listed."""
    max_concurrency: int | None = None
    """Calls in flight per replica, over all workers of a machine; None: no bound."""
    max_queued: int = DEFAULT_MAX_QUEUED
    """Calls that may wait for `max_concurrency`, per replica."""


@dataclass(frozen=True, slots=True)
class Where:
    """The deployment of a model that a call names: one by its id, or the one that an environment points to."""

    environment: str | None = None
    deployment_id: str | None = None


def comparable_name(name: str) -> str:
    """An environment's name in the form that names are compared in: ASCII letters in lower case."""
    return name.lower() if name.isascii() else name


def deployment_of(environments: Mapping[str, str | None], name: str) -> str | None:
    """The id of the deployment that an environment points to, by its name without regard to case.

    `environments`: deployment ids by name. Older versions allowed names that differ in case; the exact spelling wins.
    """
    if (id := environments.get(name)) is not None:
        return id
    key = comparable_name(name)
    return next((id for spelt, id in environments.items() if comparable_name(spelt) == key), None)
