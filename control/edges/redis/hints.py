"""Tells the proxies that policy has changed: the revision on Redis channel `tollgate:hints`, after the commit.

A hint is only a hint: the newest one is sent, a lost one costs at most a refresh interval, and no request waits for it.
"""

import asyncio
import logging
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError

from control.edges.telemetry.log_lines import OutageLog

CHANNEL = "tollgate:hints"
_RETRY_S = 1.0
log = logging.getLogger(__name__)


class Hints:
    """Publishes in the background. `tell` may be called at any time, also without a Redis: then it does nothing."""

    def __init__(self, redis: Redis | None) -> None:
        self._redis = redis
        self._outage = OutageLog(log)
        self._newest = 0
        """What is to be told; 0 once it was."""
        self._closing = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def tell(self, revision: int) -> None:
        self._newest = max(self._newest, revision)
        self._wanted.set()

    async def start(self) -> None:
        if self._redis is not None:
            self._task = asyncio.create_task(self._publish_for_ever(self._redis))

    async def close(self) -> None:
        """Sends what is still to be told, if Redis is there.

        The task is asked to end, not cancelled: redis-py may swallow a cancellation that comes with an answer.
        """
        self._closing = True
        self._wanted.set()
        if self._task is not None:
            await self._task

    async def _publish_for_ever(self, redis: Redis) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            sent = not self._newest or await self._publish(redis, self._newest)
            if self._closing and not (sent and self._newest):
                return
            if not sent:
                await _is_set_within(self._wanted, _RETRY_S)
                self._wanted.set()

    async def _publish(self, redis: Redis, revision: int) -> bool:
        try:
            async with asyncio.timeout(2):
                await redis.publish(CHANNEL, str(revision))
        except (RedisError, OSError, TimeoutError) as error:
            cause = str(error).partition("\n")[0] or type(error).__name__
            self._outage.begins(
                f"Hints are not sent: {cause}. Changes reach the proxies by their regular refresh;"
                f" check Redis, TOLLGATE_REDIS_URL and its user's permission to PUBLISH on {CHANNEL}"
            )
            return False
        self._outage.ends("Hints are sent again")
        if self._newest == revision:  # not kept: a database that is restored while we run begins again below it
            self._newest = 0
        return True


async def _is_set_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
