"""Usage of a group's limits now: of all limits, or of the usage limits (docs/reference/management-api.md).

Knows the limits and which bucket counts each; a `UsageSource` reads the buckets.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

from control.long_work import beside
from control.records.usage import Bucket, BucketStart, Meter, Used
from policy.limits.counter_layout import bucket_key
from policy.limits.effective import Bound, bounds_of_each, counting_owner
from policy.limits.groups import Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import SlugLimits
from policy.limits.windows import until_end_ms


class UsageSource(Protocol):
    """Reads and raises the counters. Every method may raise `UsageUnavailableError`."""

    async def used(self, meters: Sequence[Meter]) -> list[Used]:
        """One figure per meter, in order. Adjacent meters of one hash are read at one moment."""
        ...

    async def now_ms(self) -> int: ...

    async def start(self, starts: Sequence[BucketStart]) -> None:
        """Raise what buckets have counted in windows that have not ended to at least these figures."""
        ...

    async def forget(self, buckets: Sequence[Bucket]) -> None: ...


@dataclass(frozen=True, slots=True)
class SlugBounds:
    """The limits that bind a group's calls to a slug, in the order of trial, and for each the meter that counts it."""

    slug: str
    bounds: tuple[Bound, ...]
    meters: tuple[Meter, ...]


class LimitPlace(NamedTuple):
    """The place of a limit among all of a group: by slug, type, unit, and how far up the tree its group is."""

    slug: str
    type: str
    unit: int
    level: int


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit that binds a group's calls to a slug, and how much of it is used.

    `binds`: among those of its slug and type, it has the least left, so it refuses first; of equals the first tried.
    """

    place: LimitPlace
    bound: Bound
    usage: Used
    binds: bool

    @property
    def slug(self) -> str:
        return self.place.slug

    @property
    def left(self) -> int:
        return self.bound.limit.threshold - self.usage.amount


class GroupLimits:
    """All limits that bind the calls of the group `path[0]`, by slug. Reads counters only of the slugs asked for."""

    _AT_ONCE = 50
    """Slugs whose counters are read at once."""

    def __init__(self, path: Sequence[Group], slugs: list[SlugBounds]) -> None:
        self._levels = _levels(path)
        self._slugs = slugs

    @classmethod
    async def of(cls, path: Sequence[Group]) -> "GroupLimits":
        return cls(path, await beside(path[0].workspace_id, _entries([path]), partial(_sorted_bounds, path)))

    async def read(self, source: UsageSource | None, after: LimitPlace | None, most: int) -> list[LimitUse]:
        """Return at most `most` limits behind `after`, ordered by their places. Without a source, nothing counts."""
        slugs = self._slugs if after is None else [of_slug for of_slug in self._slugs if of_slug.slug >= after.slug]
        limits: list[LimitUse] = []
        for start in range(0, len(slugs), self._AT_ONCE):
            read = slugs[start : start + self._AT_ONCE]
            uses = _uses_of(read, await _read_used(source, _meters(read)), self._levels)
            limits += [use for use in uses if after is None or use.place > after]
            if len(limits) >= most:
                break
        return limits[:most]


async def read_usage(source: UsageSource | None, paths: Sequence[Sequence[Group]]) -> list[list[LimitUse]]:
    """The usage limits, for each path, that bind its first group: of each slug, type, unit the one with least left.

    Without a source, nothing counts.
    """
    if not paths:
        return []
    workspace_id = paths[0][0].workspace_id
    entries = _entries(paths)
    of_groups, meters = await beside(workspace_id, entries, partial(_usage_bounds, paths))
    usage = await _read_used(source, meters)
    return await beside(workspace_id, entries, partial(_binding_uses, paths, of_groups, usage))


def _tightest_of_each(uses: Sequence[LimitUse]) -> Iterable[LimitUse]:
    """The limit of each slug, type and unit with the least left, which refuses first. Of equals the first tried."""
    tightest: dict[tuple[str, str, int], LimitUse] = {}
    for use in uses:
        kind = use.place[:3]
        if use.left < tightest.setdefault(kind, use).left:
            tightest[kind] = use
    return tightest.values()


async def usage_clock_ms(source: UsageSource | None) -> int:
    """The time by the clock that ends days and months."""
    return await source.now_ms() if source is not None else _now_ms()


def _levels(path: Sequence[Group]) -> dict[str, int]:
    return {group.id: level for level, group in enumerate(path)}


def _entries(paths: Sequence[Sequence[Group]]) -> int:
    """The number of entries of `models` on these paths."""
    return sum(len(group.models) for path in paths for group in path)


def _sorted_bounds(path: Sequence[Group]) -> list[SlugBounds]:
    return sorted(_bounds_by_slug(path), key=lambda of_slug: of_slug.slug)


def _usage_bounds(paths: Sequence[Sequence[Group]]) -> tuple[list[list[SlugBounds]], list[Meter]]:
    """The bounds of each path's first group by usage limits, and the meters of all."""
    groups = {group.id: group for path in paths for group in path}  # ancestors are on many paths
    limited = {id: with_usage_limits(group) for id, group in groups.items()}
    of_groups = [[*_bounds_by_slug([limited[group.id] for group in path])] for path in paths]
    return of_groups, _meters(chain.from_iterable(of_groups))


