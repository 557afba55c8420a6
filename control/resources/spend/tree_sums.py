"""The spend of the groups of a tree, from the database: hourly sums, and events of what is not added up; and its draws.

It equals the sum of what the events cost one by one, to the last digit: a cost is linear in the figures of a call, and
money is added in whole units (`policy.prices.Rates`).

See docs/reference/money.md#how-spend-is-counted.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from control.edges.sql.billing.group_paths import groups_from
from control.edges.sql.billing.price_rows import list_prices
from control.edges.sql.billing.sum_records import Apart, DaySums, RateKey
from control.edges.sql.billing.usage_sources import sources_of
from control.edges.sql.key_rows import later_buckets
from control.edges.sql.spend.balance_sums import drawn_through
from control.edges.sql.store import Store
from control.long_work import beside
from control.records.events import EventWindow
from control.records.spend import SpendTree
from control.resources.billing.report_groups import PricedSlug, PricedSlugs
from policy.limits.kinds import Unit
from policy.limits.windows import DAY_MS, window_at
from policy.prices import Price
from policy.spend.balances import balance_name
from policy.spend.spend_hash import spent_field, window_name

PRICES_AT_ONCE = 200
ENTITIES_AT_ONCE = 200
DAYS_AT_ONCE = 7
"""The bounds on what one query reads: hourly sums have a row for each entity, key, slug and hour."""
_Spent = dict[tuple[str, int], int]
"""Units by a group's path or a key's prefix, and the start of a day."""


class _CountedPart(NamedTuple):
    """The parts in which sums are read, and which of them count."""

    apart: Apart
    is_counted: Callable[[str], bool]


def kept_windows(at_ms: int) -> frozenset[str]:
    """The names of the windows that are counted at this time: the present and the previous DAY and MONTH."""
    return frozenset(
        window_name(unit, moment_ms)
        for unit in (Unit.DAY, Unit.MONTH)
        for moment_ms in (at_ms, window_at(unit, at_ms)[0] - 1)
    )


async def spent_by_field(store: Store, tree: SpendTree, through_ms: int) -> Mapping[str, int]:
    """The spend of each group through this time in the kept windows, and what is drawn from each balance through it:
    units by field, those that are not 0.

    Events and withdrawals through this time must be final.
    """
    prices = PricedSlugs(await _prices(store, tree.workspace_id))
    start_ms = window_at(Unit.MONTH, window_at(Unit.MONTH, through_ms)[0] - 1)[0]
    window = EventWindow(tree.workspace_id, start_ms, through_ms + 1)
    windows = kept_windows(through_ms)
    top = f"{tree.root_id}/"
    spent = await _spent(store, tree, window, prices, _CountedPart(Apart.PATH, lambda path: path.startswith(top)))
    fields = await beside(tree.workspace_id, len(spent), lambda: _by_field(spent, tree.counting_groups, windows))
    if tree.counts_keys:
        # Entities may have had keys in other trees, too. Nothing reads what those have spent here.
        by_key = await _spent(store, tree, window, prices, _CountedPart(Apart.KEY, lambda _: True))
        async with store.read() as conn:
            buckets = await later_buckets(conn, {prefix for prefix, _ in by_key})
        names_of = partial(tree.counting_key, buckets=buckets)
        fields |= await beside(tree.workspace_id, len(by_key), lambda: _by_field(by_key, names_of, windows))
    async with store.read() as conn:
        drawn = await drawn_through(conn, tree, through_ms)
    balances = {spent_field(balance_name(id), None, through_ms): units for id, units in drawn.items() if units}
    return {**fields, **balances}


async def _spent(
    store: Store, tree: SpendTree, window: EventWindow, prices: PricedSlugs, part: "_CountedPart"
) -> "_Spent":
    """The spend of each of these parts by day."""
    spent: _Spent = defaultdict(int)
    async for sums in _sums(store, tree, window, prices, part.apart):
        items = sum(day.items for day in sums)
        await beside(tree.workspace_id, items, partial(_add, spent, sums, tree.currency, part, prices))
    return spent


async def _prices(store: Store, workspace_id: str) -> Sequence[Price]:
    prices: list[Price] = []
    after = None
    async with store.read() as conn:
        while page := await list_prices(conn, workspace_id, None, after, PRICES_AT_ONCE):
            prices += page
            after = (page[-1].slug, page[-1].valid_from_ms)
    return prices


async def _sums(
    store: Store, tree: SpendTree, window: EventWindow, prices: PricedSlugs, apart: Apart
) -> AsyncGenerator[Sequence[DaySums], None]:
    """The sums of the tree's entities by part, deleted groups' too: some entities and days at a time."""
    async with store.read() as conn:
        groups = await groups_from(conn, tree.workspace_id, f"{tree.root_id}/")
    entities = sorted({group.external_entity_id for group in groups})
    for part in _window_parts(window):
        for start in range(0, len(entities), ENTITIES_AT_ONCE):
            listed = entities[start : start + ENTITIES_AT_ONCE]
            async with store.read() as conn:
                sources = await sources_of(conn, part, prices.bounds)
                sums = [await source.of_listed(listed, apart) for source in sources]
            yield [*chain.from_iterable(sums)]


def _window_parts(window: EventWindow) -> Iterable[EventWindow]:
    """The window in parts of some days. It starts with a day."""
    step_ms = DAYS_AT_ONCE * DAY_MS
    for start_ms in range(window.start_ms, window.end_ms, step_ms):
        yield replace(window, start_ms=start_ms, end_ms=min(start_ms + step_ms, window.end_ms))


def _add(spent: _Spent, days: Sequence[DaySums], currency: str, part: _CountedPart, prices: PricedSlugs) -> None:
    """Add what calls cost. Entities also have calls of other groups, such as deleted ones."""
    for day in days:
        priced: dict[str, PricedSlug] = {}
        for sums in day.slices():
            for name, rate_key, figures in zip(sums.parts, sums.rate_keys, sums.figures, strict=True):
                if not part.is_counted(name):
                    continue
                if rate_key not in priced:
                    priced[rate_key] = prices.at(RateKey.from_text(rate_key), day.day_ms)
                price = priced[rate_key].price
                if price is not None and price.currency == currency:
                    spent[name, day.day_ms] += priced[rate_key].units(figures)


def _by_field(spent: _Spent, names_of: Callable[[str], Sequence[str]], windows: frozenset[str]) -> dict[str, int]:
    """The units of each field. `names_of`: the names that count a part's spend."""
    fields: dict[str, int] = defaultdict(int)
    for (part, day_ms), units in spent.items():
        units_kept = [unit for unit in (Unit.DAY, Unit.MONTH) if window_name(unit, day_ms) in windows]
        for name in names_of(part):
            for unit in units_kept:
                fields[spent_field(name, unit, day_ms)] += units
    return {field: units for field, units in fields.items() if units}
