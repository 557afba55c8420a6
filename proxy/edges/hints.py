"""Control's hints: "revision R is committed", on the Redis channel `tollgate:hints`. The supervisor's.

A hint only makes a refresh come sooner; Redis keeps none for who was away, so each (re-)subscription counts as one. It
promises to come back after any outage of Redis and must not take anything down with it.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

CHANNEL = "tollgate:hints"
QUIET_S = 10.0
"""After this long without a word the connection is asked for a sign of life; after twice as long it is given up."""
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 5.0
log = logging.getLogger(__name__)


class Hints:
    """Subscribed for as long as `run` runs. `on_hint` gets the revision, or None after a (re-)subscription."""

    def __init__(self, redis_url: str, on_hint: Callable[[int | None], None]) -> None:
        self._redis = connect(redis_url)
        self._on_hint = on_hint
        self._subscribed = False

    async def run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, TimeoutError) as error:
                if self._subscribed:
                    backoff_s = _FIRST_BACKOFF_S
                    log.warning("hints are lost (%s); changes arrive by the regular refresh", type(error).__name__)
                self._subscribed = False
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1))  # noqa: S311 (spreads load, keeps no secret)
            backoff_s = min(backoff_s * 2, _LAST_BACKOFF_S)

    async def reachable(self) -> bool:
        """Whether Redis answers right now."""
        try:
            async with asyncio.timeout(1):
                await self._redis.ping()
        except (RedisError, OSError, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        await self._redis.aclose()

    async def _listen(self) -> None:
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(CHANNEL)
            quiet = 0
            while quiet < 2:
                message = await pubsub.get_message(timeout=QUIET_S)
                if message is None:
                    quiet += 1
                    await pubsub.ping()
                    continue
                quiet = 0
                self._heard(message)
            raise TimeoutError

    def _heard(self, message: dict[str, object]) -> None:
        if message["type"] == "subscribe":
            self._subscribed = True
            self._on_hint(None)
        elif message["type"] == "message":
            self._on_hint(_revision(message["data"]))


def connect(redis_url: str) -> "Redis":
    """A client that reports a failure instead of retrying it: the callers here have their own pace."""
    return Redis.from_url(redis_url, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0), protocol=2)


def _revision(data: object) -> int | None:
    """None for what is not a number: then something was said, and it is worth a look."""
    return int(data) if isinstance(data, bytes) and data.isdigit() else None
