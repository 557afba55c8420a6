"""Subscribes to control's hints ("revision R is committed") on the Redis channel `tollgate:hints`.

A hint only makes a refresh come sooner. Redis does not keep hints for absent subscribers, so each subscription counts
as one. Reconnects after any outage of Redis and lets no error escape.
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
"""After this long without a message the connection is pinged; after twice as long it is replaced."""
_PROBE_KEY = "tg:{readiness}"
_COUNTERS_COMMANDS = """
redis.call('TIME')
redis.call('HSET', KEYS[1], 'probe', '1')
redis.call('HMGET', KEYS[1], 'probe')
redis.call('PEXPIRE', KEYS[1], 1000)
"""
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 5.0
log = logging.getLogger(__name__)


class HintSubscriber:
    """Subscribed while `run` runs. `on_hint` gets the revision, or None after each subscription."""

    def __init__(self, redis_url: str, on_hint: Callable[[int | None], None]) -> None:
        self._redis = connect(redis_url)
        self._on_hint = on_hint
        self._subscribed = False
        self._fault = ""

    async def run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, TimeoutError) as error:
                if self._subscribed:
                    backoff_s = _FIRST_BACKOFF_S
                self._subscribed = False
                self._fault = _cause(error)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1))  # noqa: S311 (spreads load, keeps no secret)
            backoff_s = min(backoff_s * 2, _LAST_BACKOFF_S)

    @property
    def trouble(self) -> str:
        """Why there is no subscription; empty while there is one. Without it changes wait for the regular refresh."""
        if self._subscribed:
            return ""
        return f"no subscription to {CHANNEL} ({self._fault or 'not connected yet'}). Allow SUBSCRIBE on it in Redis"

    async def refusal(self) -> str:
        """Redis's error to the commands that the counters' scripts use; empty when it allows them all.

        Names the cause after a check has failed: an ACL's error names the command or the key.
        """
        try:
            async with asyncio.timeout(1):
                await self._redis.eval(_COUNTERS_COMMANDS, 1, _PROBE_KEY)
        except (RedisError, OSError, TimeoutError) as error:
            return _cause(error)
        return ""

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
                self._on_message(message)
            raise TimeoutError

    def _on_message(self, message: dict[str, object]) -> None:
        if message["type"] == "subscribe":
            self._subscribed, self._fault = True, ""
            self._on_hint(None)
        elif message["type"] == "message":
            self._on_hint(_revision(message["data"]))


def connect(redis_url: str) -> "Redis":
    """A client that does not retry by itself: the callers here have their own backoff."""
    return Redis.from_url(redis_url, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0), protocol=2)


def _cause(error: Exception) -> str:
    """One line: the server's own error text, if it sent one."""
    return str(error).partition("\n")[0] or type(error).__name__


def _revision(data: object) -> int | None:
    """The revision; None for a malformed message, which is treated as 'refresh'."""
    return int(data) if isinstance(data, bytes) and data.isdigit() else None
