"""The load of deployments, as the proxies' machines report it, and the sums over machines. Values only."""

from collections.abc import Iterable
from dataclasses import dataclass

from policy.deployment_load import DeploymentLoad

FIGURES_LAST_MS = 3_000
"""A machine that has not reported a deployment for so long carries no call of it."""


HEALTH_LASTS_MS = 30_000
"""The age at which the last report of a machine no longer counts."""


@dataclass(frozen=True, slots=True)
class Load:
    """The sums over all machines that have reported lately."""

    in_flight: int = 0
    queued: int = 0
    parked: int = 0
    last_request_at_ms: int | None = None
    healthy: frozenset[str] | None = None
    """Replicas that at least one machine reports healthy. None: no machine has reported."""
    unhealthy: frozenset[str] = frozenset()
    """Replicas that machines report unhealthy, and none healthy."""


UNREPORTED = Load()


@dataclass(frozen=True, slots=True)
class Heard:
    """A machine's latest figures of a deployment. `machine_age_ms`: since the machine reported anything."""

    load: DeploymentLoad
    age_ms: float
    machine_age_ms: float


def sum_of(reports: Iterable[Heard]) -> Load:
    """Return the load of a deployment from what its machines reported."""
    machines = [one for one in reports if one.machine_age_ms < HEALTH_LASTS_MS]
    if not machines:
        return Load()
    fresh = [one.load for one in machines if one.age_ms < FIGURES_LAST_MS]
    healthy = frozenset(url for one in machines for url in one.load.healthy)
    return Load(
        in_flight=sum(load.in_flight for load in fresh),
        queued=sum(load.queued for load in fresh),
        parked=sum(load.parked for load in fresh),
        last_request_at_ms=max((one.load.last_request_at_ms or 0 for one in machines), default=0) or None,
        healthy=healthy,
        unhealthy=frozenset(url for one in machines for url in one.load.unhealthy) - healthy,
    )
