"""The counters as control sees them: reads the day's usage, and tidies up after groups and workers that are gone.

It never charges anything: that is for the proxy's scripts, which share the layout in `policy/limits/counter_layout.py`.
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

_SCAN_PAGE = 1000
_BATCH = 100
"""Commands packed at once, a millisecond of work."""
_DEADLINE_S = 1.0
"""Whoever waits for figures is told that there are none, rather than kept waiting."""


class UsageCounters:
    """All look-ups by Redis' own clock, as the limits are."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def day_usage(self, buckets: Sequence[Bucket]) -> list[DayUsage]:
        """One figure per bucket, in order; zeros before the first call. Raises `UsageUnavailableError`."""
        if not buckets:
            return []
        async with _answering():
            now_ms = await self._time_ms()
            found: list[DayUsage] = []
            for start in range(0, len(buckets), _BATCH):
                await pause()
                pipeline = self._redis.pipeline(transaction=False)
                for bucket in buckets[start : start + _BATCH]:
                    pipeline.hget(bucket.key, bucket.group_id)
                found += [DayUsage(*day_usage(header, now_ms)) for header in await pipeline.execute()]
        return found

    async def now_ms(self) -> int:
        """Redis' clock, by which days end. Raises `UsageUnavailableError`."""
        async with _answering():
            return await self._time_ms()

    async def forget(self, buckets: Sequence[Bucket]) -> None:
        """Delete what deleted groups counted. Calls in flight may bring a header back, which goes with its hash.

        Raises `UsageUnavailableError`; leaving it at that is harmless, for a group's id is never used again.
        """
        async with _answering():
            for start in range(0, len(buckets), _BATCH):
                await pause()
                pipeline = self._redis.pipeline(transaction=False)
                for bucket in buckets[start : start + _BATCH]:
                    pipeline.hdel(bucket.key, *fields_of(bucket.group_id))
                await pipeline.execute()

    async def prune_markers(self) -> int:
        """Delete the marks of worker incarnations that have settled nothing for as long as an unused hash lives.

        A replay that old is not settled any more (docs/reference/limits.md#settlement). Says how many went.
        """
        pruned = 0
        async with _answering(None):
            oldest_ms = await self._time_ms() - EXPIRY_S * 1000
            async for key in self._redis.scan_iter(match="tg:{*", count=_SCAN_PAGE):
                pruned += await self._prune_key(key, oldest_ms)
        return pruned

    async def _time_ms(self) -> int:
        seconds, microseconds = await self._redis.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def _prune_key(self, key: bytes, oldest_ms: int) -> int:
        markers: Any = self._redis.hscan_iter(key, match=f"{MARKER_PREFIX}*")
        old = [field async for field, marker in markers if marker_time_ms(marker) < oldest_ms]
        return int(await self._redis.hdel(key, *old)) if old else 0


@asynccontextmanager
async def _answering(within_s: float | None = _DEADLINE_S) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise UsageUnavailableError from error
