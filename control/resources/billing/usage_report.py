"""Usage reports: sums over a window of billing events, by day, slug, entity or key, and what they cost.

The window is fixed as the list of events fixes it, so both always show the same. A page does a bounded part of the
work: it ends after `limit` groups, or after `LONGEST_PAGE_S`, and the next one continues behind it.

See docs/reference/usage-reports.md#the-report.
"""

import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from operator import attrgetter

from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.billing.sum_records import DaySums
from control.edges.sql.billing.usage_sources import next_entities, sources_of
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store
from control.errors import InvalidFieldError, PricesChangedError
from control.long_work import beside
from control.records.events import EventWindow
from control.resources.billing.kept_usage import KeptUsage
from control.resources.billing.report_groups import Grouping, Name, PricedSlugs, ReportGroup, SumBook
from control.resources.billing_events import EventReader
from policy.prices import DAY_MS, Price, date_text, parse_date

MAX_DAYS = 92
"""The most days of a window: a quarter."""
LONGEST_PAGE_S = 5.0
_SUMS_AT_ONCE = 100_000
"""The bound on what is in memory at once, within twice as much."""
_DAYS_AT_ONCE = 31
"""The bound on rows of hourly sums: a day has a row for each slug."""
_FAR_MS = 1 << 62
_BEHIND_ALL_KEYS = "~"
"""A text that sorts behind the prefix of every key: a place between two entities."""
PRICES_AT_ONCE = 200
"""The prices that one query reads: each takes 10 µs of the event loop, and a workspace may have 10,000."""
_members = attrgetter(*(field.name for field in fields(Price)))


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """The events of a report, and what groups them. The window names at most one entity, and no keys.

    `slug`: only calls of this one.
    """

    window: EventWindow
    by: Grouping
    slug: str | None = None


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Some groups in the order of their names. `after`: the last name looked at, when more may follow.

    `price_list` identifies the prices that were used.
    """

    query: ReportQuery
    price_list: str
    groups: Sequence[ReportGroup]
    after: Name | None


def _any(_group: ReportGroup) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PageRoom:
    """The room of a page: `limit` groups, of those that `takes` accepts. It accepts the first one.

    `takes` runs beside the loop.
    """

    limit: int
    takes: Callable[[ReportGroup], bool] = _any


@dataclass(frozen=True, slots=True)
class RecentDays:
    """Sums by key and slug in a window of whole UTC days; the last one may have only begun."""

    window: EventWindow
    sums: Sequence[DaySums]

    @property
    def days_ms(self) -> range:
        """The start of each day."""
        return range(self.window.start_ms, self.window.end_ms, DAY_MS)


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

    async def recent_days(self, workspace_id: str, external_entity_id: str, count: int) -> "RecentDays":
        """The sums of the last `count` UTC days of an entity, or of those that are kept. Without prices."""
        until = await self.events.fixed(
            EventWindow(workspace_id, 0, _FAR_MS, external_entity_ids=(external_entity_id,))
        )
        last = (until.end_ms - 1) // DAY_MS
        first_kept = -(-(await self._kept(workspace_id)).from_ms // DAY_MS)
        window = replace(until, start_ms=min(max(last - count + 1, first_kept), last) * DAY_MS)
        async with self.store.read() as conn:
            sums = [await source.totals(by_key=True) for source in await sources_of(conn, window)]
        return RecentDays(window, [*chain.from_iterable(sums)])

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
        page = _PageInProgress(room)
        async with aclosing(self._groups(query, PricedSlugs(prices), after or (), room.limit)) as behind:
            async for groups in behind:
                items = sum(len(group.sums) for group in groups[: room.limit])
                if await beside(query.window.workspace_id, items, partial(page.add, groups)):
                    return ReportPage(query, digest, page.groups, page.last)
        return ReportPage(query, digest, page.groups, None)

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

    def _groups(
        self, query: ReportQuery, prices: PricedSlugs, after: Name, limit: int
    ) -> AsyncGenerator[Sequence[ReportGroup], None]:
        """The groups behind `after`, in order, some at a time. A page shows `limit` of them."""
        if query.by is Grouping.DAY:
            return self._days(query, prices, after)
        if query.by is Grouping.SLUG or query.window.external_entity_ids:
            return self._all_at_once(query, prices, after)
        return self._entities(query, prices, after, limit)

    async def _days(
        self, query: ReportQuery, prices: PricedSlugs, after: Name
    ) -> AsyncGenerator[Sequence[ReportGroup], None]:
        first_ms = parse_date(after[0]) + DAY_MS if after else query.window.start_ms
        for part in await self._window_parts(replace(query.window, start_ms=first_ms), _DAYS_AT_ONCE):
            book = SumBook(prices)
            await self._add_window(book, replace(query, window=part))
            yield await _groups_in(book, query)
            yield [ReportGroup((date_text(part.end_ms - 1),), {})]

    async def _all_at_once(
        self, query: ReportQuery, prices: PricedSlugs, after: Name
    ) -> AsyncGenerator[Sequence[ReportGroup], None]:
        """Groups that one index range holds unordered, such as slugs. They are few, so they fit in memory."""
        book = SumBook(prices)
        for part in await self._window_parts(query.window, _DAYS_AT_ONCE):
            await self._add_window(book, replace(query, window=part))
        yield [group for group in await _groups_in(book, query) if group.name > after]

    async def _window_parts(self, window: EventWindow, summed_days: int) -> Sequence[EventWindow]:
        """The window in parts of whole days, as far as it has them: one day of events, or several of hourly sums."""
        async with self.store.read() as conn:
            hours = (await summed_hours(conn, window.workspace_id)).parts_of(window).hours
        first_ms = -(-hours.start_ms // DAY_MS) * DAY_MS
        last_ms = hours.end_ms // DAY_MS * DAY_MS
        if first_ms >= last_ms:
            return list(_days_of(window))
        before = replace(window, end_ms=first_ms)
        after = replace(window, start_ms=last_ms)
        summed = _days_of(replace(window, start_ms=first_ms, end_ms=last_ms), summed_days)
        return [*_days_of(before), *summed, *_days_of(after)]

    async def _add_window(self, book: SumBook, query: ReportQuery) -> None:
        by_key = query.by is Grouping.KEY
        async with self.store.read() as conn:
            sources = await sources_of(conn, query.window, book.prices.bounds)
            sums = [await source.totals(by_key, query.slug) for source in sources]
        await _add(book, query, chain.from_iterable(sums))

    async def _entities(
        self, query: ReportQuery, prices: PricedSlugs, after: Name, limit: int
    ) -> AsyncGenerator[Sequence[ReportGroup], None]:
        if after and query.by is Grouping.KEY:  # its entity may have more keys
            window = replace(query.window, external_entity_ids=after[:1])
            async for groups in self._all_at_once(replace(query, window=window), prices, after):
                yield groups
        entity: str | None = after[0] if after else ""
        sums_a_day = 4 * (limit + 1)  # most entities have calls in several hours or of several slugs
        while entity is not None:
            book = SumBook(prices)
            async with self.store.read() as conn:
                sources = await sources_of(conn, query.window, prices.bounds)
                entities = await next_entities(sources, entity, sums_a_day)
                by_key = query.by is Grouping.KEY
                sums = [await source.of_entities(entities, by_key, query.slug) for source in sources]
            read = await _add(book, query, chain.from_iterable(sums))
            yield await _groups_in(book, query)
            entity = entities.last
            if entity is not None:
                yield [ReportGroup((entity, _BEHIND_ALL_KEYS) if by_key else (entity,), {})]
            if read < _SUMS_AT_ONCE:
                sums_a_day *= 2


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


async def _add(book: SumBook, query: ReportQuery, sums: Iterable[DaySums]) -> int:
    """Add the sums to the book; returns how many."""
    days = [*sums]
    items = sum(day.items for day in days)
    return await beside(query.window.workspace_id, items, partial(book.add, days, query.by))


async def _groups_in(book: SumBook, query: ReportQuery) -> list[ReportGroup]:
    return await beside(query.window.workspace_id, book.size, lambda: [*book.groups()])


def _days_of(window: EventWindow, count: int = 1) -> Iterator[EventWindow]:
    """The window in parts of `count` UTC days; the first and the last one may have fewer."""
    start_ms = window.start_ms
    while start_ms < window.end_ms:
        end_ms = min(window.end_ms, (start_ms // DAY_MS + count) * DAY_MS)
        yield replace(window, start_ms=start_ms, end_ms=end_ms)
        start_ms = end_ms
