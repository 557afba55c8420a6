"""The groups of a usage report: sums of calls by day, slug, entity or key, and what they cost.

Money is added in whole units (`policy.prices.Rates`), so it is exact, and fast enough for pages of 200 000 lines.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import repeat
from operator import attrgetter, itemgetter

from control.edges.sql.billing.sum_records import DaySums, SumSlice
from policy.prices import CostFigures, Figures, Money, Price, Rates, Usage, amount_of, date_text

_FAR_MS = 1 << 62
Name = tuple[str, ...]
"""The value that the calls of a group share: a day, a slug, an entity, or an entity and a key."""


class Grouping(StrEnum):
    """The groups of a report."""

    DAY = "day"
    SLUG = "slug"
    ENTITY = "entity"
    KEY = "key"


@dataclass(frozen=True, slots=True, eq=False)
class PricedSlug:
    """A slug at one of its prices, which ends at `until_ms`. Compared by identity, which is cheap."""

    slug: str
    price: Price | None
    rates: Rates | None
    currency: str
    until_ms: int

    @property
    def place(self) -> tuple[str, int]:
        """The place of a line among those of its group: by slug, then by price."""
        return (self.slug, -1 if self.price is None else self.price.valid_from_ms)


@dataclass(frozen=True, slots=True)
class ReportLine:
    """The calls of a group through one slug at one price; None where the slug had no price."""

    slug: str
    price: Price | None
    usage: Usage
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class ReportGroup:
    """One group of calls: at least one call. Without sums it says only how far events were looked at."""

    name: Name
    sums: Mapping[PricedSlug, Figures]

    @property
    def lines(self) -> Sequence[ReportLine]:
        """The calls by slug and price."""
        items = sorted(self.sums.items(), key=lambda item: item[0].place)
        return [
            ReportLine(
                priced.slug,
                priced.price,
                Usage._make(figures),
                None if priced.rates is None else amount_of(priced.rates.cost(CostFigures(*figures))),
            )
            for priced, figures in items
        ]

    @property
    def usage(self) -> Usage:
        calls = input = output = cached = 0
        for figures in self.sums.values():
            calls += figures[0]
            input += figures[1]
            output += figures[2]
            cached += figures[3]
        return Usage(calls, input, output, cached)

    @property
    def unpriced_calls(self) -> int:
        return sum(figures[0] for priced, figures in self.sums.items() if priced.rates is None)

    @property
    def cost(self) -> Money | None:
        """The exact cost of the priced calls, ordered by currency; None if no call has a price."""
        units: dict[str, int] = defaultdict(int)
        for priced, figures in self.sums.items():
            if priced.rates is not None:
                units[priced.currency] += priced.rates.cost(CostFigures(*figures))
        return {currency: amount_of(units[currency]) for currency in sorted(units)} or None


class PricedSlugs:
    """Finds the price that is valid for a slug at a time. Each is made ready once for a report, when it is used."""

    def __init__(self, prices: Iterable[Price]) -> None:
        self._prices: dict[str, list[Price]] = defaultdict(list)
        for price in sorted(prices, key=attrgetter("valid_from_ms")):
            self._prices[price.slug].append(price)
        self._starts: dict[str, Sequence[int]] = {}
        self._periods: dict[str, Sequence[PricedSlug]] = {}

    def at(self, slug: str, day_ms: int) -> PricedSlug:
        """The slug at its latest price that is valid from then or earlier."""
        if slug not in self._starts:
            prices = self._prices.get(slug, ())
            self._starts[slug] = [price.valid_from_ms for price in prices]
            ends = [*self._starts[slug], _FAR_MS]
            self._periods[slug] = [_priced(slug, price, end) for price, end in zip((None, *prices), ends, strict=True)]
        return self._periods[slug][bisect_right(self._starts[slug], day_ms)]


def _priced(slug: str, price: Price | None, until_ms: int) -> PricedSlug:
    if price is None:
        return PricedSlug(slug, None, None, "", until_ms)
    return PricedSlug(slug, price, price.rates(), price.currency, until_ms)


class _ValidPrices(dict[str, PricedSlug]):
    """The prices of a day by slug. They are found when they are asked for, and stay while they are valid."""

    def __init__(self, prices: PricedSlugs) -> None:
        super().__init__()
        self._prices = prices
        self._day_ms = 0

    def turn_to(self, day_ms: int) -> None:
        """A later day."""
        self._day_ms = day_ms
        for slug in [slug for slug, priced in self.items() if priced.until_ms <= day_ms]:
            del self[slug]

    def __missing__(self, slug: str) -> PricedSlug:
        priced = self[slug] = self._prices.at(slug, self._day_ms)
        return priced


class SumBook:
    """Adds sums up: for each group, each slug and each price."""

    def __init__(self, prices: PricedSlugs) -> None:
        self._prices = prices
        self._groups: dict[Name, dict[PricedSlug, Figures]] = defaultdict(dict)

    def add(self, days: Iterable[DaySums], by: Grouping) -> int:
        """Add sums of calls; returns how many. Prices hold from the start of a day."""
        count = 0
        valid = _ValidPrices(self._prices)
        for day in sorted(days, key=attrgetter("day_ms")):
            valid.turn_to(day.day_ms)
            for sums in day.slices():
                count += len(sums.figures)
                self._add(_names_of(sums, day.day_ms, by), map(valid.__getitem__, sums.slugs), sums.figures)
        return count

    def _add(self, names: Iterable[Name], priced: Iterable[PricedSlug], figures: Iterable[Figures]) -> None:
        """Look up by `map`, without bytecode of our own: that halves the time."""
        for group, slug, sums in zip(map(self._groups.__getitem__, names), priced, figures, strict=False):
            before = group.setdefault(slug, sums)
            if before is not sums:
                group[slug] = _sum(before, sums)

    @property
    def size(self) -> int:
        """The number of groups."""
        return len(self._groups)

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
            return zip(sums.slugs, strict=True)
        case Grouping.ENTITY:
            return zip(sums.entities, strict=True)
        case Grouping.KEY:
            return zip(sums.entities, sums.keys, strict=True)


def _sum(one: Figures, other: Figures) -> Figures:
    calls, input, output, cached = one
    more_calls, more_input, more_output, more_cached = other
    return (calls + more_calls, input + more_input, output + more_output, cached + more_cached)
