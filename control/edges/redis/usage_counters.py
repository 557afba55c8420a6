"""The counters as control uses them: reads what is used of limits, raises those of a limit that starts, deletes what
deleted groups and dead workers left.

Never charges a call: the proxy's scripts do. Both use the layout in `policy/limits/counter_layout.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from control.edges.redis.start_script import start_arguments, start_text
from control.errors import UsageUnavailableError
from control.records.usage import Bucket, BucketStart, Meter, Used
from policy.limits.counter_layout import (
    EXPIRY_S,
    MARKER_PREFIX,
    calendar_usage,
    closed_field,
    fields_of,
    marker_time_ms,
    places_field,
    rate_usage,
    time_ms,
    windows_field,
)
from policy.limits.in_flight.places import calls_in_flight
from policy.limits.kinds import KIND_NUMBER
from policy.limits.windows import until_end_ms
from runtime.redis.routed import Keyed, RoutedRedis
from runtime.redis.script import RedisScript

_CLOCK_KEY = "tg:clock"
"""The place whose node control asks for the time on a cluster; no key has this name. Counters go by their own node."""
_SCAN_PAGE = 1000
_BATCH = 25
"""Hashes that one round trip reads: a millisecond or two of work."""
_DEADLINE_S = 1.0
"""The time after which callers get an error instead of waiting on."""


class UsageCounters:
    """Reads by Redis' clock, as the limits do."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis
        self._start = RedisScript(start_text())

    async def used(self, meters: Sequence[Meter]) -> list[Used]:
        """Read one figure per meter, in order; zeros before the first call. Raises `UsageUnavailableError`."""
        return await self.used_at(meters, await self.now_ms()) if meters else []

    async def used_at(self, meters: Sequence[Meter], clock_ms: int) -> list[Used]:
        """The same for a clock that shows this time. Of usage limits, the two windows that counted last are kept."""
        hashes = [list(of_key) for _, of_key in groupby(meters, key=lambda meter: meter.bucket.key)]
        counts: list[Used] = []
        async with _redis_errors(_DEADLINE_S):
            for start in range(0, len(hashes), _BATCH):
                batch = hashes[start : start + _BATCH]
                read = await self._redis.each([_reading(of_key) for of_key in batch])
                for of_key, values in zip(batch, read, strict=True):
                    counts += _used(of_key, values, clock_ms)
        return counts

    async def now_ms(self) -> int:
        """Redis' clock, by which days end. Raises `UsageUnavailableError`."""
        async with _redis_errors(_DEADLINE_S):
            return await self._time_ms()

    async def start(self, starts: Sequence[BucketStart]) -> None:
        """Raise what buckets have counted to at least these figures; a window that has ended is left as it is.

        May be done again. Raises `UsageUnavailableError`; then some of them may have been raised.
        """
        for first in range(0, len(starts), _BATCH):
            batch = starts[first : first + _BATCH]
            runs = [(start.bucket.key, start_arguments(start)) for start in batch]
            async with _redis_errors(_DEADLINE_S):
                await self._start.run_each(self._redis, runs)

    async def forget(self, buckets: Sequence[Bucket]) -> None:
        """Delete the counters of deleted groups. A call in flight may recreate one; it expires with its hash.

        Raises `UsageUnavailableError`; leaving it at that is harmless, for a group's id is never used again.
        """
        async with _redis_errors(_DEADLINE_S):
            for start in range(0, len(buckets), _BATCH):
                await self._redis.each([_deleting(bucket) for bucket in buckets[start : start + _BATCH]])

    async def prune_markers(self) -> int:
        """Delete the markers of worker incarnations whose last settlement is older than an unused hash lives.

        A replay that old is not settled any more (docs/reference/limits.md#settlement). Returns how many it deleted.
        """
        pruned = 0
        async with _redis_errors(None):
            oldest_ms = await self._time_ms() - EXPIRY_S * 1000
            for node in await self._redis.data_servers():
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


def _reading(meters: Sequence[Meter]) -> Keyed:
    """Read by one command, so that all fields of a hash are of one moment."""
    key = meters[0].bucket.key
    fields = _fields(meters)
    return key, lambda server: server.hmget(key, fields)


def _fields(meters: Sequence[Meter]) -> list[str]:
    headers = dict.fromkeys(meter.bucket.group_id for meter in meters)
    return [*headers, *dict.fromkeys(map(_detail, meters))]


def _detail(meter: Meter) -> str:
    """The field beside the header of this meter's group: the closed entries of a log, the other windows' counts, or the
    places of calls in flight."""
    if meter.type.is_concurrent:
        return places_field(meter.bucket.group_id)
    if meter.unit.is_rolling:
        return closed_field(meter.bucket.group_id, KIND_NUMBER[meter.type, meter.unit])
    return windows_field(meter.bucket.group_id, (meter.type, meter.unit))


def _used(meters: Sequence[Meter], values: Sequence[bytes | None], clock_ms: int) -> list[Used]:
    """The count that a script would find now."""
    fields = dict(zip(_fields(meters), values, strict=True))
    counts: list[Used] = []
    for meter in meters:
        header = fields[meter.bucket.group_id]
        detail = fields[_detail(meter)]
        if meter.type.is_concurrent:
            counts.append(Used(calls_in_flight(detail, clock_ms), 0))
        elif meter.unit.is_rolling:
            number = KIND_NUMBER[meter.type, meter.unit]
            counts.append(Used(*rate_usage(header, detail, number, time_ms(header, clock_ms))))
        else:
            amount = calendar_usage((meter.type, meter.unit), header, detail, clock_ms)
            counts.append(Used(amount, until_end_ms(meter.unit, clock_ms)))
    return counts


def _deleting(bucket: Bucket) -> Keyed:
    return bucket.key, lambda server: server.hdel(bucket.key, *fields_of(bucket.group_id))


@asynccontextmanager
async def _redis_errors(within_s: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        raise UsageUnavailableError from error
