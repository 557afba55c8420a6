"""The usage page of a customer's own group: limits; calls, tokens and cost of the last days, by slug and key.

See docs/reference/console.md#usage-page.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

from control.edges.sql import key_rows
from control.edges.sql.billing.group_paths import groups_named
from control.edges.sql.billing.sum_records import DaySums
from control.edges.sql.store import Store
from control.long_work import beside
from control.records.console import NamedGroup
from control.records.events import EventWindow
from control.records.policy import KeyRecord
from control.resources.billing.report_groups import Grouping, PricedSlugs, SumBook, Totals
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.report_reader import ReportReader
from control.resources.billing.usage_report import UsageReports
from control.resources.console.usage_statements import stated_months
from control.resources.group_usage import GroupLimits, LimitUse, UsageSource
from control.resources.groups import read_group
from policy.prices import DAY_MS, date_text

DAYS = 31
MAX_SLUGS = MAX_KEYS = 100
"""The most used ones are shown."""
MAX_LIMITS = 1_000
_KEYS_LOOKED_AT = 1_000
_MONTH = len("2026-11")
_GROUPINGS = (Grouping.DAY, Grouping.SLUG)


class BelowTotals(NamedTuple):
    """The totals of a group: its own, and with those of all groups below it, deleted ones too."""

    own: Totals = Totals()
    whole: Totals = Totals()


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Usage of one group. `days`: each day, oldest first. `slugs`, `keys`: those with the most calls first.

    `keys`: the keys that the group has, and their calls. `day`, `month`: the last one in UTC. Sums include what ended
    before `as_of_ms`. `months`: those that have statements, newest first.
    """

    as_of_ms: int
    limits: Sequence[LimitUse]
    days: Sequence[tuple[str, BelowTotals]]
    slugs: Sequence[tuple[str, BelowTotals]]
    keys: Sequence[tuple[KeyRecord, int]]
    months: Sequence[str]

    @property
    def day(self) -> BelowTotals:
        return self.days[-1][1]

    @property
    def month(self) -> BelowTotals:
        """Add the days of the month up: the page has a whole month of them."""
        last = self.days[-1][0]
        days = [totals for date, totals in self.days if date[:_MONTH] == last[:_MONTH]]
        return BelowTotals(*(reduce(Totals.plus, totals) for totals in zip(*days, strict=True)))


async def read_usage_page(
    store: Store, reports: UsageReports, counters: UsageSource | None, workspace_id: str, group: NamedGroup
) -> UsagePage:
    """Read the page of one group. Raises UsageUnavailableError while the counters cannot be read."""
    in_tree = await read_group(store, workspace_id, group.id)
    limits = await GroupLimits.of(in_tree.path)
    uses = await limits.read(counters, None, MAX_LIMITS)
    window = await reports.recent_days(workspace_id, group.external_entity_id, DAYS)
    prices = await reports.priced_slugs(window)
    sums = _PageSums(await _path_of(store, workspace_id, group), prices)
    reader = ReportReader(store, ReportQuery(window, Grouping.DAY, rolls_up=True), prices)
    async for days in reader.days_from([sums.path]):
        await beside(workspace_id, sum(day.items for day in days), partial(sums.add, days))
    calls = await _calls_of_keys(store, window)
    async with store.read() as conn:
        keys = await key_rows.list_keys(conn, workspace_id, group.id, None, _KEYS_LOOKED_AT)
    dates = map(date_text, range(window.start_ms, window.end_ms, DAY_MS))
    by_slug = sorted(sums.totals(Grouping.SLUG).items(), key=lambda item: (-item[1].whole.usage.calls, item[0]))
    by_day = sums.totals(Grouping.DAY)
    key_calls = sorted(((key, calls[key.prefix]) for key in keys), key=lambda pair: (-pair[1], pair[0].created_at_ms))
    return UsagePage(
        window.end_ms,
        uses,
        [(date, by_day.get(date, BelowTotals())) for date in dates],
        by_slug[:MAX_SLUGS],
        key_calls[:MAX_KEYS],
        stated_months(in_tree.record, await reports.kept_from_ms(workspace_id), window.end_ms),
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


class _PageSums:
    """Adds up the calls of the group with this path and of those below it, by day and by slug."""

    def __init__(self, path: str, prices: PricedSlugs) -> None:
        self.path = path
        self._own = {by: SumBook(prices) for by in _GROUPINGS}
        self._whole = {by: SumBook(prices) for by in _GROUPINGS}

    def add(self, days: Sequence[DaySums]) -> None:
        for by in _GROUPINGS:
            self._own[by].add(days, by, lambda path: path == self.path)
            self._whole[by].add(days, by, lambda path: path.startswith(self.path))

    def totals(self, by: Grouping) -> Mapping[str, BelowTotals]:
        own = self._own[by].totals()
        nothing = Totals()
        return {name[0]: BelowTotals(own.get(name, nothing), whole) for name, whole in self._whole[by].totals().items()}
