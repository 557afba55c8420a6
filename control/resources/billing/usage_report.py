"""Usage reports: sums over a window of billing events, by day, slug, entity or key, and what they cost.

The window is fixed as the list of events fixes it, so both always show the same. A page does a bounded part of the
work: it ends after `limit` groups, or after `LONGEST_PAGE_S`, and the next one continues behind it.

See docs/reference/usage-reports.md#the-report.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from itertools import chain, pairwise
from operator import itemgetter

from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.billing.sum_records import SUMS_AT_ONCE, UsageSum
from control.edges.sql.billing.usage_sources import entities_after, sources_of
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store
from control.resources.billing.kept_usage import KeptUsage
from control.resources.billing_events import EventReader
from control.resources.errors import InvalidFieldError, PricesChangedError
from control.resources.records import Window
from control.time_slices import pause
from policy.prices import DAY_MS, Price, PriceList, Usage, date_text, parse_date, sum_of

MAX_DAYS = 92
"""Of a window: a quarter."""
LONGEST_PAGE_S = 5.0
_ENTITIES_AT_ONCE = 101
"""One more than a page has by default: it tells that more follow."""
_DAYS_AT_ONCE = 31
"""The bound on rows of hourly sums: a day has a row for each slug."""
_FAR_MS = 1 << 62
_BEHIND_ALL_KEYS = "~"
"""Sorts behind the prefix of every key: a place between two entities."""
PRICES_AT_ONCE = 500
"""Reading a price takes 10 µs of the event loop, and a workspace may have 10,000."""
Name = tuple[str, ...]
"""What the calls of a group share: a day, a slug, an entity, or an entity and a key."""


class Grouping(StrEnum):
    """What a report's groups are."""

    DAY = "day"
    SLUG = "slug"
    ENTITY = "entity"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class ReportQuery:
    """Which events, and by what they are grouped. The window names at most one entity, and no keys.

    `slug`: only calls of this one.
    """

    window: Window
    by: Grouping
    slug: str | None = None


