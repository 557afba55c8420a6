"""The cost of a call, as spend limits reserve it: sums by hand, rounded up to 10^-12, and what has none."""

from decimal import Decimal

import pytest

from policy.billing import Details, Tokens
from policy.limits.settlement import Estimate
from policy.prices import DAY_MS, LongContext, Price, token_prices
from policy.snapshot import PriceRow
from policy.spend.spend_hash import MAX_PICOS
from proxy.accounting.call_costs import billed_picos, expected_picos
from proxy.accounting.metering import Bill
from proxy.accounting.slug_prices import SlugPrices

START_MS = 20_000 * DAY_MS
PICOS = 10**12


def prices_of(*prices: Price) -> SlugPrices:
    return SlugPrices(PriceRow("acme/chat", "ws_1", prices))


def price(start_ms: int = START_MS, currency: str = "EUR", **more: object) -> Price:
    amounts = token_prices(Decimal(2), Decimal(8), cached_input=Decimal("0.5"))
    return Price("acme/chat", start_ms, currency, amounts, per_call=Decimal("0.001"), **more)  # type: ignore[arg-type]  # any member


TIERS = (("flex", Decimal("0.5")),)
LONG = LongContext(1000, token_prices(Decimal(4), Decimal(16)))


@pytest.mark.parametrize(
    ("estimate", "picos"),
    [
        # 300 × 2 + 100 × 8 millionths, and 0.001 for the call
        (Estimate(expected=400, output=100), 2_400 * 10**6),
        # above 1000 of input: 1001 × 4 + 10 × 16 millionths, and 0.001
        (Estimate(expected=1_011, output=10), 5_164 * 10**6),
        (Estimate(expected=0), 1_000 * 10**6),
    ],
)
def test_expected_cost_is_that_of_the_estimate_without_a_tier(estimate: Estimate, picos: int) -> None:
    prices = prices_of(price(service_tiers=TIERS, long_context=LONG))
    assert expected_picos(prices, "EUR", START_MS, estimate) == picos


@pytest.mark.parametrize("currency", ["USD", "eur"])
def test_price_in_another_currency_is_none(currency: str) -> None:
    assert expected_picos(prices_of(price()), currency, START_MS, Estimate(10)) is None


def test_call_before_the_first_price_and_slug_without_one_have_no_expected_cost() -> None:
    assert expected_picos(prices_of(price()), "EUR", START_MS - 1, Estimate(10)) is None
    assert expected_picos(None, "EUR", START_MS, Estimate(10)) is None


def test_price_changes_at_midnight() -> None:
    prices = prices_of(price(), price(START_MS + DAY_MS, "USD"))
    assert expected_picos(prices, "EUR", START_MS + DAY_MS - 1, Estimate(0)) == PICOS // 1000
    assert expected_picos(prices, "EUR", START_MS + DAY_MS, Estimate(0)) is None


@pytest.mark.parametrize(
    ("bill", "is_charged", "picos"),
    [
        # 200 × 2 + 100 × 0.5 + 50 × 8 millionths, and 0.001
        (Bill(Tokens(input=300, output=50, cached_input=100)), True, 1_850 * 10**6),
        (Bill(Tokens(input=300, output=50, cached_input=100)), False, 850 * 10**6),
        # the same at half of the price
        (Bill(Tokens(input=300, output=50, cached_input=100), Details(service_tier="flex")), False, 425 * 10**6),
    ],
)
def test_billed_cost_is_that_of_the_event(bill: Bill, is_charged: bool, picos: int) -> None:
    prices = prices_of(price(service_tiers=TIERS))
    assert billed_picos(prices, "EUR", START_MS, bill, is_charged=is_charged) == picos


def test_cost_in_another_currency_reserves_nothing() -> None:
    assert billed_picos(prices_of(price()), "USD", START_MS, Bill(Tokens(input=300)), is_charged=True) == 0


def test_part_of_a_pico_is_rounded_up_and_a_huge_cost_is_bounded() -> None:
    tiny = Price("acme/chat", START_MS, "EUR", token_prices(Decimal("0.000000000001"), Decimal(0)))
    assert billed_picos(prices_of(tiny), "EUR", START_MS, Bill(Tokens(input=1)), is_charged=True) == 1
    huge = Price("acme/chat", START_MS, "EUR", token_prices(Decimal(10**12 - 1), Decimal(0)))
    bill = Bill(Tokens(input=2**53))
    assert billed_picos(prices_of(huge), "EUR", START_MS, bill, is_charged=True) == MAX_PICOS
