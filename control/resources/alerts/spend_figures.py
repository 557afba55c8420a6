"""Figures of kind SPEND: how much is spent of the spend limits that bound what a group itself spends.

A limit is watched if the group that sets it has percents, or if it has refused a call.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from control.errors import SpendNotCountedError
from control.records.limits.alerts import SPEND, LimitFigures, LimitWindow, WatchedGroup
from control.resources.spend.group_spend import SpendSource
from policy.limits.alerts import LimitName
from policy.limits.windows import window_at
from policy.prices import units_of
from policy.spend.effective import SpendBound, SpendPlan, spend_plan
from policy.spend.limits import SpendEnforcement


class _WatchedLimit(NamedTuple):
    """A spend limit, and the percents of the group that sets it."""

    bound: SpendBound
    percents: tuple[int, ...]

    @property
    def name(self) -> LimitName:
        return LimitName(SPEND, "", "", self.bound.limit.unit.value)


async def spend_figures(
    source: SpendSource, groups: Sequence[WatchedGroup], refused: Mapping[str, Collection[LimitName]], at_ms: int
) -> dict[str, list[LimitFigures]]:
    """The figures of each of these groups in the windows that have this time.

    None of a tree that is not counted yet: a later look finds them.
    """
    figures: dict[str, list[LimitFigures]] = {}
    for group in groups:
        plan = _plan(group)
        limits = [*_limits_of(group, plan, refused.get(group.id, ()))]
        if plan is None or not limits:
            continue
        try:
            reading = await source.spend_of([limit.bound for limit in limits], plan.key, at_ms)
        except SpendNotCountedError:
            continue
        figures[group.id] = [
            _figures(limit, units_of(use.spent), at_ms) for limit, use in zip(limits, reading.uses, strict=True)
        ]
    return figures


def _plan(group: WatchedGroup) -> SpendPlan | None:
    path = [record.group.id for record in group.path]
    limits = [record.spend_limits for record in group.path]
    balances = [record.balance for record in group.path]
    return spend_plan(path, group.record.group.enforcement, limits, balances)


def _limits_of(group: WatchedGroup, plan: SpendPlan | None, refused: Collection[LimitName]) -> Iterator[_WatchedLimit]:
    percents = {record.group.id: record.alert_percents for record in group.path}
    for bound in () if plan is None else plan.bounds:
        limit = _WatchedLimit(bound, percents[bound.source_group])
        if bound.counting_group == group.id and (limit.percents or limit.name in refused):
            yield limit


def _figures(limit: _WatchedLimit, spent: int, at_ms: int) -> LimitFigures:
    of = limit.bound.limit
    window = LimitWindow(*window_at(of.unit, at_ms))
    is_hard = of.enforcement is SpendEnforcement.HARD
    return LimitFigures(limit.name, limit.percents, units_of(of.amount), spent, window, of.currency, is_hard)
