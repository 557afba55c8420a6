"""A month's statement of a customer's own group: its calls by slug and price.

A group is told from earlier ones with its external id by its path, as on the page.

See docs/reference/console.md#statements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from control.edges.sql.store import Store
from control.errors import InvalidFieldError
from control.long_work import beside
from control.records.console import NamedGroup
from control.records.events import EventWindow
from control.records.policy import GroupRecord
from control.resources.billing.report_groups import Grouping, PricedSlugs, ReportLine, SumBook
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.report_reader import ReportReader
from control.resources.billing.usage_report import UsageReports
from control.resources.groups import read_group
from policy.statements.months import month_bounds

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class StatementOrder:
    """The statement that is wanted. `with_groups_below`: of all groups below, too. Without prices: no amounts."""

    month: str
    with_groups_below: bool
    has_prices: bool


@dataclass(frozen=True, slots=True)
class StatementLines:
    """The lines of a statement, by slug and price. `is_final`: no call of the month can be added."""

    lines: Sequence[ReportLine]
    is_final: bool


def stated_months(record: GroupRecord, kept_from_ms: int, as_of_ms: int) -> Sequence[str]:
    """The months that have statements, newest first: of the group's time, as far as all of their calls are kept."""
    months: list[str] = []
    last_ms = as_of_ms - 1
    while True:
        month = datetime.fromtimestamp(last_ms / 1000, UTC).strftime("%Y-%m")
        start_ms, end_ms = _bounds_ms(month)
        if end_ms <= record.created_at_ms or _first_ms(record, start_ms) < kept_from_ms:
            return months
        months.append(month)
        last_ms = start_ms - 1


def is_over(month: str, as_of_ms: int) -> bool:
    """Return whether all calls of the month are final."""
    return _bounds_ms(month)[1] <= as_of_ms


async def read_statement(
    store: Store, reports: UsageReports, workspace_id: str, group: NamedGroup, order: StatementOrder
) -> StatementLines:
    """Add the month up. InvalidFieldError for one that has not begun, or whose calls are not all kept."""
    record = (await read_group(store, workspace_id, group.id)).record
    try:
        start_ms, end_ms = _bounds_ms(order.month)
    except ValueError as error:
        raise InvalidFieldError("month", str(error)) from None
    until = await reports.events.fixed(EventWindow(workspace_id, 0, end_ms))
    if until.end_ms <= start_ms:
        raise InvalidFieldError("month", "this month has not begun: choose an earlier one")
    window = EventWindow(workspace_id, min(_first_ms(record, start_ms), until.end_ms), until.end_ms)
    if window.start_ms < await reports.kept_from_ms(workspace_id):
        raise InvalidFieldError("month", "calls of this month are deleted: choose a later one")
    prices = await reports.priced_slugs(window) if order.has_prices else PricedSlugs(())
    book = SumBook(prices)
    reader = ReportReader(store, ReportQuery(window, Grouping.SLUG, rolls_up=True), prices)
    path = record.path
    is_wanted = (lambda one: one.startswith(path)) if order.with_groups_below else path.__eq__
    async for days in reader.days_from([path]):
        items = sum(day.items for day in days)
        await beside(workspace_id, items, partial(book.add, days, Grouping.SLUG, is_wanted))
    return StatementLines([line for one in book.groups() for line in one.lines], until.end_ms == end_ms)


def _first_ms(record: GroupRecord, start_ms: int) -> int:
    """The start of the month, or of the hour in which the group was created: before, it had no calls."""
    return max(start_ms, record.created_at_ms // _HOUR_MS * _HOUR_MS)


def _bounds_ms(month: str) -> tuple[int, int]:
    start, end = month_bounds(month)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
