"""Subscribes to control's hints ("revision R is committed") on the Redis channel `tollgate:hints`.

A hint only makes a refresh come sooner. Redis does not keep hints for absent subscribers, so each subscription counts
as one. Reconnects after any outage of Redis and lets no error escape.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from redis.exceptions import RedisError

from proxy.edges.redis.subscription import connect, subscribed
from runtime.log_lines import cause_of

CHANNEL = "tollgate:hints"
_PROBE_KEY = "tg:{readiness}"
_COUNTERS_COMMANDS = """
redis.call('TIME')
redis.call('HSET', KEYS[1], 'probe', '1')
redis.call('HMGET', KEYS[1], 'probe')
redis.call('PEXPIRE', KEYS[1], 1000)
"""
_BACKOFF_S = 0.1, 5.0
log = logging.getLogger(__name__)


class HintSubscriber:
    """A subscription that lasts while `run` runs. `on_hint` gets the revision, or None after each subscription."""

    def __init__(self, redis_url: str, on_hint: Callable[[int | None], None]) -> None:
        self._redis = connect(redis_url)
        self._on_hint = on_hint
        self._subscribed = False
        self._fault = ""

    async def run(self) -> None:
        async with aclosing(subscribed(self._redis, CHANNEL, self._on_lost, _BACKOFF_S)) as texts:
            async for text in texts:
                if text == "":
                    self._subscribed = True
                    self._fault = ""
                self._on_hint(_revision(text))

    @property
    def trouble(self) -> str:
        """The cause of a missing subscription, else empty. Without one, changes wait for the regular refresh."""
        if self._subscribed:
            return ""
        return f"no subscription to {CHANNEL} ({self._fault or 'not connected yet'}). Allow SUBSCRIBE on it in Redis"

    async def refusal(self) -> str:
        """Redis's error to the commands that the counters' scripts use; empty when it allows them all.

        Names the cause after a check has failed: an ACL's error names the command or the key.
        """
        try:
            async with asyncio.timeout(1):
                await self._redis.at(_PROBE_KEY, lambda server: server.eval(_COUNTERS_COMMANDS, 1, _PROBE_KEY))
        except (RedisError, OSError, TimeoutError) as error:
            return cause_of(error)
        return ""

    async def close(self) -> None:
        await self._redis.aclose()

    def _on_lost(self, error: Exception) -> None:
        self._subscribed = False
        self._fault = cause_of(error)


def _revision(text: str) -> int | None:
    """The revision; None after a subscription, and for a malformed message, which is treated as 'refresh'."""
    return int(text) if text.isascii() and text.isdigit() else None
