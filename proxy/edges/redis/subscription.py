"""Reads a channel of Redis for as long as the process runs.

Redis keeps no message for an absent subscriber, so a reader must learn of each subscription: it may have missed some.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from runtime.backoff import pause_s

SUBSCRIBE_S = 5.0
"""How long a connection and its subscription may take."""
QUIET_S = 10.0
"""After this long without a message the connection is pinged; after twice as long it is replaced."""


def connect(redis_url: str, connect_timeout_s: float = 2.0) -> Redis:
    """A client for `subscribed`, which has the deadlines and the backoff."""
    # With a socket_timeout redis-py sends in `asyncio.wait_for`, which before Python 3.12 may swallow the cancellation
    # of the task that sends: who cancels a reader would wait for it forever.
    timeouts: dict[str, Any] = {"socket_timeout": None, "socket_connect_timeout": connect_timeout_s}
    return Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0), protocol=2, **timeouts)


async def subscribed(
    redis: Redis, channel: str, on_lost: Callable[[Exception], None], backoff_s: tuple[float, float]
) -> AsyncGenerator[str, None]:
    """The channel's messages, and "" after each (re)subscription. Reconnects after any outage, and does not raise.

    `on_lost`: called with what ended the subscription, or with why there is none. `backoff_s`: the first pause before
    another try, and the longest one. `redis`: from `connect`.
    """
    failures = 0
    while True:
        try:
            async with redis.pubsub() as pubsub:
                async with asyncio.timeout(SUBSCRIBE_S):
                    await pubsub.subscribe(channel)
                while True:
                    text = await _next_text(pubsub)
                    failures = 0
                    yield text
        except (RedisError, OSError, TimeoutError) as error:
            on_lost(error)
        failures += 1
        await asyncio.sleep(pause_s(failures, *backoff_s))


async def _next_text(pubsub: PubSub) -> str:
    """The next message; "" for the subscription. Raises TimeoutError if the server is silent."""
    quiet = 0
    while quiet < 2:
        message = await pubsub.get_message(timeout=QUIET_S)
        if message is None:
            quiet += 1
            await pubsub.ping()
            continue
        quiet = 0
        if message["type"] == "subscribe":
            return ""
        if message["type"] == "message":
            text: str = message["data"].decode("utf-8", "replace")
            return text
    raise TimeoutError
