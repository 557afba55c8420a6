"""Publishes the new revision on the Redis channel `tollgate:hints` after a commit, so that proxies refresh at once.

Only the newest revision is sent. A lost hint delays a change by at most one refresh interval. No request waits for it.
"""

import asyncio
import logging

from redis.exceptions import RedisError

from runtime.background import is_set_within
from runtime.log_lines import OutageLog, cause_of
from runtime.redis.routed import RoutedRedis

CHANNEL = "tollgate:hints"
_RETRY_S = 1.0
log = logging.getLogger(__name__)


class HintPublisher:
    """Publishes in the background. Without Redis it does nothing."""

    def __init__(self, redis: RoutedRedis | None) -> None:
        self._redis = redis
        self._outage = OutageLog(log)
        self._newest = 0
        """The revision to publish; 0 once it was published."""
        self._closing = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def publish(self, revision: int) -> None:
        """Queue a revision. Never blocks."""
        self._newest = max(self._newest, revision)
        self._wake.set()

    async def start(self) -> None:
        if self._redis is not None:
            self._task = asyncio.create_task(self._run(self._redis))

    async def close(self) -> None:
        """Publish what is queued, if Redis is reachable.

        Asks the task to end instead of cancelling it: redis-py may swallow a cancellation that arrives with a reply.
        """
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def _run(self, redis: RoutedRedis) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            is_published = not self._newest or await self._publish(redis, self._newest)
            if self._closing and not (is_published and self._newest):
                return
            if not is_published:
                await is_set_within(self._wake, _RETRY_S)
                self._wake.set()

    async def _publish(self, redis: RoutedRedis, revision: int) -> bool:
        try:
            async with asyncio.timeout(2):
                await redis.anywhere(lambda server: server.publish(CHANNEL, str(revision)))
        except (RedisError, OSError, TimeoutError) as error:
            self._outage.begins(
                f"Hints are not sent ({cause_of(error)}). Changes reach the proxies with their next regular refresh."
                f" Check Redis, TOLLGATE_REDIS_URL and its user's permission to PUBLISH on {CHANNEL}."
            )
            return False
        self._outage.ends("Hints are sent again.")
        if self._newest == revision:  # reset: a restored database continues with lower revisions
            self._newest = 0
        return True