def _binding_uses(
    paths: Sequence[Sequence[Group]], of_groups: Sequence[Sequence[SlugBounds]], usage: Mapping[Meter, Used]
) -> list[list[LimitUse]]:
    """The uses that bind each path, in the order of their places."""
    of_paths: list[list[LimitUse]] = []
    for path, slugs in zip(paths, of_groups, strict=True):
        uses = _uses_of(slugs, usage, _levels(path))
        of_paths.append(sorted(_tightest_of_each(uses), key=lambda use: use.place))
    return of_paths


def _bounds_by_slug(path: Sequence[Group]) -> Iterator[SlugBounds]:
    owner = counting_owner(path)
    for slug, bounds in bounds_of_each(path):
        key = bucket_key(owner.id, slug)
        meters = (Meter(Bucket(key, bound.counting_group), bound.limit.type, bound.limit.unit) for bound in bounds)
        yield SlugBounds(slug, bounds, tuple(meters))


def with_usage_limits(group: Group) -> Group:
    """The group without its rate limits."""
    return replace(group, models=tuple([SlugLimits(entry.slug, (), entry.usage_limits) for entry in group.models]))


def _meters(slugs: Iterable[SlugBounds]) -> list[Meter]:
    """Each meter once, though groups share those of their ancestors; the meters of a hash together."""
    of_hashes = defaultdict[str, dict[Meter, None]](dict)
    for of_slug in slugs:
        for meter in of_slug.meters:
            of_hashes[meter.bucket.key][meter] = None
    return [meter for of_hash in of_hashes.values() for meter in of_hash]


async def _read_used(source: UsageSource | None, meters: Sequence[Meter]) -> dict[Meter, Used]:
    if source is not None:
        return dict(zip(meters, await source.used(meters), strict=True))
    now_ms = _now_ms()
    unused = {unit: Used(0, 0 if unit.is_rolling else until_end_ms(unit, now_ms)) for unit in Unit}
    return {meter: unused[meter.unit] for meter in meters}


def _uses_of(slugs: Sequence[SlugBounds], usage: Mapping[Meter, Used], levels: Mapping[str, int]) -> list[LimitUse]:
    of_slugs = (limit_uses(of_slug, [usage[meter] for meter in of_slug.meters], levels) for of_slug in slugs)
    return [*chain.from_iterable(of_slugs)]


def limit_uses(of_slug: SlugBounds, usage: Sequence[Used], levels: Mapping[str, int]) -> list[LimitUse]:
    """The limits of a slug with what is used of each, in the order of their places. `levels`: by group, 0 the caller's.

    Of each type, the limit with the least left binds: it is the first to refuse. Of equals it is the first tried.
    """
    rest = [bound.limit.threshold - use.amount for bound, use in zip(of_slug.bounds, usage, strict=True)]
    binding: dict[LimitType, int] = {}
    for index, bound in enumerate(of_slug.bounds):
        if rest[index] < rest[binding.setdefault(bound.limit.type, index)]:
            binding[bound.limit.type] = index
    uses = [
        LimitUse(
            LimitPlace(of_slug.slug, bound.limit.type, _UNITS[bound.limit.unit], levels[bound.source_group]),
            bound,
            usage[index],
            binding[bound.limit.type] == index,
        )
        for index, bound in enumerate(of_slug.bounds)
    ]
    return sorted(uses, key=lambda use: use.place)


_UNITS = {unit: number for number, unit in enumerate(Unit)}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
