"""How much of a group's daily limits is used (docs/reference/management-api.md#group-usage).

Knows the limits and which bucket counts each; a `UsageSource` reads the buckets.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from control.time_slices import each, pause
from policy.groups import Group
from policy.limits.counter_layout import bucket_key
from policy.limits.effective import Bound, bounds_of_each, counting_owner
from policy.limits.limit import LimitType


class Bucket(NamedTuple):
    """A counting group in a hash: `Plan.key` and `Bound.counting_group`."""

    key: str
    group_id: str


class DayUsage(NamedTuple):
    """What the current UTC day has used: requests admitted, tokens settled. Reservations are left out."""

    requests: int
    tokens: int


class UsageSource(Protocol):
    """Reads the counters. Every method may raise `UsageUnavailableError`."""

    async def day_usage(self, buckets: Sequence[Bucket]) -> list[DayUsage]: ...

    async def now_ms(self) -> int: ...

    async def forget(self, buckets: Sequence[Bucket]) -> None: ...


@dataclass(frozen=True, slots=True)
class DailyLimit:
    """One usage limit that binds a group's calls to a slug, and the bucket that counts it."""

    slug: str
    bound: Bound
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class UsageEntry:
    """One (slug, type, DAY) of a group's effective configuration, and how much of it is used."""

    slug: str
    type: LimitType
    threshold: int
    current_usage: int
    source_group: str


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """The entries, by slug and type, and the time by the clock that ends the day."""

    entries: list[UsageEntry]
    now_ms: int


async def read_usage(source: UsageSource | None, path: Sequence[Group]) -> GroupUsage:
    """The usage of the group `path[0]`. Without a source, usage is 0: nothing counts."""
    limits = await each(daily_limits_by_slug(path), lambda of_slug: of_slug)
    await pause()
    buckets = [limit.bucket for of_slug in limits for limit in of_slug]
    used = iter([DayUsage(0, 0)] * len(buckets) if source is None else await source.day_usage(buckets))
    found = await each(limits, lambda of_slug: usage_entries(of_slug, list(islice(used, len(of_slug)))))
    entries = sorted((entry for of_slug in found for entry in of_slug), key=lambda entry: (entry.slug, entry.type))
    return GroupUsage(entries, await source.now_ms() if source is not None else time.time_ns() // 1_000_000)


def daily_limits_by_slug(path: Sequence[Group]) -> Iterator[list[DailyLimit]]:
    """For each slug, every daily limit that binds the group; several of one type where ancestors cascade."""
    owner = counting_owner(path)
    for slug, bounds in bounds_of_each(path):
        key = bucket_key(owner.id, slug)
        yield [
            DailyLimit(slug, bound, Bucket(key, bound.counting_group)) for bound in bounds if not bound.limit.is_rate
        ]


def usage_entries(limits: Sequence[DailyLimit], used: Sequence[DayUsage]) -> list[UsageEntry]:
    """For each (slug, type) the limit with the least left, which refuses first; of equals the nearest to the group."""
    entries: dict[tuple[str, LimitType], UsageEntry] = {}
    for daily, usage in zip(limits, used, strict=True):
        limit = daily.bound.limit
        current = usage.requests if limit.type is LimitType.REQUEST else usage.tokens
        entry = UsageEntry(daily.slug, limit.type, limit.threshold, current, daily.bound.source_group)
        known = entries.setdefault((daily.slug, limit.type), entry)
        if entry.threshold - entry.current_usage < known.threshold - known.current_usage:
            entries[daily.slug, limit.type] = entry
    return [entries[slug_and_type] for slug_and_type in sorted(entries)]
