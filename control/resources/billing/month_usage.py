"""The usage of the present month of some groups or keys, for lists that show it beside each.

See docs/reference/management-api.md#usage-of-the-month.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from control.long_work import beside
from control.resources.billing.ordered_report import RollUp
from control.resources.billing.report_groups import Grouping, Totals
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.report_reader import ReportReader
from control.resources.billing.usage_report import UsageReports

LONGEST_S = 10.0
"""The longest time that sums of groups are added up for one page; a million take a few seconds."""


class GroupMonth(NamedTuple):
    """The calls of a group: its own, and with those of all groups below it."""

    own: Totals = Totals()
    whole: Totals = Totals()


async def month_of_groups(reports: UsageReports, workspace_id: str, paths: Collection[str]) -> Mapping[str, GroupMonth]:
    """The month of each of the groups with these paths, by path. Empty if it takes too long to add up."""
    reader = await _reader(reports, workspace_id, Grouping.ENTITY)
    if reader is None or not paths:
        return dict.fromkeys(paths, GroupMonth())
    roll_up = RollUp(frozenset(paths))
    ends_s = time.monotonic() + LONGEST_S
    async with aclosing(reader.paths_from(_topmost(paths))) as parts:
        async for groups in parts:
            await beside(workspace_id, len(groups), partial(roll_up.add, groups))
            if time.monotonic() > ends_s:
                return {}
    return {path: GroupMonth(roll_up.own.get(path, Totals()), roll_up.whole.get(path, Totals())) for path in paths}


async def month_of_keys(
    reports: UsageReports, workspace_id: str, entities: Collection[str]
) -> Mapping[tuple[str, str], Totals]:
    """The month of the keys of these entities, by external id and prefix; keys without calls are left out."""
    reader = await _reader(reports, workspace_id, Grouping.KEY)
    if reader is None or not entities:
        return {}
    return {(group.name[0], group.name[1]): group.totals for group in await reader.keys_of(entities)}


async def _reader(reports: UsageReports, workspace_id: str, by: Grouping) -> ReportReader | None:
    """None while nothing of the month is final."""
    window = await reports.month_so_far(workspace_id)
    if window.start_ms >= window.end_ms:
        return None
    query = ReportQuery(window, by, rolls_up=by is Grouping.ENTITY)
    return ReportReader(reports.store, query, await reports.priced_slugs(window))


def _topmost(paths: Collection[str]) -> Sequence[str]:
    """Return the paths that are below no other one: these have the calls of all."""
    topmost: list[str] = []
    for path in sorted(paths):
        if not topmost or not path.startswith(topmost[-1]):
            topmost.append(path)
    return topmost
