"""Usage reports: sums over a window of billing events, by day, slug, entity or key, and their costs.

The window is fixed as the list of events fixes it, so both always show the same. A page does a bounded part of the
work: it ends after `limit` groups, or after `LONGEST_PAGE_S`, and the next one continues behind it.

See docs/reference/usage-reports.md#the-report.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import takewhile
from operator import attrgetter

from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store
from control.errors import InvalidFieldError, PricesChangedError
from control.long_work import beside
from control.records.events import EventWindow
from control.resources.billing.kept_usage import KeptUsage
from control.resources.billing.ordered_report import name_of, ordered_groups, total_of
from control.resources.billing.report_groups import Name, PricedSlugs, ReportGroup, Totals
from control.resources.billing.report_query import ReportQuery
from control.resources.billing.report_reader import ReportReader
from control.resources.billing_events import EventReader
from policy.limits.kinds import Unit
from policy.limits.windows import window_at
from policy.prices import DAY_MS, Price

MAX_DAYS = 92
"""The most days of a window: a quarter."""
LONGEST_PAGE_S = 5.0
_FAR_MS = 1 << 62
PRICES_AT_ONCE = 200
"""The prices that one query reads: each takes 10 µs of the event loop, and a workspace may have 10,000."""
_members = attrgetter(*(field.name for field in fields(Price)))


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Some groups in the order of the report. `after`: the last place looked at, when more may follow.

    `price_list` identifies the prices that were used. `totals`: those of all groups, on the first page.
    """

    query: ReportQuery
    price_list: str
    groups: Sequence[ReportGroup]
    after: Name | None
    totals: Totals | None = None


def _any(_group: ReportGroup) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PageRoom:
    """The room of a page: `limit` groups, of those that `takes` accepts. It accepts the first one.

    `takes` runs beside the loop. `shows_lines`: whether it needs them.
    """

    limit: int
    takes: Callable[[ReportGroup], bool] = _any
    shows_lines: bool = False