@dataclass(frozen=True, slots=True)
class ReportLine:
    """The calls of a group through one slug at one price; None where the slug had no price."""

    slug: str
    price: Price | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class ReportGroup:
    """One group of calls: at least one call. Without lines it says only how far events were looked at."""

    name: Name
    lines: Sequence[ReportLine]

    @property
    def usage(self) -> Usage:
        return _total(line.usage for line in self.lines)

    @property
    def unpriced_calls(self) -> int:
        return sum(line.usage.calls for line in self.lines if line.price is None)

    @property
    def cost(self) -> dict[str, Decimal] | None:
        """The exact cost of the priced calls; None if no call has a price."""
        return sum_of((line.price.currency, line.price.cost(line.usage)) for line in self.lines if line.price) or None


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Some groups in the order of their names. `after`: the last name looked at, when more may follow.

    `price_list` identifies the prices that were used.
    """

    query: ReportQuery
    price_list: str
    groups: Sequence[ReportGroup]
    after: Name | None


@dataclass(frozen=True, slots=True)
class RecentDays:
    """Sums of each day, key and slug in a window of whole UTC days; the last one may have only begun."""

    window: Window
    sums: Sequence[UsageSum]

    @property
    def days_ms(self) -> range:
        """When each day begins."""
        return range(self.window.start_ms, self.window.end_ms, DAY_MS)


@dataclass(frozen=True, slots=True)
class UsageReports:
    """Reports on the events of one database. Events and their hourly sums are deleted after so many days."""

    store: Store
    events: EventReader
    retention_days: float
    sums_retention_days: float

    async def first_page(self, asked: ReportQuery, limit: int) -> ReportPage:
        """The window cut to what is final, and the first groups."""
        window = await self.events.fixed(asked.window)
        if window.end_ms - window.start_ms > MAX_DAYS * DAY_MS:
            raise InvalidFieldError("end", f"the window has at most {MAX_DAYS} days; read it in parts")
        return await self._page(replace(asked, window=window), None, limit, None)

    async def next_page(self, query: ReportQuery, after: Name, limit: int, price_list: str) -> ReportPage:
        """The groups behind `after`. PricesChangedError if the prices are no longer those of the first page."""
        return await self._page(query, after, limit, price_list)

    async def recent_days(self, workspace_id: str, external_entity_id: str, count: int) -> "RecentDays":
        """The sums of the last `count` UTC days of an entity, or of those that are kept. Without prices."""
        until = await self.events.fixed(Window(workspace_id, 0, _FAR_MS, external_entity_ids=(external_entity_id,)))
        last = (until.end_ms - 1) // DAY_MS
        first_kept = -(-(await self._kept(workspace_id)).from_ms // DAY_MS)
        window = replace(until, start_ms=min(max(last - count + 1, first_kept), last) * DAY_MS)
        async with self.store.read() as conn:
            found = [await source.totals(by_day=True, by_key=True) for source in await sources_of(conn, window)]
        return RecentDays(window, [*chain.from_iterable(found)])

    async def _kept(self, workspace_id: str) -> KeptUsage:
        async with self.store.read() as conn:
            now_ms = await database_ms(conn)
            summed = await summed_hours(conn, workspace_id)
        days = (self.retention_days, self.sums_retention_days)
        return KeptUsage(summed, *(now_ms - int(kept_days * DAY_MS) for kept_days in days))

    async def _page(self, query: ReportQuery, after: Name | None, limit: int, price_list: str | None) -> ReportPage:
        # On each page, because events are deleted meanwhile.
        (await self._kept(query.window.workspace_id)).check(query.window)
        prices, found = await self._prices(query.window)
        if price_list is not None and price_list != found:
            raise PricesChangedError
        groups: list[ReportGroup] = []
        ends_s = time.monotonic() + LONGEST_PAGE_S
        async with aclosing(self._groups(query, prices, after or ())) as behind:
            async for group in behind:
                is_late = time.monotonic() > ends_s
                if group.lines:
                    if len(groups) == limit or (groups and is_late):
                        return ReportPage(query, found, groups, groups[-1].name)
                    groups.append(group)
                elif is_late:
                    return ReportPage(query, found, groups, group.name)
        return ReportPage(query, found, groups, None)

    async def _prices(self, window: Window) -> tuple[PriceList, str]:
        """The workspace's prices that are valid before the window ends, and a name for them."""
        valid: list[Price] = []
        digest, after = hashlib.sha256(), None
        async with self.store.read() as conn:
            while listed := await list_prices(conn, window.workspace_id, None, after, PRICES_AT_ONCE):
                for price in listed:
                    await pause()
                    if price.valid_from_ms < window.end_ms:
                        valid.append(price)
                        digest.update(repr(price).encode())
                if len(listed) < PRICES_AT_ONCE:
                    break
                after = (listed[-1].slug, listed[-1].valid_from_ms)
        return PriceList(valid), digest.hexdigest()[:32]

    async def _groups(self, query: ReportQuery, prices: PriceList, after: Name) -> AsyncGenerator[ReportGroup, None]:
        """The groups behind `after`, in order."""
        if query.by is Grouping.DAY:
            found = self._days(query, prices, after)
        elif query.by is Grouping.SLUG or query.window.external_entity_ids:
            found = self._all_at_once(query, prices, after)
        else:
            found = self._entities(query, prices, after)
        async for group in found:
            yield group

    async def _days(self, query: ReportQuery, prices: PriceList, after: Name) -> AsyncIterator[ReportGroup]:
        first_ms = parse_date(after[0]) + DAY_MS if after else query.window.start_ms
        for part in await self._parts(replace(query.window, start_ms=first_ms), _DAYS_AT_ONCE):
            book = _Book(prices)
            await self._add_window(book, replace(query, window=part))
            for group in book.groups():
                yield group
            yield ReportGroup((date_text(part.end_ms - 1),), ())

    async def _all_at_once(self, query: ReportQuery, prices: PriceList, after: Name) -> AsyncIterator[ReportGroup]:
        """Groups that one index range holds unordered, such as slugs. They are few, so they fit in memory."""
        book = _Book(prices)
        for part in await self._parts(query.window, MAX_DAYS):
            for priced in _parts_of_one_price(part, prices):
                await self._add_window(book, replace(query, window=priced))
        for group in book.groups():
            if group.name > after:
                yield group

    async def _parts(self, window: Window, summed_days: int) -> Sequence[Window]:
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

    async def _add_window(self, book: "_Book", query: ReportQuery) -> None:
        by_day = query.by is Grouping.DAY
        by_key = query.by is Grouping.KEY
        async with self.store.read() as conn:
            sources = await sources_of(conn, query.window)
            found = [await source.totals(by_day, by_key, query.slug) for source in sources]
        await book.add([*chain.from_iterable(found)], query.by, query.window.start_ms)

    async def _entities(self, query: ReportQuery, prices: PriceList, after: Name) -> AsyncIterator[ReportGroup]:
        window, by = query.window, query.by
        entity = after[0] if after else ""
        # A key's name begins with its entity, of which more keys may follow.
        left = [entity] if by is Grouping.KEY and after else []
        while True:
            async with self.store.read() as conn:
                entities = await entities_after(conn, window, entity, _ENTITIES_AT_ONCE)
            async for group in self._of_entities(query, prices, [*left, *entities]):
                if group.name > after:
                    yield group
            if len(entities) < _ENTITIES_AT_ONCE:
                return
            entity = entities[-1]
            left = []
            yield ReportGroup((entity, _BEHIND_ALL_KEYS) if by is Grouping.KEY else (entity,), ())

    async def _of_entities(
        self, query: ReportQuery, prices: PriceList, entities: Sequence[str]
    ) -> AsyncIterator[ReportGroup]:
        book = _Book(prices)
        by_key = query.by is Grouping.KEY
        for part in _parts_of_one_price(query.window, prices):
            async with self.store.read() as conn:
                sources = await sources_of(conn, part)
                found = [await source.of_entities(entities, by_key, query.slug) for source in sources]
            await book.add([*chain.from_iterable(found)], query.by, part.start_ms)
        for group in book.groups():
            yield group


