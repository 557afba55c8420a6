"""A call to a platform model itself, with a workspace key: it leaves no event."""

from dataclasses import dataclass

from policy.deployments import Deployment
from proxy.replicas.replica_calls import Wanted


@dataclass(slots=True)
class DirectCall:
    """A direct call: the model that it asks, and the request for the replica."""

    replica_request: Wanted
    target: str
    """Path and query at the replica; "" if no replica is asked."""
    deployment: Deployment
    """The deployment that the call names, as policy had it when the call began."""
    body: bytes = b""
    url: str = ""
    """The URL of the request. Its host is never passed on."""