@dataclass(frozen=True, slots=True)
class UsageReports:
    """Reports on the events of one database. Events and their hourly sums are deleted after so many days."""

    store: Store
    events: EventReader
    retention_days: float
    sums_retention_days: float

    async def first_page(self, query: ReportQuery, room: PageRoom) -> ReportPage:
        """The window cut to what is final, and the first groups."""
        window = await self.events.fixed(query.window)
        if window.end_ms - window.start_ms > MAX_DAYS * DAY_MS:
            raise InvalidFieldError("end", f"the window has at most {MAX_DAYS} days; read it in parts")
        return await self._page(replace(query, window=window), None, room, None)

    async def next_page(self, query: ReportQuery, after: Name, room: PageRoom, price_list: str) -> ReportPage:
        """The groups behind `after`. PricesChangedError if the prices are no longer those of the first page."""
        return await self._page(query, after, room, price_list)

    async def recent_days(self, workspace_id: str, external_entity_id: str, count: int) -> EventWindow:
        """The last `count` UTC days of an entity, or those that are kept, as far as they are final."""
        until = await self.events.fixed(
            EventWindow(workspace_id, 0, _FAR_MS, external_entity_ids=(external_entity_id,))
        )
        last = (until.end_ms - 1) // DAY_MS
        first_kept = -(-(await self.kept_from_ms(workspace_id)) // DAY_MS)
        return replace(until, start_ms=min(max(last - count + 1, first_kept), last) * DAY_MS)

    async def month_so_far(self, workspace_id: str) -> EventWindow:
        """The present UTC month, or what of it is kept, as far as it is final: empty in its first minutes."""
        until = await self.events.fixed(EventWindow(workspace_id, 0, _FAR_MS))
        async with self.store.read() as conn:
            now_ms = await database_ms(conn)
        first_kept = -(-(await self.kept_from_ms(workspace_id)) // DAY_MS) * DAY_MS
        start_ms = max(window_at(Unit.MONTH, now_ms)[0], first_kept)
        return replace(until, start_ms=start_ms, end_ms=max(start_ms, until.end_ms))

    async def kept_from_ms(self, workspace_id: str) -> int:
        """The start of the time whose days and hours can be reported whole."""
        return (await self._kept(workspace_id)).from_ms

    async def priced_slugs(self, window: EventWindow) -> PricedSlugs:
        """The workspace's slugs at the prices that are valid before the window ends."""
        prices, _ = await self._prices(window)
        return PricedSlugs(prices)

    async def _kept(self, workspace_id: str) -> KeptUsage:
        async with self.store.read() as conn:
            now_ms = await database_ms(conn)
            summed = await summed_hours(conn, workspace_id)
        days = (self.retention_days, self.sums_retention_days)
        return KeptUsage(summed, *(now_ms - int(kept_days * DAY_MS) for kept_days in days))

    async def _page(self, query: ReportQuery, after: Name | None, room: PageRoom, price_list: str | None) -> ReportPage:
        # On each page, because events are deleted meanwhile.
        (await self._kept(query.window.workspace_id)).check(query.window)
        prices, digest = await self._prices(query.window)
        if price_list is not None and price_list != digest:
            raise PricesChangedError
        reader = ReportReader(self.store, query, PricedSlugs(prices))
        if query.rolls_up or query.order is not None:
            return await _ordered_page(reader, digest, after, room)
        page = await _page_by_name(reader, digest, after, room)
        if after is not None:
            return page
        groups = page.groups if page.after is None else await reader.by_slug()
        lines = sum(len(group.sums) for group in groups)
        totals = await beside(query.window.workspace_id, lines, partial(total_of, groups))
        return replace(page, totals=totals)

    async def _prices(self, window: EventWindow) -> tuple[Sequence[Price], str]:
        """The workspace's prices that are valid before the window ends, and a name for them."""
        valid: list[Price] = []
        digest = hashlib.sha256()
        after = None
        async with self.store.read() as conn:
            while listed := await list_prices(conn, window.workspace_id, None, after, PRICES_AT_ONCE):
                page = [price for price in listed if price.valid_from_ms < window.end_ms]
                valid += page
                digest.update("".join(map(repr, map(_members, page))).encode())
                if len(listed) < PRICES_AT_ONCE:
                    break
                after = (listed[-1].slug, listed[-1].valid_from_ms)
        return valid, digest.hexdigest()[:32]


async def _page_by_name(reader: ReportReader, price_list: str, after: Name | None, room: PageRoom) -> ReportPage:
    """Groups in the order of their names, which pass by in it."""
    query = reader.query
    page = _PageInProgress(room)
    async with aclosing(reader.groups(after or (), room.limit)) as behind:
        async for groups in behind:
            items = sum(len(group.sums) for group in groups[: room.limit])
            if await beside(query.window.workspace_id, items, partial(page.add, groups)):
                return ReportPage(query, price_list, page.groups, page.last)
    return ReportPage(query, price_list, page.groups, None)


async def _ordered_page(reader: ReportReader, price_list: str, after: Name | None, room: PageRoom) -> ReportPage:
    ordered = await ordered_groups(reader, after, room.limit + 1, room.shows_lines)
    query = replace(reader.query, order=ordered.order)
    totals = ordered.totals if after is None else None
    candidates = ordered.groups

    def taken() -> int:
        """Return how many groups the page has room for."""
        taking = takewhile(room.takes, (group for _, group in candidates[: room.limit]))
        return sum(1 for _ in taking)

    count = await beside(query.window.workspace_id, sum(1 + len(group.sums) for _, group in candidates), taken)
    groups = [group for _, group in candidates[:count]]
    last = name_of(candidates[count - 1][0]) if count < len(candidates) else None
    return ReportPage(query, price_list, groups, last, totals)


class _PageInProgress:
    """A page that is being filled, until `LONGEST_PAGE_S` from now."""

    def __init__(self, room: PageRoom) -> None:
        self.groups: list[ReportGroup] = []
        self.last: Name = ()
        """The last name looked at, once the page has ended."""
        self._room = room
        self._ends_s = time.monotonic() + LONGEST_PAGE_S

    def add(self, groups: Sequence[ReportGroup]) -> bool:
        """Add those that the page has room for. Returns whether it has ended."""
        for group in groups:
            is_late = time.monotonic() > self._ends_s
            if group.sums:
                is_full = len(self.groups) == self._room.limit or (self.groups and is_late)
                if is_full or not self._room.takes(group):
                    self.last = self.groups[-1].name
                    return True
                self.groups.append(group)
            elif is_late:
                self.last = group.name
                return True
        return False
