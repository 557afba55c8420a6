"""The counters as control uses them: reads the day's usage, and deletes what deleted groups and dead workers left.

Never charges a limit: the proxy's scripts do. Both use the layout in `policy/limits/counter_layout.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from control.resources.errors import UsageUnavailableError
from control.resources.group_usage import Bucket, DayUsage
from control.time_slices import pause
from policy.limits.counter_layout import EXPIRY_S, MARKER_PREFIX, day_usage, fields_of, marker_time_ms
from runtime.redis.routed import Keyed, RoutedRedis

_CLOCK_KEY = "tg:clock"
"""No key. On a cluster control asks the clock of its node; the counters go by the clock of their own."""
_SCAN_PAGE = 1000
_BATCH = 100
"""Commands encoded at once: a millisecond of work."""
_DEADLINE_S = 1.0
"""After this, callers get an error instead of waiting on."""


class UsageCounters:
    """Reads by Redis' clock, as the limits do."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis

    async def day_usage(self, buckets: Sequence[Bucket]) -> list[DayUsage]:
        """One figure per bucket, in order; zeros before the first call. Raises `UsageUnavailableError`."""
        if not buckets:
            return []
        async with _redis_errors():
            now_ms = await self._time_ms()
            found: list[DayUsage] = []
            for start in range(0, len(buckets), _BATCH):
                await pause()
                headers = await self._redis.each([_reading(bucket) for bucket in buckets[start : start + _BATCH]])
                found += [DayUsage(*day_usage(header, now_ms)) for header in headers]
        return found

    async def now_ms(self) -> int:
        """Redis' clock, by which days end. Raises `UsageUnavailableError`."""
        async with _redis_errors():
            return await self._time_ms()

    async def forget(self, buckets: Sequence[Bucket]) -> None:
        """Delete the counters of deleted groups. A call in flight may recreate one; it expires with its hash.

        Raises `UsageUnavailableError`; leaving it at that is harmless, for a group's id is never used again.
        """
        async with _redis_errors():
            for start in range(0, len(buckets), _BATCH):
                await pause()
                await self._redis.each([_deleting(bucket) for bucket in buckets[start : start + _BATCH]])

    async def prune_markers(self) -> int:
        """Delete the markers of worker incarnations whose last settlement is older than an unused hash lives.

        A replay that old is not settled any more (docs/reference/limits.md#settlement). Returns how many it deleted.
        """
        pruned = 0
        async with _redis_errors(None):
            oldest_ms = await self._time_ms() - EXPIRY_S * 1000
            for node in await self._redis.nodes():
                async for key in node.redis.scan_iter(match="tg:{*", count=_SCAN_PAGE):
                    pruned += await _prune_key(node.redis, key, oldest_ms)
        return pruned

    async def _time_ms(self) -> int:
        seconds, microseconds = await self._redis.at(_CLOCK_KEY, lambda server: server.time())
        return int(seconds) * 1000 + int(microseconds) // 1000


async def _prune_key(server: Redis, key: bytes, oldest_ms: int) -> int:
    markers: Any = server.hscan_iter(key, match=f"{MARKER_PREFIX}*")
    old = [field async for field, marker in markers if marker_time_ms(marker) < oldest_ms]
    return int(await server.hdel(key, *old)) if old else 0


def _reading(bucket: Bucket) -> Keyed:
    return bucket.key, lambda server: server.hget(bucket.key, bucket.group_id)


def _deleting(bucket: Bucket) -> Keyed:
    return bucket.key, lambda server: server.hdel(bucket.key, *fields_of(bucket.group_id))


@asynccontextmanager
async def _redis_errors(within_s: float | None = _DEADLINE_S) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise UsageUnavailableError from error
