"""Prices of calls and exact amounts of money: decimal text in, decimal text out, no float in between.

A price holds from a UTC date until the slug's next one. See docs/reference/usage-reports.md#prices.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from operator import add
from typing import NamedTuple

DAY_MS = 86_400_000
AMOUNT_PATTERN = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
CURRENCY_PATTERN = re.compile(r"[A-Z]{3}")
DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EXACT = Context(prec=200, traps=[Inexact, InvalidOperation, Overflow, DivisionByZero])
"""A price has 24 digits and a sum of tokens fewer than 40, so nothing is ever rounded; if it were, it would raise."""
_UNITS = Decimal(10**18)
_UNITS_OF_A_MILLIONTH = Decimal(10**12)
_UNIT = Decimal("1e-18")
"""The smallest unit of an amount: prices have 12 digits after the point, and are those of a million tokens."""
_EPOCH = date(1970, 1, 1)
_MINOR_UNITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_DIGITS = {currency: digits for digits, currencies in _MINOR_UNITS.items() for currency in currencies.split()}
"""The digits after the point of currencies in which they are not 2 (ISO 4217)."""
CONTEXT_BOUNDS = (128_000, 200_000, 256_000, 272_000, 512_000)
"""Input tokens of a call above which vendors have other prices. Hourly sums keep the calls between two bounds apart."""
Money = Mapping[str, Decimal]
"""Exact amounts by currency. Amounts of different currencies are never added."""


Figures = tuple[int, int, int, int]
"""Calls, input, output and cached input: the members of a `Usage`."""


class Usage(NamedTuple):
    """Sums over calls. `input` includes `cached_input`, as in an event."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cached_input: int = 0

    def plus(self, other: Figures) -> "Usage":
        return Usage._make(map(add, self, other))


@dataclass(frozen=True, slots=True)
class Price:
    """The price of calls through a slug from `valid_from_ms` on: per million tokens of a kind, and per call."""

    slug: str
    valid_from_ms: int
    currency: str
    input: Decimal
    cached_input: Decimal
    output: Decimal
    per_call: Decimal

    @property
    def rates(self) -> "Rates":
        """The price in whole units. Keep them where many usages are priced: computing them takes microseconds."""
        return Rates(
            input=int(_EXACT.multiply(self.input, _UNITS_OF_A_MILLIONTH)),
            cached_input=int(_EXACT.multiply(self.cached_input, _UNITS_OF_A_MILLIONTH)),
            output=int(_EXACT.multiply(self.output, _UNITS_OF_A_MILLIONTH)),
            per_call=int(_EXACT.multiply(self.per_call, _UNITS)),
        )

    def cost(self, usage: Figures) -> Decimal:
        """The exact cost in `currency`. Cached input costs `cached_input` instead of `input`."""
        return amount_of(self.rates.cost(usage))


class Rates(NamedTuple):
    """A price in units that are whole for every price, 10^18 to one of its currency. So every cost is exact."""

    input: int
    cached_input: int
    output: int
    per_call: int

    def cost(self, usage: Figures) -> int:
        calls, input, output, cached = usage
        per_input, per_cached, per_output, per_call = self
        uncached = input - cached if input > cached else 0
        return per_input * uncached + per_cached * cached + per_output * output + per_call * calls


def amount_of(units: int) -> Decimal:
    """Return the amount of money of `units`, in the unit of `Rates`."""
    return _EXACT.multiply(Decimal(units), _UNIT)


def sum_of(amounts: Iterable[tuple[str, Decimal]]) -> dict[str, Decimal]:
    """The exact sum for each currency, ordered by currency."""
    totals: dict[str, Decimal] = {}
    for currency, amount in amounts:
        totals[currency] = _EXACT.add(totals.get(currency, Decimal(0)), amount)
    return dict(sorted(totals.items()))


def parse_amount(text: str) -> Decimal:
    """A price as callers write it. ValueError unless it has at most 12 digits on either side of the point."""
    if AMOUNT_PATTERN.fullmatch(text) is None:
        raise ValueError("must be decimal text with at most 12 digits before and 12 after the point, such as 0.15")
    return Decimal(text)


def parse_currency(text: str) -> str:
    """An ISO 4217 code. ValueError unless it is three capital letters."""
    if CURRENCY_PATTERN.fullmatch(text) is None:
        raise ValueError("must be an ISO 4217 code: three capital letters, such as EUR")
    return text


def parse_date(text: str) -> int:
    """The start of a UTC day in epoch ms. ValueError unless `text` is a date of 1970 or later."""
    if DATE_PATTERN.fullmatch(text) is None:
        raise ValueError("must be a date such as 2026-01-31")
    try:
        days = (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise ValueError("must be a date that exists, such as 2026-01-31") from None
    if days < 0:
        raise ValueError("must be 1970-01-01 or later")
    return days * DAY_MS


def date_text(epoch_ms: int) -> str:
    """The UTC day that `epoch_ms` is in."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)).date().isoformat()


def amount_text(amount: Decimal) -> str:
    """All digits of the amount, with at least two after the point and no exponent."""
    whole, _, fraction = format(amount, "f").partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"


def money_texts(money: Money) -> dict[str, str]:
    return {currency: amount_text(amount) for currency, amount in money.items()}


def rounded_text(currency: str, amount: Decimal) -> str:
    """The amount rounded half to even to the currency's minor unit: for an invoice's total, and for nothing else."""
    unit = Decimal(1).scaleb(-_DIGITS.get(currency, 2))
    return format(amount.quantize(unit, ROUND_HALF_EVEN, Context(prec=200)), "f")
