"""The groups of a usage report: sums of calls by day, slug, entity or key, and what they cost.

Money is added in whole units (`policy.prices.Rates`), so it is exact, and fast enough for pages of 200 000 lines.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from itertools import repeat
from operator import attrgetter, itemgetter, mul
from types import MappingProxyType
from typing import NamedTuple

from control.edges.sql.billing.sum_records import DaySums, RateKey, SumSlice
from control.records.usage_sums import PLAIN, Figures, Usage, figures_sum, usage_of
from policy.prices import Money, Price, amount_of, date_text

_FAR_MS = 1 << 62
_ONE_OF_EACH = [Usage(**{name: 1}).cost_figures for name in Usage._fields]
Name = tuple[str, ...]
"""The value that the calls of a group share: a day, a slug, an entity, or an entity and a key."""


class Grouping(StrEnum):
    """The groups of a report."""

    DAY = "day"
    SLUG = "slug"
    ENTITY = "entity"
    KEY = "key"


@dataclass(frozen=True, eq=False)
class PricedSlug:
    """A slug at one of its prices, which ends at `until_ms`. Compared by identity, which is cheap.

    `service_tier`: one that the price lists, or "". `is_long`: whether it is the price of long context.
    """

    slug: str
    price: Price | None
    until_ms: int
    service_tier: str = ""
    is_long: bool = False

    @cached_property
    def weights(self) -> Sequence[int]:
        """The cost of one of each figure of a `Usage`, in units of `policy.prices.Rates`. A cost is linear in them."""
        if self.price is None:
            return ()
        rates = self.price.rates(self.service_tier, is_long=self.is_long)
        return list(map(rates.cost, _ONE_OF_EACH))

    def units(self, figures: Figures) -> int:
        """The cost of these sums, in the same units."""
        *plain, further = figures
        units: int = sum(map(mul, self.weights, plain))
        return units if further is None else units + sum(map(mul, self.weights[PLAIN:], further))

    @property
    def place(self) -> tuple[str, int, bool, str]:
        """The place of a line among those of its group: by slug, then by price."""
        valid_from_ms = -1 if self.price is None else self.price.valid_from_ms
        return (self.slug, valid_from_ms, self.is_long, self.service_tier)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """The calls of a group through one slug at one price, of one service tier and with long context or none.

    `amount` is None where the slug had no price.
    """

    priced: PricedSlug
    usage: Usage
    amount: Decimal | None


class Totals(NamedTuple):
    """Sums of calls, and what those that have a price cost: `units` of `policy.prices.Rates`, by currency."""

    figures: Figures = Usage().figures
    units: Mapping[str, int] = MappingProxyType({})
    unpriced_calls: int = 0

    @classmethod
    def of(cls, sums: Mapping[PricedSlug, Figures]) -> "Totals":
        """Add the sums of a group up: by columns, because there may be thousands."""
        if not sums:
            return cls()
        units: dict[str, int] = defaultdict(int)
        unpriced_calls = 0
        for priced, figures in sums.items():
            if priced.price is None:
                unpriced_calls += figures[0]
            else:
                units[priced.price.currency] += priced.units(figures)
        *plain, further = zip(*sums.values(), strict=True)
        calls, input, output, cached = map(sum, plain)
        some = [figures for figures in further if figures is not None]
        return cls((calls, input, output, cached, _columns_sum(some)), units, unpriced_calls)

    def plus(self, other: "Totals") -> "Totals":
        units = {**self.units}
        for currency, amount in other.units.items():
            units[currency] = units.get(currency, 0) + amount
        figures = figures_sum(self.figures, other.figures)
        return Totals(figures, units, self.unpriced_calls + other.unpriced_calls)

    @property
    def usage(self) -> Usage:
        return usage_of(self.figures)

    @property
    def cost(self) -> Money | None:
        """The exact cost of the priced calls, ordered by currency; None if no call has a price."""
        return {currency: amount_of(self.units[currency]) for currency in sorted(self.units)} or None


@dataclass(frozen=True)
class ReportGroup:
    """One group of calls: at least one call. Without sums it says only how far events were looked at.

    `own`: with sums of the groups below it, those of the group itself. `whole`: its totals, if they are not those of
    `sums`, which then has at most what `lines` shows.
    """

    name: Name
    sums: Mapping[PricedSlug, Figures]
    own: Totals | None = None
    whole: Totals | None = None

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(self.sums) if self.whole is None else self.whole

    @property
    def lines(self) -> Sequence[ReportLine]:
        """The calls by slug and price."""
        items = sorted(self.sums.items(), key=lambda item: item[0].place)
        return [
            ReportLine(
                priced,
                usage_of(figures),
                None if priced.price is None else amount_of(priced.units(figures)),
            )
            for priced, figures in items
        ]


def _columns_sum(rows: Sequence[Sequence[int]]) -> Sequence[int] | None:
    return tuple(map(sum, zip(*rows, strict=True))) if rows else None


class PricedSlugs:
    """Finds the price that is valid for a slug at a time. Each is made ready once for a report, when it is used.

    `bounds`: those of long context.
    """

    def __init__(self, prices: Iterable[Price]) -> None:
        self._prices: dict[str, list[Price]] = defaultdict(list)
        for price in sorted(prices, key=attrgetter("valid_from_ms")):
            self._prices[price.slug].append(price)
        long_contexts = [price.long_context for prices in self._prices.values() for price in prices]
        self.bounds = frozenset(one.above_input_tokens for one in long_contexts if one is not None)
        self._starts: dict[str, Sequence[int]] = {}
        self._periods: dict[str, Sequence[PricedSlug]] = {}
        self._variants: dict[tuple[PricedSlug, str, bool], PricedSlug] = {}

    def at(self, key: RateKey, day_ms: int) -> PricedSlug:
        """The slug at its latest price that is valid from then or earlier, for calls of that tier and context."""
        base = self._period(key.slug, day_ms)
        price = base.price
        if price is None or (key.service_tier, key.above_input_tokens) == ("", 0):
            return base
        tier = key.service_tier if key.service_tier in dict(price.service_tiers) else ""
        long_context = price.long_context
        is_long = long_context is not None and key.above_input_tokens >= long_context.above_input_tokens
        if not tier and not is_long:
            return base
        place = (base, tier, is_long)
        if place not in self._variants:
            self._variants[place] = replace(base, service_tier=tier, is_long=is_long)
        return self._variants[place]

    def _period(self, slug: str, day_ms: int) -> PricedSlug:
        if slug not in self._starts:
            prices = self._prices.get(slug, ())
            self._starts[slug] = [price.valid_from_ms for price in prices]
            ends = [*self._starts[slug], _FAR_MS]
            self._periods[slug] = [
                PricedSlug(slug, price, end) for price, end in zip((None, *prices), ends, strict=True)
            ]
        return self._periods[slug][bisect_right(self._starts[slug], day_ms)]


class _ValidPrices(dict[str, PricedSlug]):
    """The prices of a day by rate key. They are found when they are asked for, and stay while they are valid."""

    def __init__(self, prices: PricedSlugs) -> None:
        super().__init__()
        self._prices = prices
        self._day_ms = 0

    def turn_to(self, day_ms: int) -> None:
        """A later day."""
        self._day_ms = day_ms
        for key in [key for key, priced in self.items() if priced.until_ms <= day_ms]:
            del self[key]

    def __missing__(self, key: str) -> PricedSlug:
        priced = self[key] = self._prices.at(RateKey.from_text(key), self._day_ms)
        return priced


class SumBook:
    """Adds sums up: for each group, each slug and each price."""

    def __init__(self, prices: PricedSlugs) -> None:
        self.prices = prices
        self._groups: dict[Name, dict[PricedSlug, Figures]] = defaultdict(dict)

    def add(self, days: Iterable[DaySums], by: Grouping, is_wanted: Callable[[str], bool] | None = None) -> int:
        """Add sums of calls; returns how many. Prices hold from the start of a day. `is_wanted`: which parts to add."""
        count = 0
        valid = _ValidPrices(self.prices)
        for day in sorted(days, key=attrgetter("day_ms")):
            valid.turn_to(day.day_ms)
            for sums in day.slices():
                sums = sums if is_wanted is None else sums.where(is_wanted)
                count += len(sums.figures)
                self._add(_names_of(sums, day.day_ms, by), map(valid.__getitem__, sums.rate_keys), sums.figures)
        return count

    def _add(self, names: Iterable[Name], priced: Iterable[PricedSlug], figures: Iterable[Figures]) -> None:
        """Look up by `map`, without bytecode of our own: that halves the time."""
        for group, slug, sums in zip(map(self._groups.__getitem__, names), priced, figures, strict=False):
            before = group.setdefault(slug, sums)
            if before is not sums:
                group[slug] = figures_sum(before, sums)

    @property
    def size(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def totals(self) -> dict[Name, Totals]:
        return {name: Totals.of(sums) for name, sums in self._groups.items()}

    def groups(self) -> Iterator[ReportGroup]:
        """Yield the groups in the order of their names."""
        for name, sums in sorted(self._groups.items(), key=itemgetter(0)):
            yield ReportGroup(name, sums)


def _names_of(sums: SumSlice, day_ms: int, by: Grouping) -> Iterable[Name]:
    """The group of each sum."""
    match by:
        case Grouping.DAY:
            return repeat((date_text(day_ms),))
        case Grouping.SLUG:
            return ((RateKey.from_text(key).slug,) for key in sums.rate_keys)
        case Grouping.ENTITY:
            return zip(sums.entities, strict=True)
        case Grouping.KEY:
            return zip(sums.entities, sums.parts, strict=True)
