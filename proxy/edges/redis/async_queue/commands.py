"""Commands to the Redis of the queue, of one process: a bounded pool, a deadline on every command, named failures.

Nothing is sent twice here: a command whose reply is lost may have taken effect.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from proxy.async_requests.queues import QueueUnavailableError
from proxy.edges.redis.async_queue.scripts import load_scripts
from proxy.edges.redis.subscription import connect, subscribed

LOG_INTERVAL_S = 30.0
_BACKOFF_S = 0.05, 0.5
"""Of subscriptions: while one is lost nothing is written."""
_REMEDIES = {
    "OUTOFMEMORY": "Give it more memory (maxmemory), or lower TOLLGATE_ASYNC_MAX_QUEUED_BYTES.",
    "OOM": "Give it more memory (maxmemory), or lower TOLLGATE_ASYNC_MAX_QUEUED_BYTES.",
    "READONLY": "TOLLGATE_ASYNC_REDIS_URL must name a primary, not a replica.",
    "NOPERM": "Check the permissions of its ACL user.",
    "AUTHENTICATION": "Check the user and the password in TOLLGATE_ASYNC_REDIS_URL.",
    "WRONGTYPE": "Another program uses keys that begin with tga: in the same database.",
    "LOADING": "It is reading its data after a start; wait.",
    "BUSY": "Another client's script runs for too long there.",
    "MISCONF": "It cannot write to its disk: check its log.",
}
"""By a word of the error: of the name of its class in redis-py, or of the server's text."""
_REMEDY = "Check the Redis server, TOLLGATE_ASYNC_REDIS_URL and the network."
Argument = str | bytes | int
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Tests replace the scripts by those with another clock."""

    connections: int = 32
    timeout_s: float = 5.0
    """Of a command, and of the wait for a free connection."""
    connect_timeout_s: float = 2.0
    piece_bytes: int = 131_072
    """Larger inputs go in pieces of this size."""
    scripts: Mapping[str, str] = field(default_factory=load_scripts)


class QueueCommands:
    """`run` and `call` raise `QueueUnavailableError` for whatever is wrong with Redis."""

    def __init__(self, url: str, options: QueueOptions) -> None:
        # No socket_timeout: it makes redis-py wait in `asyncio.wait_for`, which before Python 3.12 may swallow the
        # cancellation of the task that sends. `_guarded` has the deadline.
        timeouts = {"socket_timeout": None, "socket_connect_timeout": options.connect_timeout_s}
        self._timeout_s = options.timeout_s
        once: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "protocol": 2}
        self._redis = Redis.from_pool(
            BlockingConnectionPool.from_url(
                url, max_connections=options.connections, timeout=options.timeout_s, **timeouts, **once
            )
        )
        self._subscriber = connect(url, options.connect_timeout_s)
        self._scripts = {name: self._redis.register_script(text) for name, text in options.scripts.items()}
        self._trouble = ""
        self._logged_at = float("-inf")

    async def close(self) -> None:
        await self._redis.aclose()
        await self._subscriber.aclose()

    @property
    def trouble(self) -> str:
        """What was wrong with the last command. "" if nothing."""
        return self._trouble

    async def run(self, name: str, key: str, *arguments: Argument) -> Any:
        """Run a script. `key`: what it calls KEYS[1]."""
        return await self._guarded(lambda: self._scripts[name](keys=[key], args=arguments))

    async def call(self, command: Callable[[Redis], Awaitable[Any]]) -> Any:
        """The result of one command of redis-py."""
        return await self._guarded(lambda: command(self._redis))

    def subscribed(self, channel: str, on_lost: Callable[[Exception], None]) -> AsyncGenerator[str, None]:
        """The channel's messages, on a connection of their own. See `proxy.edges.redis.subscription`."""
        return subscribed(self._subscriber, channel, on_lost, _BACKOFF_S)

    async def _guarded(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await work()
        except (RedisError, OSError, TimeoutError) as error:
            self.report(error)
            raise QueueUnavailableError(self._trouble) from error
        if self._trouble:
            self._trouble = ""
            log.warning("The Redis of asynchronous requests answers again.")
        return result

    def report(self, error: Exception) -> None:
        """Log what is wrong with Redis: when it begins, and every `LOG_INTERVAL_S`."""
        trouble = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
        is_new = not self._trouble
        self._trouble = trouble
        if is_new or time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            log.error("Redis does not serve asynchronous requests (%s): they are refused, and none begins. %s",
                      trouble, remedy_for(trouble))  # fmt: skip


def remedy_for(trouble: str) -> str:
    words = trouble.upper()
    return next((remedy for word, remedy in _REMEDIES.items() if word in words), _REMEDY)
