"""The usage page of a customer's own group: limits; calls and tokens of the last days, by slug and key. No money.

See docs/reference/console.md#usage-page.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from control.edges.sql import key_rows
from control.edges.sql.billing.sum_records import RateKey
from control.edges.sql.store import Store
from control.long_work import beside
from control.records.console import NamedGroup
from control.records.policy import KeyRecord
from control.records.usage_sums import Figures, Usage, figures_sum, usage_of
from control.resources.billing.usage_report import RecentDays, UsageReports
from control.resources.group_usage import GroupLimits, LimitUse, UsageSource
from control.resources.groups import read_group
from policy.prices import date_text

Name = TypeVar("Name", int, str)
DAYS = 31
MAX_SLUGS = MAX_KEYS = 100
"""The most used ones are shown."""
MAX_LIMITS = 1_000
_KEYS_LOOKED_AT = 1_000


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Usage of one group. `days`: each day, oldest first. `slugs`, `keys`: those with the most calls first.

    `keys`: the keys that the group has, and their calls. Sums include what ended before `as_of_ms`.
    """

    as_of_ms: int
    limits: Sequence[LimitUse]
    days: Sequence[tuple[str, Usage]]
    slugs: Sequence[tuple[str, Usage]]
    keys: Sequence[tuple[KeyRecord, int]]


async def read_usage_page(
    store: Store, reports: UsageReports, counters: UsageSource | None, workspace_id: str, group: NamedGroup
) -> UsagePage:
    """Read the page of one group. Raises UsageUnavailableError while the counters cannot be read."""
    limits = await GroupLimits.of((await read_group(store, workspace_id, group.id)).path)
    uses = await limits.read(counters, None, MAX_LIMITS)
    recent = await reports.recent_days(workspace_id, group.external_entity_id, DAYS)
    items = sum(day.items for day in recent.sums)
    by_day, by_slug, calls = await beside(workspace_id, items, partial(_added_up, recent))
    async with store.read() as conn:
        keys = await key_rows.list_keys(conn, workspace_id, group.id, None, _KEYS_LOOKED_AT)
    days = [(date_text(day_ms), by_day.get(day_ms, Usage())) for day_ms in recent.days_ms]
    slugs = sorted(by_slug.items(), key=lambda item: (-item[1].calls, item[0]))
    key_calls = sorted(((key, calls[key.prefix]) for key in keys), key=lambda pair: (-pair[1], pair[0].created_at_ms))
    return UsagePage(recent.window.end_ms, uses, days, slugs[:MAX_SLUGS], key_calls[:MAX_KEYS])


def _added_up(recent: RecentDays) -> tuple[Mapping[int, Usage], Mapping[str, Usage], Counter[str]]:
    """Usage by day, usage by slug, calls by key."""
    by_day: dict[int, Figures] = defaultdict(lambda: Usage().figures)
    by_slug: dict[str, Figures] = defaultdict(lambda: Usage().figures)
    calls: Counter[str] = Counter()
    for day in recent.sums:
        for sums in day.slices():
            for key, rate_key, figures in zip(sums.parts, sums.rate_keys, sums.figures, strict=True):
                slug = RateKey.from_text(rate_key).slug
                by_day[day.day_ms] = figures_sum(by_day[day.day_ms], figures)
                by_slug[slug] = figures_sum(by_slug[slug], figures)
                calls[key] += figures[0]
    return _usages(by_day), _usages(by_slug), calls


def _usages(sums: Mapping[Name, Figures]) -> Mapping[Name, Usage]:
    return {name: usage_of(figures) for name, figures in sums.items()}
