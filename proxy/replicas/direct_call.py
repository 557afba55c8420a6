"""A call to a platform model itself, with a workspace key: it leaves no event."""

from dataclasses import dataclass

from policy.deployments import Deployment
from proxy.replicas.replica_calls import Wanted


@dataclass(slots=True)
class DirectCall:
    """What it wants of which model, and what goes to the replica."""

    wanted: Wanted
    target: str
    """Path and query at the replica; "" if no replica is asked."""
    deployment: Deployment
    """What it names, as the call found it."""
    body: bytes = b""
    url: str = ""
    """Where the request was sent. Its host is never passed on."""
