"""The queue as callers of the proxy use it: submit, look up, cancel, count."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from proxy.async_requests.queues import ParkedRequestError, QueueFullError, QueueUnavailableError
from proxy.async_requests.requests import (
    PRIORITIES,
    Cancellation,
    DeploymentRef,
    NewRequest,
    QueueFigures,
    RequestState,
)
from proxy.edges.redis.async_queue import records
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.inputs import INCOMPLETE
from proxy.edges.redis.async_queue.repeats import Write

_IN_PROGRESS = ("running", "paused", "delivering")


class RedisRequestQueue:
    """Implements `RequestQueue`. `max_queued_bytes`: of the payloads of one workspace that have not begun."""

    def __init__(self, client: QueueClient, max_queued_bytes: int) -> None:
        self._client = client
        self._max_queued_bytes = max_queued_bytes
        self._coming: Counter[str] = Counter()
        """Bytes of large inputs on their way, by workspace: they may be stored, and are not counted in Redis."""

    async def submit(self, request: NewRequest, parks: bool) -> None:
        workspace_id = request.deployment.workspace_id
        await self._client.index.add(workspace_id)
        write = self._submission(request, parks)
        with self._counted(workspace_id, write.supply_bytes):
            reply = await self._client.repeats.write(write, lambda reply: reply in (b"queued", b"known"))
        if reply == b"parked":
            raise ParkedRequestError
        if reply == b"full":
            raise QueueFullError
        if reply == INCOMPLETE:
            raise QueueUnavailableError("Redis loses what it acknowledges")

    def _submission(self, request: NewRequest, parks: bool) -> Write:
        """The submission, whose first reply is "incomplete" if the input goes in pieces."""
        inputs = self._client.inputs
        model_input = request.submission.model_input
        workspace_id = request.deployment.workspace_id
        key = keys_of(workspace_id)
        pieces = inputs.pieces_of(model_input)
        arguments = records.submission_arguments(request, pieces)
        once = *arguments, int(parks), self._max_queued_bytes - self._coming[workspace_id]
        again = *arguments, 0, ""
        if not pieces:
            return Write("submit", key, request.id, once, again)
        supply = partial(inputs.put, key, request.id, model_input)
        return Write("submit", key, request.id, once, again, supply=supply, supply_bytes=len(model_input))

    @contextmanager
    def _counted(self, workspace_id: str, size_bytes: int) -> Iterator[None]:
        self._coming[workspace_id] += size_bytes
        try:
            yield
        finally:
            self._coming[workspace_id] -= size_bytes
            if not self._coming[workspace_id]:
                del self._coming[workspace_id]

    async def state(self, workspace_id: str, request_id: str) -> RequestState | None:
        reply = await self._client.commands.run("state", keys_of(workspace_id), request_id)
        if reply is None and not await self._client.repeats.may_decide():
            raise QueueUnavailableError("the process that accepted the request may be about to repeat it")
        return None if reply is None else records.state_of(workspace_id, request_id, reply)

    async def cancel(self, workspace_id: str, request_id: str) -> Cancellation | None:
        await self._client.repeats.quiet_is_over()
        write = Write("cancel", keys_of(workspace_id), request_id, (request_id,), (request_id,))
        reply = await self._client.repeats.write(write, lambda reply: reply is not None and reply[0] == 1)
        if reply is None:
            return None
        canceled, phase, outcome = reply
        return Cancellation(bool(canceled), records.status_of(phase, outcome))

    async def figures(self, deployment: DeploymentRef) -> QueueFigures:
        key = f"{keys_of(deployment.workspace_id)}d:{deployment.deployment_id}"
        fields = [*map(str, PRIORITIES), *_IN_PROGRESS]
        counts = [
            int(count or 0) for count in await self._client.commands.call(key, lambda redis: redis.hmget(key, fields))
        ]
        queued = dict(zip(PRIORITIES, counts, strict=False))
        return QueueFigures(queued, sum(counts[len(PRIORITIES) :]))
