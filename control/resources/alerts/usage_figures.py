"""Figures of kind USAGE: how much is used of the DAY and MONTH limits that a group's own counters count.

A limit is watched if the group that sets it has percents, or if it has refused a call.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from control.long_work import beside
from control.records.limits.alerts import USAGE, LimitFigures, LimitWindow, WatchedGroup
from control.records.usage import Bucket, Meter, Used
from control.resources.group_usage import with_usage_limits
from policy.limits.alerts import LimitName
from policy.limits.counter_layout import bucket_key
from policy.limits.effective import Bound, bounds_of_each, counting_owner
from policy.limits.windows import window_at

RefusedLimits = Mapping[str, Collection[LimitName]]
"""The limits that have refused a call, by the group whose counters count them."""


class CalendarSource(Protocol):
    """Reads the counters of usage limits. Every method may raise `UsageUnavailableError`."""

    async def now_ms(self) -> int:
        """The clock by which windows end."""
        ...

    async def used_at(self, meters: Sequence[Meter], clock_ms: int) -> list[Used]:
        """One figure per meter, in order: of the window that has this time, which may have ended lately."""
        ...


class _WatchedLimit(NamedTuple):
    """A limit of the group with this id, and the meter that counts it."""

    group_id: str
    limit: LimitName
    percents: tuple[int, ...]
    threshold: int
    meter: Meter


async def usage_figures(
    source: CalendarSource, groups: Sequence[WatchedGroup], refused: RefusedLimits, at_ms: int
) -> dict[str, list[LimitFigures]]:
    """The figures of each of these groups, which are of one workspace, in the windows that have this time."""
    entries = sum(len(one.group.models) for watched in groups for one in watched.path)
    workspace_id = groups[0].workspace_id if groups else ""
    limits = await beside(workspace_id, entries, partial(_watched_limits, groups, refused))
    meters = _meters(limits)
    usage = dict(zip(meters, await source.used_at(meters, at_ms), strict=True))
    windows = {unit: LimitWindow(*window_at(unit, at_ms)) for unit in {meter.unit for meter in meters}}
    figures: dict[str, list[LimitFigures]] = {}
    for group_id, limit, percents, threshold, meter in limits:
        amount = usage[meter].amount
        figures.setdefault(group_id, []).append(LimitFigures(limit, percents, threshold, amount, windows[meter.unit]))
    return figures


def _meters(limits: Sequence[_WatchedLimit]) -> list[Meter]:
    """Each meter once, those of a hash together."""
    return sorted({one.meter for one in limits})


def _watched_limits(groups: Sequence[WatchedGroup], refused: RefusedLimits) -> list[_WatchedLimit]:
    return [limit for group in groups for limit in _limits_of(group, refused.get(group.id, ()))]


def _limits_of(group: WatchedGroup, refused: Collection[LimitName]) -> Iterator[_WatchedLimit]:
    path = [with_usage_limits(record.group) for record in group.path]
    percents = {record.group.id: record.alert_percents for record in group.path}
    owner = counting_owner(path).id
    for slug, bounds in bounds_of_each(path):
        for bound in bounds:
            name = _name(slug, bound)
            if bound.counting_group == group.id and (percents[bound.source_group] or name in refused):
                meter = Meter(Bucket(bucket_key(owner, slug), group.id), bound.limit.type, bound.limit.unit)
                yield _WatchedLimit(group.id, name, percents[bound.source_group], bound.limit.threshold, meter)


def _name(slug: str, bound: Bound) -> LimitName:
    return LimitName(USAGE, slug, bound.limit.type.value, bound.limit.unit.value)
