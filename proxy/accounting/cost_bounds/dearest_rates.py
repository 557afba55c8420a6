"""The dearest rates of a slug while a call may run: over the prices that may hold, their tiers and their lengths.

See docs/reference/usage-reports.md#prices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd

from policy.prices import CostFigures, Price, Rates
from policy.spend.spend_hash import UNITS_PER_PICO

UNBOUNDED = 1 << 62
"""More tokens than any call has."""
_INPUT = Rates._fields.index("input")
_OUTPUT = Rates._fields.index("output")
_PER_CALL = Rates._fields.index("per_call")


@dataclass(frozen=True, slots=True)
class DearestRates:
    """Units (10^-22 of the currency) for a token of input and of output, whatever its kind, a call and a tool call.

    They hold for calls of at most `longest_input` tokens; `longer` holds beyond, where the prices of long context may.
    `max_input_tokens`, `max_output_tokens`: None unless every price has them.
    """

    input: int
    output: int
    per_call: int
    per_server_tool_call: int
    max_input_tokens: int | None
    max_output_tokens: int | None
    longest_input: int = UNBOUNDED
    longer: "DearestRates | None" = None
    parts_per_pico: int = field(init=False, compare=False)
    """The next four are these rates in as few parts of 10^-12 as make all of them whole. Of most prices it is one."""
    input_parts: int = field(init=False, compare=False)
    output_parts: int = field(init=False, compare=False)
    call_parts: int = field(init=False, compare=False)
    tool_call_parts: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        part = gcd(UNITS_PER_PICO, self.input, self.output, self.per_call, self.per_server_tool_call)
        object.__setattr__(self, "parts_per_pico", UNITS_PER_PICO // part)
        object.__setattr__(self, "input_parts", self.input // part)
        object.__setattr__(self, "output_parts", self.output // part)
        object.__setattr__(self, "call_parts", self.per_call // part)
        object.__setattr__(self, "tool_call_parts", self.per_server_tool_call // part)

    def at(self, input_tokens: int) -> "DearestRates":
        """The rates of a call with at most so much input."""
        rates = self
        while input_tokens > rates.longest_input and rates.longer is not None:
            rates = rates.longer
        return rates

    def cost(self, figures: CostFigures) -> int:
        """The most units that calls with these figures can cost, where these rates hold."""
        return (
            self.input * figures.input
            + self.output * figures.output
            + self.per_call * figures.charged_calls
            + self.per_server_tool_call * figures.server_tool_calls
        )


def dearest_rates(prices: Sequence[Price]) -> DearestRates:
    """The dearest of these prices, which are at least one and of one currency. Takes some 100 µs."""
    bounds = sorted({price.long_context.above_input_tokens for price in prices if price.long_context is not None})
    max_input_tokens = _largest(price.max_input_tokens for price in prices)
    max_output_tokens = _largest(price.max_output_tokens for price in prices)
    rates: DearestRates | None = None
    for longest_input in (UNBOUNDED, *reversed(bounds)):
        possible = [
            price.rates(tier, is_long=is_long)
            for price in prices
            for is_long in ((False, True) if price.is_long(longest_input) else (False,))
            for tier in ("", *dict(price.service_tiers))
        ]
        rates = DearestRates(
            input=max(max(each[_INPUT:_OUTPUT]) for each in possible),
            output=max(max(each[_OUTPUT:_PER_CALL]) for each in possible),
            per_call=max(each.per_call for each in possible),
            per_server_tool_call=max(each.per_server_tool_call for each in possible),
            max_input_tokens=max_input_tokens,
            max_output_tokens=max_output_tokens,
            longest_input=longest_input,
            longer=rates,
        )
    assert rates is not None  # there is a length at least
    return rates


def _largest(figures: Iterable[int | None]) -> int | None:
    """The largest figure; None if one is not known."""
    largest = 0
    for figure in figures:
        if figure is None:
            return None
        largest = max(largest, figure)
    return largest