class _Book:
    """Adds sums up: for each group, each slug and each price."""

    def __init__(self, prices: PriceList) -> None:
        self._prices = prices
        self._groups: dict[Name, dict[tuple[str, int], ReportLine]] = defaultdict(dict)

    async def add(self, sums: Sequence[UsageSum], by: Grouping, at_ms: int) -> None:
        """Add sums of calls whose prices are those at `at_ms`, or of their day."""
        prices: dict[tuple[str, int], Price | None] = {}
        for number, found in enumerate(sums):
            if number % SUMS_AT_ONCE == 0:
                await pause()
            valid = (found.slug, found.day_ms)
            if valid not in prices:
                prices[valid] = self._prices.at(found.slug, max(at_ms, found.day_ms))
            price = prices[valid]
            # By its date: the hash of a price is that of all its amounts.
            place = (found.slug, -1 if price is None else price.valid_from_ms)
            lines = self._groups[_name_of(found, by)]
            line = lines.get(place)
            usage = found.usage if line is None else line.usage.plus(found.usage)
            lines[place] = ReportLine(found.slug, price, usage)

    def groups(self) -> Iterator[ReportGroup]:
        """In the order of their names; the lines of each by slug and time."""
        for name, lines in sorted(self._groups.items(), key=itemgetter(0)):
            yield ReportGroup(name, [line for _, line in sorted(lines.items(), key=itemgetter(0))])


def _name_of(found: UsageSum, by: Grouping) -> Name:
    match by:
        case Grouping.DAY:
            return (date_text(found.day_ms),)
        case Grouping.SLUG:
            return (found.slug,)
        case Grouping.ENTITY:
            return (found.external_entity_id,)
        case Grouping.KEY:
            return (found.external_entity_id, found.api_key_prefix)


def _days_of(window: Window, count: int = 1) -> Iterator[Window]:
    """The window in parts of `count` UTC days; the first and the last one may have fewer."""
    start_ms = window.start_ms
    while start_ms < window.end_ms:
        end_ms = min(window.end_ms, (start_ms // DAY_MS + count) * DAY_MS)
        yield replace(window, start_ms=start_ms, end_ms=end_ms)
        start_ms = end_ms


def _parts_of_one_price(window: Window, prices: PriceList) -> Iterator[Window]:
    """The window in parts in which no price changes."""
    edges = [window.start_ms, *prices.changes_between(window.start_ms, window.end_ms), window.end_ms]
    for start_ms, end_ms in pairwise(edges):
        if start_ms < end_ms:
            yield replace(window, start_ms=start_ms, end_ms=end_ms)


def _total(usages: Iterator[Usage]) -> Usage:
    total = Usage()
    for usage in usages:
        total = total.plus(usage)
    return total
