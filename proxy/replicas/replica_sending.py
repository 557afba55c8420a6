"""Sends a call to the replica that it is assigned, and to another one if no byte can have reached the first."""

from collections.abc import Awaitable, Callable

from proxy.errors import UpstreamResetError, UpstreamUnreachableError
from proxy.records.messages import UpstreamAnswer
from proxy.replicas.replica_calls import ReplicaCall


async def send_to_replica(call: ReplicaCall, send: Callable[[str], Awaitable[UpstreamAnswer]]) -> UpstreamAnswer:
    """`send` gets a replica's base URL. Raises what it raises, and what `ReplicaCall.assigned` raises.

    Only a failed connection is tried elsewhere: after a reset the model may have run.
    """
    while True:
        url = await call.assigned()
        try:
            answer = await send(url)
        except UpstreamUnreachableError:
            call.unreachable()
            continue
        except UpstreamResetError:
            call.reset()
            raise
        call.answered()
        return answer
