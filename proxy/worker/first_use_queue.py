"""A worker's queue of asynchronous requests, opened by the first of them: its Redis client takes 20 MB of memory.

Most workers never serve one. It makes no connection before, and a Redis that is away refuses only these requests.
"""

import asyncio
import gc
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Cancellation, DeploymentRef, NewRequest, QueueFigures, RequestState
from runtime.log_lines import cause_of

if TYPE_CHECKING:
    from proxy.edges.redis.async_queue.client import QueueClient
    from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue

_MODULE = "proxy.edges.redis.async_queue.request_queue"


class FirstUseQueue:
    """The `RequestQueue` of the proxy's callers."""

    def __init__(self, redis_url: str, max_queued_bytes: int) -> None:
        self._redis_url = redis_url
        self._max_queued_bytes = max_queued_bytes
        self._client: QueueClient | None = None
        self._queue: RedisRequestQueue | None = None

    async def load(self) -> None:
        """Open the queue beforehand, as its callers do not wait as long as that may take."""
        with suppress(QueueUnavailableError):  # callers will be told
            await self._opened()

    async def submit(self, request: NewRequest, parks: bool) -> None:
        await (await self._opened()).submit(request, parks)

    async def state(self, workspace_id: str, request_id: str) -> RequestState | None:
        return await (await self._opened()).state(workspace_id, request_id)

    async def cancel(self, workspace_id: str, request_id: str) -> Cancellation | None:
        return await (await self._opened()).cancel(workspace_id, request_id)

    async def figures(self, deployment: DeploymentRef) -> QueueFigures:
        return await (await self._opened()).figures(deployment)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _opened(self) -> "RedisRequestQueue":
        """The queue. Its code is loaded in a thread, as other calls must not wait for it."""
        if self._queue is not None:
            return self._queue
        try:
            await asyncio.to_thread(import_module, _MODULE)
        except ImportError as error:  # the installed files were replaced, and this worker not yet
            raise QueueUnavailableError(f"the queue's code cannot be loaded: {cause_of(error)}") from None
        if self._queue is None:  # of several requests at once the first opens it
            from proxy.edges.redis.async_queue.client import QueueClient
            from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue

            gc.freeze()  # what was loaded stays, so no collection need visit it
            self._client = QueueClient(self._redis_url)
            self._queue = RedisRequestQueue(self._client, self._max_queued_bytes)
        return self._queue
