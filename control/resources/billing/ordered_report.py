"""Reports that look at all groups before they show the first: by a sum, or with the sums of the groups below.

The groups pass by, some at a time. A page keeps those that it shows; a roll-up keeps the totals of each group.

See docs/reference/usage-reports.md#roll-up.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from heapq import nsmallest
from itertools import chain
from operator import itemgetter

from control.edges.sql.billing.group_paths import entities_of, groups_named
from control.errors import InvalidFieldError
from control.long_work import beside
from control.records.usage_sums import Figures, figures_sum
from control.resources.billing.report_groups import Grouping, Name, PricedSlug, ReportGroup, Totals
from control.resources.billing.report_query import COST, ReportOrder
from control.resources.billing.report_reader import Groups, ReportReader

_TOTALS_PER_ITEM = 10
"""The number of groups that are added up in the time of one item of long work."""
Place = tuple[int, Name]
"""The place of a group among all: by a sum, then by name."""
_NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class OrderedGroups:
    """The first groups behind a place, each with its own, and the totals of all. `order`: with its currency.

    `totals` may be None behind the first page, which had them.
    """

    groups: Sequence[tuple[Place, ReportGroup]]
    totals: Totals | None
    order: ReportOrder | None


def place_after(after: Name | None) -> Place | None:
    """Read a place as `name_of` writes it."""
    return None if after is None else (int(after[0]), after[1:])


def name_of(place: Place) -> Name:
    """The place in texts, because a cost may have more digits than a number of JSON."""
    return (str(place[0]), *place[1])


async def ordered_groups(reader: ReportReader, after: Name | None, count: int, lines: bool) -> OrderedGroups:
    """The first `count` groups behind a place. `lines`: with their calls by slug and price."""
    if reader.query.rolls_up:
        return await _rolled_up(reader, _Selection(after, count), lines)
    order = reader.query.order
    totals = None
    if after is None and _needs_currency(order):  # later pages know it, and show no totals
        totals = total_of(await reader.by_slug())
        order = _with_currency(order, totals)
    selection = _Selection(after, count)
    is_counting = after is None and totals is None
    sums = _NOTHING
    async for groups in reader.groups((), count):
        await beside(_workspace(reader), len(groups), partial(selection.add, groups, order))
        if is_counting:
            sums = await beside(_workspace(reader), len(groups) // _TOTALS_PER_ITEM, partial(total_of, groups, sums))
    return OrderedGroups(selection.groups, sums if is_counting else totals, order)


def total_of(groups: Sequence[ReportGroup], others: Totals = _NOTHING) -> Totals:
    return reduce(Totals.plus, (group.totals for group in groups), others)


class _Selection:
    """The first groups behind a place. It keeps no more than it shows."""

    def __init__(self, after: Name | None, count: int) -> None:
        self.groups: Sequence[tuple[Place, ReportGroup]] = ()
        self._after = place_after(after)
        self._count = count

    def add(self, groups: Sequence[ReportGroup], order: ReportOrder | None) -> None:
        """Add groups; those that are only marks of progress have no sums."""
        placed = (
            ((0 if order is None else order.place(group.totals), group.name), group)
            for group in groups
            if group.sums or group.whole is not None
        )
        behind = (item for item in placed if self._after is None or item[0] > self._after)
        self.groups = nsmallest(self._count, chain(self.groups, behind), key=itemgetter(0))


class RollUp:
    """Totals by path: those of each group by itself, and with all below it. `tops`: only of these groups, if any."""

    def __init__(self, tops: Collection[str] | None) -> None:
        self.own: dict[str, Totals] = {}
        self.entities: dict[str, str] = {}
        self.whole: dict[str, Totals] = {}
        self._tops = tops

    def add(self, groups: Sequence[ReportGroup]) -> None:
        """Add the calls of groups, named by entity and path."""
        for group in groups:
            if group.sums:
                entity, path = group.name
                totals = group.totals
                self.entities[path] = entity
                self.own[path] = self.own.get(path, Totals()).plus(totals)
                for above in self.paths_above(path):
                    self.whole[above] = self.whole.get(above, Totals()).plus(totals)

    def paths_above(self, path: str) -> Iterator[str]:
        """The paths of the group and of those above it, of which sums are wanted."""
        ids = path.split("/")[:-1]
        for depth in range(1, len(ids) + 1):
            above = "/".join(ids[:depth]) + "/"
            if self._tops is None or above in self._tops:
                yield above

    def groups(self) -> list[ReportGroup]:
        """The groups, named by external id and own id."""
        return [
            ReportGroup((self.entities.get(path, ""), _id_of(path)), {}, self.own.get(path, Totals()), whole)
            for path, whole in self.whole.items()
        ]


async def _rolled_up(reader: ReportReader, selection: _Selection, lines: bool) -> OrderedGroups:
    tops = await _tops(reader)
    if reader.query.by is not Grouping.ENTITY:
        whole, own = await reader.books_from(tops or ())
        own_totals = own.totals()
        groups = [replace(group, own=own_totals.get(group.name, Totals())) for group in whole.groups()]
        totals = total_of(groups)
    else:
        roll_up = RollUp(tops)
        async for read in _paths(reader, tops):
            await beside(_workspace(reader), len(read) // _TOTALS_PER_ITEM, partial(roll_up.add, read))
        async with reader.store.read() as conn:
            unknown = roll_up.whole.keys() - roll_up.entities.keys()
            roll_up.entities |= await entities_of(conn, _workspace(reader), unknown)
        groups = roll_up.groups()
        counted = roll_up.own if tops is None else roll_up.whole
        totals = reduce(Totals.plus, counted.values(), Totals())
    order = _with_currency(reader.query.order, totals)
    await beside(_workspace(reader), len(groups) // _TOTALS_PER_ITEM, partial(selection.add, groups, order))
    page = selection.groups
    if lines and reader.query.by is Grouping.ENTITY:
        page = await _with_lines(reader, page, tops)
    return OrderedGroups(page, totals, order)


async def _with_lines(
    reader: ReportReader, page: Sequence[tuple[Place, ReportGroup]], tops: Sequence[str] | None
) -> Sequence[tuple[Place, ReportGroup]]:
    """The groups with their calls by slug and price. These are read for them alone: for all they might be too many."""
    sums: dict[str, dict[PricedSlug, Figures]] = {group.name[1]: {} for _, group in page}
    async for read in _paths(reader, tops):
        await beside(_workspace(reader), len(read), partial(_add_lines, sums, read))
    return [(place, replace(group, sums=sums[group.name[1]])) for place, group in page]


def _add_lines(sums: Mapping[str, dict[PricedSlug, Figures]], groups: Sequence[ReportGroup]) -> None:
    for group in groups:
        for id in group.name[-1].split("/")[:-1] if group.sums else ():
            if (lines := sums.get(id)) is not None:
                for priced, figures in group.sums.items():
                    lines[priced] = figures_sum(lines[priced], figures) if priced in lines else figures


async def _tops(reader: ReportReader) -> Sequence[str] | None:
    """The paths of the groups whose sums are wanted; None for all."""
    if (entity := reader.query.entity) is None:
        return None
    async with reader.store.read() as conn:
        namesakes = await groups_named(conn, _workspace(reader), entity)
    return sorted({group.path for group in namesakes}.union(await reader.own_paths()))


def _paths(reader: ReportReader, tops: Sequence[str] | None) -> Groups:
    return reader.paths() if tops is None else reader.paths_from(tops)


def _with_currency(order: ReportOrder | None, totals: Totals) -> ReportOrder | None:
    """The order with the currency of its costs: the only one that the window has, unless it names one."""
    if order is None or not _needs_currency(order):
        return order
    if len(totals.units) > 1:
        raise InvalidFieldError("currency", f"required: the window has costs in {', '.join(sorted(totals.units))}")
    return replace(order, currency=next(iter(totals.units), ""))


def _needs_currency(order: ReportOrder | None) -> bool:
    return order is not None and order.by == COST and not order.currency


def _id_of(path: str) -> str:
    return path.split("/")[-2]


def _workspace(reader: ReportReader) -> str:
    return reader.query.window.workspace_id
