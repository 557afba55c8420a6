"""The usage page of a customer's own group: limits; calls and tokens of the last days, by slug and key. No money.

See docs/reference/console.md#usage-page.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from control.edges.sql import key_rows
from control.edges.sql.billing.group_paths import groups_named
from control.edges.sql.billing.sum_records import DaySums, RateKey
from control.edges.sql.store import Store
from control.long_work import beside
from control.records.console import NamedGroup
from control.records.events import EventWindow
from control.records.policy import KeyRecord
from control.records.usage_sums import Figures, Usage, figures_sum, usage_of
from control.resources.billing.report_groups import Grouping, PricedSlugs
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.report_reader import ReportReader
from control.resources.billing.usage_report import UsageReports
from control.resources.group_usage import GroupLimits, LimitUse, UsageSource
from control.resources.groups import read_group
from policy.prices import DAY_MS, date_text

DAYS = 31
MAX_SLUGS = MAX_KEYS = 100
"""The most used ones are shown."""
MAX_LIMITS = 1_000
_KEYS_LOOKED_AT = 1_000
_MONTH = len("2026-11")


class BelowUsage(NamedTuple):
    """The usage of a group: its own, and with that of all groups below it, deleted ones too."""

    own: Usage = Usage()
    whole: Usage = Usage()


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Usage of one group. `days`: each day, oldest first. `slugs`, `keys`: those with the most calls first.

    `keys`: the keys that the group has, and their calls. `day`, `month`: the last one in UTC. Sums include what ended
    before `as_of_ms`.
    """

    as_of_ms: int
    limits: Sequence[LimitUse]
    days: Sequence[tuple[str, BelowUsage]]
    slugs: Sequence[tuple[str, BelowUsage]]
    keys: Sequence[tuple[KeyRecord, int]]

    @property
    def day(self) -> BelowUsage:
        return self.days[-1][1]

    @property
    def month(self) -> BelowUsage:
        """Add the days of the month up: the page has a whole month of them."""
        last = self.days[-1][0]
        days = [usage for date, usage in self.days if date[:_MONTH] == last[:_MONTH]]
        return BelowUsage(*(_sum_of(usages) for usages in zip(*days, strict=True)))


async def read_usage_page(
    store: Store, reports: UsageReports, counters: UsageSource | None, workspace_id: str, group: NamedGroup
) -> UsagePage:
    """Read the page of one group. Raises UsageUnavailableError while the counters cannot be read."""
    limits = await GroupLimits.of((await read_group(store, workspace_id, group.id)).path)
    uses = await limits.read(counters, None, MAX_LIMITS)
    window = await reports.recent_days(workspace_id, group.external_entity_id, DAYS)
    book = _UsageBook(await _path_of(store, workspace_id, group))
    reader = ReportReader(store, ReportQuery(window, Grouping.DAY, rolls_up=True), PricedSlugs(()))
    async for days in reader.days_from([book.path]):
        await beside(workspace_id, sum(day.items for day in days), partial(book.add, days))
    calls = await _calls_of_keys(store, window)
    async with store.read() as conn:
        keys = await key_rows.list_keys(conn, workspace_id, group.id, None, _KEYS_LOOKED_AT)
    dates = map(date_text, range(window.start_ms, window.end_ms, DAY_MS))
    by_slug = sorted(book.slugs.usages().items(), key=lambda item: (-item[1].whole.calls, item[0]))
    by_day = book.days.usages()
    key_calls = sorted(((key, calls[key.prefix]) for key in keys), key=lambda pair: (-pair[1], pair[0].created_at_ms))
    return UsagePage(
        window.end_ms,
        uses,
        [(date, by_day.get(date, BelowUsage())) for date in dates],
        by_slug[:MAX_SLUGS],
        key_calls[:MAX_KEYS],
    )


async def _path_of(store: Store, workspace_id: str, group: NamedGroup) -> str:
    async with store.read() as conn:
        namesakes = await groups_named(conn, workspace_id, group.external_entity_id)
    return next((one.path for one in namesakes if one.path.endswith(f"{group.id}/")), f"{group.id}/")


async def _calls_of_keys(store: Store, window: EventWindow) -> Counter[str]:
    calls: Counter[str] = Counter()
    reader = ReportReader(store, ReportQuery(window, Grouping.KEY), PricedSlugs(()))
    async for groups in reader.groups((), _KEYS_LOOKED_AT):
        for key in groups:
            calls[key.name[1]] += key.totals.usage.calls
    return calls


class _BelowSums:
    """Sums by name, of a group and with those below it."""

    def __init__(self) -> None:
        self._own: dict[str, Figures] = {}
        self._whole: dict[str, Figures] = {}

    def add(self, name: str, figures: Figures, is_own: bool) -> None:
        for sums in (self._own, self._whole) if is_own else (self._whole,):
            sums[name] = figures_sum(sums[name], figures) if name in sums else figures

    def usages(self) -> Mapping[str, BelowUsage]:
        nothing = Usage().figures
        return {
            name: BelowUsage(usage_of(self._own.get(name, nothing)), usage_of(figures))
            for name, figures in self._whole.items()
        }


class _UsageBook:
    """Adds up the calls of the group with this path and of those below it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.days = _BelowSums()
        self.slugs = _BelowSums()

    def add(self, days: Sequence[DaySums]) -> None:
        for day in days:
            date = date_text(day.day_ms)
            for sums in day.slices():
                for path, rate_key, figures in zip(sums.parts, sums.rate_keys, sums.figures, strict=True):
                    if path.startswith(self.path):
                        self.days.add(date, figures, path == self.path)
                        self.slugs.add(RateKey.from_text(rate_key).slug, figures, path == self.path)


def _sum_of(usages: Sequence[Usage]) -> Usage:
    return Usage(*map(sum, zip(*usages, strict=True)))
