"""The sums of calls that share labels, status and tariff, and what they cost.

All these calls have the same rates, so the cost of their sums is the sum of their costs, to the last digit.
"""

from collections.abc import Iterator
from operator import add, attrgetter
from typing import Any

from policy.billing import FIRST_ERROR_STATUS, NO_DETAILS, Details
from policy.prices import CostFigures, cost_figures
from proxy.accounting.metering import Bill
from proxy.accounting.slug_prices import Tariff

_priced_figures = attrgetter(*(name for name in CostFigures._fields if name in Details._fields))
_PARTS = 6
"""The place of the first sum of parts."""


def no_sums() -> list[int]:
    """Calls, uncached input, cached input, output, billed calls, counts of tokens among them, and the parts of
    `CostFigures` from cache writes on."""
    return [0] * (_PARTS + len(CostFigures._fields[4:]))


def add_parts(sums: list[int], bill: Bill, *, is_count: bool) -> None:
    """Add what few calls have beside tokens."""
    details = bill.details
    if is_count:
        sums[_PARTS - 1] += 1
    if details is not NO_DETAILS and any(_priced_figures(details)):
        parts = cost_figures(bill.tokens, details)[4:]
        sums[_PARTS:] = map(add, sums[_PARTS:], parts)


def spend_of(labels: tuple[str, str, str], status: int, tariff: Tariff | None, sums: list[int]) -> Iterator[list[Any]]:
    """Yield the cost of billed calls: labels, currency, billed calls, and the cost in units as text, which the channel
    carries whole. Without a price, currency and cost are ""."""
    _, uncached, cached, output, billed, counts, *parts = sums
    if tariff is None:
        if billed:
            yield [*labels, "", billed, ""]
        return
    charged = billed - counts if status < FIRST_ERROR_STATUS else 0
    figures = CostFigures(charged, uncached + cached, output, cached, *parts)
    yield [*labels, tariff.currency, billed, str(tariff.rates.cost(figures))]
