"""The cost of a call, as spend limits reserve it: expected before it is sent, and billed after it has ended. Pure.

Amounts are whole numbers of 10^-12 of a currency, rounded up. Control counts the exact cost of the call's event later.

See docs/reference/money.md#how-spend-is-counted.
"""

from policy.limits.settlement import Estimate
from policy.prices import cost_figures
from policy.spend.spend_hash import picos_of
from proxy.accounting.metering import Bill
from proxy.accounting.slug_prices import SlugPrices


def expected_picos(prices: SlugPrices | None, currency: str, at_ms: int, estimate: Estimate) -> int | None:
    """The expected cost of a call that begins at `at_ms`. None: the slug has no price in this currency then."""
    output_tokens = estimate.output
    input_tokens = estimate.expected - output_tokens
    tariff = None if prices is None else prices.tariff(at_ms, "", input_tokens)
    if tariff is None or tariff.currency != currency:
        return None
    cost = tariff.per_call + tariff.input * input_tokens + tariff.output * output_tokens
    return picos_of(cost, tariff.parts_per_pico)


def billed_picos(prices: SlugPrices | None, currency: str, at_ms: int, bill: Bill, *, is_charged: bool) -> int:
    """The cost of a call that ended at `at_ms`; 0 if it is in another currency. `is_charged`: see `BillingEvent`."""
    tokens, details, _ = bill
    input_tokens, output_tokens, cached = tokens
    tariff = None if prices is None else prices.tariff(at_ms, details.service_tier, input_tokens)
    if tariff is None or tariff.currency != currency:
        return 0
    if cached > input_tokens or any(details[:-1]):  # the figures
        return picos_of(tariff.rates.cost(cost_figures(tokens, details, is_charged=is_charged)))
    cost = tariff.input * (input_tokens - cached) + tariff.cached_input * cached + tariff.output * output_tokens
    if is_charged:
        cost += tariff.per_call
    return picos_of(cost, tariff.parts_per_pico)
