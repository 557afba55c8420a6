"""The prices of a slug as a worker looks them up: the one that is valid at a time, and its rates for a kind of call.

Prices change at the start of a UTC day, while calls run. See docs/reference/usage-reports.md#prices.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import gcd

from policy.prices import Price, Rates
from policy.snapshot import PriceRow
from policy.spend.spend_hash import UNITS_PER_PICO
from proxy.accounting.cost_bounds.dearest_rates import UNBOUNDED, DearestRates, dearest_rates

_FAR_MS = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Tariff:
    """The rates of calls of one price, service tier and length. Compared by identity, which is cheap."""

    currency: str
    rates: Rates
    input: int
    """This rate and the next three in parts of 10^-12 of the currency, as few that they are whole. Of most prices it is
    one: small numbers, and nothing to divide by."""
    cached_input: int
    output: int
    per_call: int
    parts_per_pico: int

    @classmethod
    def of(cls, currency: str, rates: Rates) -> "Tariff":
        part = gcd(UNITS_PER_PICO, rates.input, rates.cached_input, rates.output, rates.per_call)
        return cls(
            currency=currency,
            rates=rates,
            input=rates.input // part,
            cached_input=rates.cached_input // part,
            output=rates.output // part,
            per_call=rates.per_call // part,
            parts_per_pico=UNITS_PER_PICO // part,
        )


class SlugPrices:
    """The prices of one slug. Keeps the tariffs of the price that was last asked for, and the dearest rates."""

    def __init__(self, row: PriceRow) -> None:
        self.workspace_id = row.workspace_id
        self._prices = row.prices
        self._starts = (*(price.valid_from_ms for price in row.prices), _FAR_MS)
        self._from_ms = 0
        self._until_ms = 0
        self._price: Price | None = None
        self._usual: Tariff | None = None
        """The tariff of calls without a tier that is listed and without long context; None before the first price."""
        self._usual_input = 0
        """The most input tokens of such a call."""
        self._tiers: frozenset[str] = frozenset()
        self._tariffs: dict[tuple[str, bool], Tariff] = {}
        """Tariffs by service tier and length. Tiers that are not listed share one, named ""."""
        self._first_from_ms = 0
        self._first_until_ms = 0
        self._last_from_ms = 0
        self._last_until_ms = 0
        """Times with the same first and last prices, as the dearest rates that are kept were asked for."""
        self._currency = ""
        self._dearest: DearestRates | None = None

    def tariff(self, at_ms: int, service_tier: str, input_tokens: int) -> Tariff | None:
        """The tariff of a call that ended at `at_ms`; None before the first price."""
        if not self._from_ms <= at_ms < self._until_ms:
            self._turn_to(at_ms)
        if service_tier not in self._tiers and input_tokens <= self._usual_input:
            return self._usual
        price = self._price
        assert price is not None  # else nothing is unusual
        tier = service_tier if service_tier in self._tiers else ""
        is_long = price.is_long(input_tokens)
        tariff = self._tariffs.get((tier, is_long))
        if tariff is None:
            tariff = self._tariffs[tier, is_long] = Tariff.of(price.currency, price.rates(tier, is_long=is_long))
        return tariff

    def dearest(self, from_ms: int, until_ms: int, currency: str) -> DearestRates | None:
        """The dearest rates of a call that ends between these times; None if its price at `from_ms` has not `currency`.

        A later price of another currency costs nothing in this one.
        """
        if not (
            self._first_from_ms <= from_ms < self._first_until_ms
            and self._last_from_ms <= until_ms < self._last_until_ms
        ):
            self._bound(from_ms, until_ms)
        return self._dearest if currency == self._currency else None

    def _bound(self, from_ms: int, until_ms: int) -> None:
        first = bisect_right(self._starts, from_ms)
        last = bisect_right(self._starts, until_ms)
        self._first_from_ms, self._first_until_ms = self._times(first)
        self._last_from_ms, self._last_until_ms = self._times(last)
        self._currency = ""
        self._dearest = None
        if first:
            self._currency = self._prices[first - 1].currency
            prices = self._prices[first - 1 : last]
            self._dearest = dearest_rates([price for price in prices if price.currency == self._currency])

    def _times(self, number: int) -> tuple[int, int]:
        """The times from which, and until which, so many prices have begun."""
        return self._starts[number - 1] if number else 0, self._starts[number]

    def _turn_to(self, at_ms: int) -> None:
        number = bisect_right(self._starts, at_ms)
        price = self._prices[number - 1] if number else None
        self._from_ms = 0 if price is None else price.valid_from_ms
        self._until_ms = self._starts[number]
        self._price = price
        self._tiers = frozenset(() if price is None else dict(price.service_tiers))
        self._tariffs.clear()
        self._usual = None if price is None else Tariff.of(price.currency, price.rates())
        long_context = None if price is None else price.long_context
        self._usual_input = UNBOUNDED if long_context is None else long_context.above_input_tokens
