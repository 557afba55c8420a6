"""Reading the books: pages of billing events whose windows stay as they were served, and the usage of a group.

A window never reaches beyond *clock − holdback*; what its first page answered is pinned by the cursor.
No SQL and no HTTP here.

See docs/reference/events-and-webhooks.md#the-holdback.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from control.edges.redis.usage_counters import Bucket, DayUsage, UsageCounters
from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.rows import Place, Window, page_of_events
from control.edges.sql.store import Store
from control.time_slices import each, pause
from policy.groups import Group
from policy.limits.counter_layout import bucket_key
from policy.limits.effective import Bound, bounds_of_each, counting_owner
from policy.limits.limit import LimitType

NOTE_SHARE_OF_HOLDBACK = 8
"""How stale the noted clock may be: stamps lie holdback / 2 behind it, windows end a whole one behind."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a window, in order. `next`: the last of them, when more follow."""

    window: Window
    limit: int
    rows: Sequence[Any]
    next: Place | None


@dataclass(frozen=True, slots=True)
class Statements:
    """The events of one database."""

    store: Store
    holdback_s: float
    clock: EventClock

    async def first_page(self, asked: Window, limit: int) -> Page:
        """The window cut to what may be served now, and its first page. An empty window ends where it starts."""
        holdback_ms = int(self.holdback_s * 1000)
        async with self.store.read() as conn:
            moment = await self.clock.look(conn)
        if holdback_ms:
            await self.clock.note(self.store, moment, holdback_ms // NOTE_SHARE_OF_HOLDBACK)
        end_ms = max(asked.start_ms, min(asked.end_ms, moment.now_ms - holdback_ms))
        return await self._page(replace(asked, end_ms=end_ms), None, limit)

    async def next_page(self, window: Window, after: Place, limit: int) -> Page:
        """The page behind `after` of a window that was served before."""
        return await self._page(window, after, limit)

    async def _page(self, window: Window, after: Place | None, limit: int) -> Page:
        if window.end_ms <= window.start_ms:
            return Page(window, limit, (), None)
        async with self.store.read() as conn:
            rows = await page_of_events(conn, window, after, limit + 1)
        shown = rows[:limit]
        more = len(rows) > limit
        return Page(window, limit, shown, (shown[-1].timestamp_ms, shown[-1].idempotency_key) if more else None)


@dataclass(frozen=True, slots=True)
class Meter:
    """One usage limit that binds a group's calls of a slug, and the bucket that counts it."""

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


async def usage_of(counters: UsageCounters | None, path: Sequence[Group]) -> list[UsageEntry]:
    """The entries of the group `path[0]`, by slug and type. Without counters nothing was ever used."""
    parts = await each(_meters_by_slug(path), lambda part: part)
    await pause()
    buckets = [meter.bucket for part in parts for meter in part]
    used = iter([DayUsage(0, 0)] * len(buckets) if counters is None else await counters.day_usage(buckets))
    found = await each(parts, lambda part: usage_entries(part, list(islice(used, len(part)))))
    return sorted((entry for part in found for entry in part), key=lambda entry: (entry.slug, entry.type))


def meters_of(path: Sequence[Group]) -> list[Meter]:
    """Every usage limit that binds the group; several for one (slug, type) where ancestors cascade."""
    return [meter for part in _meters_by_slug(path) for meter in part]


def _meters_by_slug(path: Sequence[Group]) -> Iterator[list[Meter]]:
    owner = counting_owner(path)
    for slug, bounds in bounds_of_each(path):
        key = bucket_key(owner.id, slug)
        yield [Meter(slug, bound, Bucket(key, bound.counting_group)) for bound in bounds if not bound.limit.is_rate]


def usage_entries(meters: Sequence[Meter], used: Sequence[DayUsage]) -> list[UsageEntry]:
    """Of several anchors for one tuple the one with the least left, which will refuse first.

    Of equals the one that is tried first: the nearest to the group.

    See docs/reference/management-api.md#group-usage.
    """
    entries: dict[tuple[str, LimitType], UsageEntry] = {}
    for meter, usage in zip(meters, used, strict=True):
        limit = meter.bound.limit
        current = usage.requests if limit.type is LimitType.REQUEST else usage.tokens
        entry = UsageEntry(meter.slug, limit.type, limit.threshold, current, meter.bound.source_group)
        known = entries.setdefault((meter.slug, limit.type), entry)
        if entry.threshold - entry.current_usage < known.threshold - known.current_usage:
            entries[meter.slug, limit.type] = entry
    return [entries[place] for place in sorted(entries)]
