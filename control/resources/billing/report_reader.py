"""Reads the calls of a usage report, added up: some groups at a time, so that their number does not fill the memory.

A window is read in parts that lie side by side in the database: days, or entities in the order of their names.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from control.edges.sql.billing.group_paths import groups_from
from control.edges.sql.billing.hourly_progress import summed_hours
from control.edges.sql.billing.sum_records import Apart, DaySums
from control.edges.sql.billing.usage_sources import next_entities, sources_of
from control.edges.sql.store import Store
from control.long_work import beside
from control.records.events import EventWindow
from control.resources.billing.report_groups import Grouping, Name, PricedSlugs, ReportGroup, SumBook
from control.resources.billing.report_query import ReportQuery
from policy.prices import DAY_MS, date_text, parse_date

_SUMS_AT_ONCE = 100_000
"""The bound on what is in memory at once, within twice as much."""
_DAYS_AT_ONCE = 31
"""The bound on rows of hourly sums: a day has a row for each slug."""
_ENTITIES_AT_ONCE = 250
_LISTED_AT_ONCE = 500
"""The entities of a subtree that are read at once."""
_BEHIND_ALL_PARTS = "~"
"""A text that sorts behind each key and path: a place between two entities."""
Groups = AsyncGenerator[Sequence[ReportGroup], None]


@dataclass(frozen=True, slots=True)
class ReportReader:
    """Reads what a query selects, with these prices."""

    store: Store
    query: ReportQuery
    prices: PricedSlugs

    def groups(self, after: Name, limit: int) -> Groups:
        """The groups behind `after`, in the order of names, some at a time. A page shows `limit` of them."""
        if self.query.by is Grouping.DAY:
            return self._days(after)
        if self.query.by is Grouping.SLUG or self.query.window.external_entity_ids:
            return self._all_at_once(self.query, after)
        return self._entities(after, limit)

    def paths(self) -> Groups:
        """The calls of each group by itself, named by entity and path."""
        return self._entities((), _ENTITIES_AT_ONCE)

    async def paths_from(self, tops: Sequence[str]) -> Groups:
        """The same for the groups with these paths and those below them, deleted ones too."""
        async for days in self.days_from(tops):
            book = SumBook(self.prices)
            await self._add(book, days, is_wanted=_below(tops))
            yield await self._groups_in(book)

    async def books_from(self, tops: Sequence[str]) -> tuple[SumBook, SumBook]:
        """The calls of these groups with all below them, and their own."""
        whole = SumBook(self.prices)
        own = SumBook(self.prices)
        async for days in self.days_from(tops):
            await self._add(whole, days, is_wanted=_below(tops))
            await self._add(own, days, is_wanted=tops.__contains__)
        return whole, own

    async def own_paths(self) -> Collection[str]:
        """The paths of the groups that called as the query's entity: also of one that was deleted unrecorded."""
        async with self.store.read() as conn:
            sources = await sources_of(conn, self.query.window)
            sums = [await source.of_listed(self.query.window.external_entity_ids, Apart.PATH) for source in sources]
        return {path for day in chain.from_iterable(sums) for part in day.slices() for path in part.parts}

    async def keys_of(self, entities: Collection[str]) -> Sequence[ReportGroup]:
        """The calls of these entities by key, named by entity and key."""
        book = SumBook(self.prices)
        async with self.store.read() as conn:
            sources = await sources_of(conn, self.query.window, self.prices.bounds)
            sums = [await source.of_listed(sorted(entities), Apart.KEY) for source in sources]
        await self._add(book, chain.from_iterable(sums), Grouping.KEY)
        return await self._groups_in(book)

    async def by_slug(self) -> Sequence[ReportGroup]:
        """All calls by slug: the least that has their costs."""
        query = replace(self.query, by=Grouping.SLUG, rolls_up=False)
        async for groups in self._all_at_once(query, ()):
            return groups
        return ()

    async def days_from(self, tops: Sequence[str]) -> AsyncGenerator[Sequence[DaySums], None]:
        """The sums of the entities of these groups and of those below them, by path: also of other groups of theirs."""
        query = self.query
        async with self.store.read() as conn:
            subtrees = [await groups_from(conn, query.window.workspace_id, path) for path in tops]
        own = {*query.window.external_entity_ids}
        entities = sorted(own.union(group.external_entity_id for group in chain.from_iterable(subtrees)))
        for start in range(0, len(entities), _LISTED_AT_ONCE):
            async with self.store.read() as conn:
                listed = entities[start : start + _LISTED_AT_ONCE]
                sources = await sources_of(conn, query.window, self.prices.bounds)
                sums = [await source.of_listed(listed, Apart.PATH, query.slug) for source in sources]
            yield [*chain.from_iterable(sums)]

    async def _days(self, after: Name) -> Groups:
        query = self.query
        first_ms = parse_date(after[0]) + DAY_MS if after else query.window.start_ms
        for part in await self._window_parts(replace(query.window, start_ms=first_ms), _DAYS_AT_ONCE):
            book = SumBook(self.prices)
            await self._add_window(book, replace(query, window=part))
            yield await self._groups_in(book)
            yield [ReportGroup((date_text(part.end_ms - 1),), {})]

    async def _all_at_once(self, query: ReportQuery, after: Name) -> Groups:
        """Groups that one index range holds unordered, such as slugs. They are few, so they fit in memory."""
        book = SumBook(self.prices)
        for part in await self._window_parts(query.window, _DAYS_AT_ONCE):
            await self._add_window(book, replace(query, window=part))
        yield [group for group in await self._groups_in(book) if group.name > after]

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
        async with self.store.read() as conn:
            sources = await sources_of(conn, query.window, book.prices.bounds)
            sums = [await source.totals(query.apart, query.slug) for source in sources]
        await self._add(book, chain.from_iterable(sums), query.by)

    async def _entities(self, after: Name, limit: int) -> Groups:
        query = self.query
        if after and query.by is Grouping.KEY:  # its entity may have more keys
            window = replace(query.window, external_entity_ids=after[:1])
            async for groups in self._all_at_once(replace(query, window=window), after):
                yield groups
        entity: str | None = after[0] if after else ""
        sums_a_day = 4 * (limit + 1)  # most entities have calls in several hours or of several slugs
        while entity is not None:
            book = SumBook(self.prices)
            async with self.store.read() as conn:
                sources = await sources_of(conn, query.window, self.prices.bounds)
                entities = await next_entities(sources, entity, sums_a_day)
                sums = [await source.of_entities(entities, query.apart, query.slug) for source in sources]
            read = await self._add(book, chain.from_iterable(sums))
            yield await self._groups_in(book)
            entity = entities.last
            if entity is not None:
                yield [ReportGroup((entity,) if query.apart is Apart.NOTHING else (entity, _BEHIND_ALL_PARTS), {})]
            if read < _SUMS_AT_ONCE:
                sums_a_day *= 2

    async def _add(
        self,
        book: SumBook,
        sums: Iterable[DaySums],
        by: Grouping | None = None,
        is_wanted: Callable[[str], bool] | None = None,
    ) -> int:
        """Add the sums to the book; returns how many."""
        days = [*sums]
        items = sum(day.items for day in days)
        work = partial(book.add, days, by or self._names, is_wanted)
        return await beside(self.query.window.workspace_id, items, work)

    @property
    def _names(self) -> Grouping:
        """The names of the groups that are read."""
        is_path = self.query.rolls_up and self.query.by is Grouping.ENTITY
        return Grouping.KEY if is_path else self.query.by

    async def _groups_in(self, book: SumBook) -> list[ReportGroup]:
        return await beside(self.query.window.workspace_id, book.size, lambda: [*book.groups()])


def _below(tops: Collection[str]) -> Callable[[str], bool]:
    """The condition that a path is one of `tops`, or below one: a step for each level, however many they are."""
    paths = frozenset(tops)

    def is_below(path: str) -> bool:
        end = path.find("/")
        while end >= 0:
            if path[: end + 1] in paths:
                return True
            end = path.find("/", end + 1)
        return False

    return is_below


def _days_of(window: EventWindow, count: int = 1) -> Iterator[EventWindow]:
    """The window in parts of `count` UTC days; the first and the last one may have fewer."""
    start_ms = window.start_ms
    while start_ms < window.end_ms:
        end_ms = min(window.end_ms, (start_ms // DAY_MS + count) * DAY_MS)
        yield replace(window, start_ms=start_ms, end_ms=end_ms)
        start_ms = end_ms
