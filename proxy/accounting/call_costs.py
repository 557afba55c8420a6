"""The cost of a call, as spend limits reserve it: expected before it is sent, and billed after it has ended. Pure.

Amounts are whole numbers of 10^-12 of a currency, rounded up. Control counts the exact cost of the call's event later.

See docs/reference/money.md#how-spend-is-counted.
"""

from policy.limits.settlement import Estimate
from policy.prices import CostFigures, cost_figures
from policy.spend.spend_hash import picos_of
from proxy.accounting.metering import Bill
from proxy.accounting.slug_prices import SlugPrices, Tariff


def expected_picos(prices: SlugPrices | None, currency: str, at_ms: int, estimate: Estimate) -> int | None:
    """The expected cost of a call that begins at `at_ms`. None: the slug has no price in this currency then."""
    input_tokens = estimate.expected - estimate.output
    tariff = _tariff(prices, currency, at_ms, "", input_tokens)
    if tariff is None:
        return None
    figures = CostFigures(1, input_tokens, estimate.output)
    return picos_of(tariff.rates.cost(figures))


def billed_picos(prices: SlugPrices | None, currency: str, at_ms: int, bill: Bill, *, is_charged: bool) -> int:
    """The cost of a call that ended at `at_ms`; 0 if it is in another currency. `is_charged`: see `BillingEvent`."""
    tokens = bill.tokens
    tariff = _tariff(prices, currency, at_ms, bill.details.service_tier, tokens.input)
    if tariff is None:
        return 0
    return picos_of(tariff.rates.cost(cost_figures(tokens, bill.details, is_charged=is_charged)))


def _tariff(prices: SlugPrices | None, currency: str, at_ms: int, tier: str, input_tokens: int) -> Tariff | None:
    tariff = None if prices is None else prices.tariff(at_ms, tier, input_tokens)
    return tariff if tariff is not None and tariff.currency == currency else None
