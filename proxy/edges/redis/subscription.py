"""Reads a channel of Redis for as long as the process runs, at whichever server holds data.

Redis keeps no message for an absent subscriber, so a reader must learn of each subscription: it may have missed some.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, suppress

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from runtime.backoff import pause_s
from runtime.redis.node_clients import RedisOptions
from runtime.redis.routed import RedisNode, RoutedRedis

SUBSCRIBE_S = 5.0
"""Seconds that a connection and its subscription may take."""
QUIET_S = 10.0
"""Seconds without a message until the connection is pinged; after twice as many it is replaced. Also the interval at
which a reader checks that its server still holds data: one that is cut off from the others gets no messages."""
OnLost = Callable[[Exception], None]
Backoff = tuple[float, float]
"""The first pause before another try, and the longest one, in seconds."""


def connect(redis_url: str, connect_timeout_s: float = 2.0) -> RoutedRedis:
    """A client for `subscribed` and `watched`, which have the deadlines and the backoff."""
    return RoutedRedis(redis_url, RedisOptions(connect_timeout_s=connect_timeout_s))


async def subscribed(
    redis: RoutedRedis, channel: str, on_lost: OnLost, backoff_s: Backoff
) -> AsyncGenerator[str, None]:
    """The channel's messages, and "" after each (re)subscription. Reconnects after any outage, and does not raise.

    `on_lost`: called with what ended the subscription, or with why there is none. `redis`: from `connect`.
    """
    failures = 0
    while True:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(SUBSCRIBE_S):
                    subscription = await _subscribe(redis, channel, await redis.any_node(), stack)
                while True:
                    text = await subscription.next_text()
                    failures = 0
                    yield text
        except (RedisError, OSError, TimeoutError) as error:
            redis.doubt()
            on_lost(error)
        failures += 1
        await asyncio.sleep(pause_s(failures, *backoff_s))


async def watched(redis: RoutedRedis, channel: str, on_lost: OnLost, backoff_s: Backoff) -> AsyncGenerator[None, None]:
    """Yields whenever every server that holds data is subscribed to. Calls `on_lost` when any of them is lost.

    Only for a channel without messages. Otherwise works like `subscribed`.
    """
    failures = 0
    while True:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(SUBSCRIBE_S):
                    nodes = await redis.data_servers()
                    every = [await _subscribe(redis, channel, node, stack) for node in nodes]
                    for subscription in every:
                        await subscription.next_text()
                failures = 0
                yield
                await _until_one_is_lost(redis, every)
        except (RedisError, OSError, TimeoutError) as error:
            redis.doubt()
            on_lost(error)
        failures += 1
        await asyncio.sleep(pause_s(failures, *backoff_s))


async def _subscribe(redis: RoutedRedis, channel: str, node: RedisNode, stack: AsyncExitStack) -> "_Subscription":
    """Subscribe at one server. The subscription ends with the stack."""
    pubsub = await stack.enter_async_context(node.redis.pubsub())
    await pubsub.subscribe(channel)
    return _Subscription(redis, node, pubsub)


async def _until_one_is_lost(redis: RoutedRedis, every: Sequence["_Subscription"]) -> None:
    """Wait. Raises the error of the subscription that is lost, or TimeoutError if other servers hold the data now."""
    try:
        async with asyncio.TaskGroup() as group:
            for subscription in every:
                group.create_task(subscription.next_text())
            while {node.host for node in await redis.data_servers()} == {one.node.host for one in every}:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        await redis.changed()
            raise TimeoutError("other servers hold the data now")
    except ExceptionGroup as errors:  # not `except*`: before Python 3.11.4 it puts what is raised in a group
        losses, others = errors.split((RedisError, OSError, TimeoutError))
        if losses is None or others is not None:
            raise
        raise losses.exceptions[0] from None


class _Subscription:
    """A subscription at one server."""

    def __init__(self, redis: RoutedRedis, node: RedisNode, pubsub: PubSub) -> None:
        self.node = node
        self._redis = redis
        self._pubsub = pubsub
        self._checked_at_s = time.monotonic()

    async def next_text(self) -> str:
        """The next message; "" for the subscription. Raises TimeoutError if the server is silent, or holds no data."""
        quiet = 0
        while quiet < 2:
            message = await self._pubsub.get_message(timeout=QUIET_S)
            await self._check()
            if message is None:
                quiet += 1
                await self._pubsub.ping()
                continue
            quiet = 0
            if message["type"] == "subscribe":
                return ""
            if message["type"] == "message":
                text: str = message["data"].decode("utf-8", "replace")
                return text
        raise TimeoutError

    async def _check(self) -> None:
        """Raise TimeoutError if the server was replaced: it may still answer pings, and get no messages."""
        if time.monotonic() - self._checked_at_s < QUIET_S:
            return
        self._checked_at_s = time.monotonic()
        if self.node.host not in {node.host for node in await self._redis.data_servers()}:
            raise TimeoutError(f"{self.node.name} does not hold the data any more")
