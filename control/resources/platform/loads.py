"""The proxies' reports of a deployment's load, as the rules and the API use them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from control.records.loads import Load
from control.records.models import DeploymentRecord
from policy.deployment_load import DeploymentLoad
from policy.deployments import NOT_SERVING, PARKING


class LoadBook(Protocol):
    """The latest figures of all machines, in Redis or in this process. Never raises for an outage of Redis."""

    async def report(self, machine: str, loads: Sequence[DeploymentLoad]) -> None: ...

    async def loads(self, deployment_ids: Sequence[str]) -> Mapping[str, Load]:
        """The latest reports. A deployment that no machine has reported may be missing from the answer."""
        ...


def active_replicas(record: DeploymentRecord, load: Load) -> int:
    """The number of listed replicas that are healthy. Without probes, a replica is until it is reported unhealthy."""
    if record.status in NOT_SERVING:
        return 0
    if record.health is None and record.status not in PARKING:
        return len(set(record.replicas) - load.unhealthy)
    return len((load.healthy or frozenset()).intersection(record.replicas))
