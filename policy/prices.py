"""Prices of calls and exact amounts of money: decimal text in, decimal text out, no float in between.

A price holds from a UTC date until the slug's next one. See docs/reference/usage-reports.md#prices.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from typing import NamedTuple

from policy.billing import Details, Tokens

DAY_MS = 86_400_000
AMOUNT_PATTERN = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
CURRENCY_PATTERN = re.compile(r"[A-Z]{3}")
DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EXACT = Context(prec=200, traps=[Inexact, InvalidOperation, Overflow, DivisionByZero])
"""A price has 24 digits and a sum of tokens fewer than 40, so nothing is ever rounded; if it were, it would raise."""
_UNITS = Decimal(10**22)
_UNITS_OF_A_MILLIONTH = Decimal(10**16)
_UNIT = Decimal("1e-22")
"""The smallest unit of an amount: prices have 12 digits after the point, are those of a million tokens, and are
multiplied by factors with 4 digits after the point."""
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


class TokenPrices(NamedTuple):
    """Prices per million tokens of each kind. `token_prices` makes them."""

    input: Decimal
    cached_input: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal
    audio_input: Decimal
    image_input: Decimal
    output: Decimal
    audio_output: Decimal
    image_output: Decimal


def token_prices(input: Decimal, output: Decimal, **others: Decimal | None) -> TokenPrices:
    """The prices of all kinds. `others`: by name; without one, a kind costs what its default does.

    Input is the default of cached input, cache writes, sound and pictures, a cache write that of one for an hour, and
    output that of sound and pictures.
    """
    priced = {name: price for name, price in others.items() if price is not None}
    write = priced.get("cache_write", input)
    kinds = dict.fromkeys(TokenPrices._fields[: TokenPrices._fields.index("output")], input)
    kinds |= {"cache_write": write, "cache_write_1h": write}
    kinds |= dict.fromkeys(("output", "audio_output", "image_output"), output)
    return TokenPrices(**{**kinds, **priced})


@dataclass(frozen=True, slots=True)
class LongContext:
    """The prices of all tokens of a call whose input is above a bound."""

    above_input_tokens: int
    tokens: TokenPrices


@dataclass(frozen=True, slots=True)
class Price:
    """The price of calls through a slug from `valid_from_ms` on.

    `service_tiers`: the factor of each tier on what tokens cost, ordered by name; that of others is 1.
    `max_input_tokens`, `max_output_tokens`: what the model can take and give at most, which reservations go by.
    """

    slug: str
    valid_from_ms: int
    currency: str
    tokens: TokenPrices
    per_call: Decimal = Decimal(0)
    per_server_tool_call: Decimal = Decimal(0)
    long_context: LongContext | None = None
    service_tiers: tuple[tuple[str, Decimal], ...] = ()
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None

    def is_long(self, input_tokens: int) -> bool:
        """Return whether a call with so much input has the prices of long context."""
        return self.long_context is not None and input_tokens > self.long_context.above_input_tokens

    def rates(self, service_tier: str = "", *, is_long: bool = False) -> "Rates":
        """The price in whole units. Keep them where much is priced: computing them takes microseconds."""
        tokens = self.long_context.tokens if is_long and self.long_context is not None else self.tokens
        factor = dict(self.service_tiers).get(service_tier, Decimal(1))
        units = [int(_EXACT.multiply(_EXACT.multiply(price, factor), _UNITS_OF_A_MILLIONTH)) for price in tokens]
        per_call, per_server_tool_call = (
            int(_EXACT.multiply(price, _UNITS)) for price in (self.per_call, self.per_server_tool_call)
        )
        return Rates._make((*units, per_call, per_server_tool_call))

    def cost(self, figures: "CostFigures", service_tier: str = "", *, is_long: bool = False) -> Decimal:
        """The exact cost in `currency` of calls of one tier, all with long context or none."""
        return amount_of(self.rates(service_tier, is_long=is_long).cost(figures))


class CostFigures(NamedTuple):
    """Sums over calls of everything that has a price. `cost_figures` makes those of a call.

    `charged_calls`: calls that cost `per_call`. `input`, `output`: all tokens. The others are parts of them: what is
    cached or written is in neither sound nor pictures. `cache_write` includes `cache_write_1h`.
    """

    charged_calls: int = 0
    input: int = 0
    output: int = 0
    cached_input: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    audio_input: int = 0
    image_input: int = 0
    audio_output: int = 0
    image_output: int = 0
    server_tool_calls: int = 0


def cost_figures(tokens: Tokens, details: Details, *, is_charged: bool = True) -> CostFigures:
    """The figures of one call, each token in one part: what is cached or written is text first, then pictures, then
    sound. A part that is larger than what it is part of counts as all of that."""
    cached = min(tokens.cached_input, tokens.input)
    if not any(details[:-1]):  # the figures
        return CostFigures(int(is_charged), tokens.input, tokens.output, cached)
    image = min(details.image_input, tokens.input)
    audio = min(details.audio_input, tokens.input - image)
    writes = min(details.cache_write, tokens.input - cached)
    beyond_text = max(0, cached + writes - (tokens.input - image - audio))
    beyond_pictures = max(0, beyond_text - image)
    audio_output = min(details.audio_output, tokens.output)
    return CostFigures(
        charged_calls=int(is_charged),
        input=tokens.input,
        output=tokens.output,
        cached_input=cached,
        cache_write=writes,
        cache_write_1h=min(details.cache_write_1h, writes),
        audio_input=audio - beyond_pictures,
        image_input=max(0, image - beyond_text),
        audio_output=audio_output,
        image_output=min(details.image_output, tokens.output - audio_output),
        server_tool_calls=details.server_tool_calls,
    )


class Rates(NamedTuple):
    """A price in units that are whole for every price, 10^22 to one of its currency. So every cost is exact."""

    input: int
    cached_input: int
    cache_write: int
    cache_write_1h: int
    audio_input: int
    image_input: int
    output: int
    audio_output: int
    image_output: int
    per_call: int
    per_server_tool_call: int

    def cost(self, figures: CostFigures) -> int:
        """The cost in units. What is in no other part is text."""
        calls, input, output, cached, *parts = figures
        cost = self.per_call * calls + self.input * (input - cached) + self.cached_input * cached + self.output * output
        if any(parts):  # until here they cost what text does
            writes, long_writes, audio, image, audio_output, image_output, tool_calls = parts
            cost += (
                (self.cache_write - self.input) * writes
                + (self.cache_write_1h - self.cache_write) * long_writes
                + (self.audio_input - self.input) * audio
                + (self.image_input - self.input) * image
                + (self.audio_output - self.output) * audio_output
                + (self.image_output - self.output) * image_output
                + self.per_server_tool_call * tool_calls
            )
        return cost


def amount_of(units: int) -> Decimal:
    """Return the amount of money of `units`, in the unit of `Rates`."""
    return _EXACT.multiply(Decimal(units), _UNIT)


def units_of(amount: Decimal) -> int:
    """Return the `units` of an amount of money. Raises if it is not a whole number of them."""
    units = _EXACT.multiply(amount, _UNITS)
    return int(_EXACT.to_integral_exact(units))


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
