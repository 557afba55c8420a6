"""A worker's prices of a slug: the one that is valid when a call ends, switching at UTC midnight."""

from dataclasses import replace
from decimal import Decimal

import pytest

from policy.prices import DAY_MS, CostFigures, LongContext, Price, token_prices
from policy.snapshot import PriceRow
from proxy.accounting.slug_prices import SlugPrices, Tariff

INPUT = CostFigures(input=1)


def price(day: int, amount: int, currency: str = "EUR") -> Price:
    long_context = LongContext(100, token_prices(Decimal(amount * 10), Decimal(0)))
    tiers = (("flex", Decimal("0.5")), ("priority", Decimal(2)))
    tokens = token_prices(Decimal(amount), Decimal(0))
    return Price("acme/a", day * DAY_MS, currency, tokens, long_context=long_context, service_tiers=tiers)


def prices(*dated: Price) -> SlugPrices:
    return SlugPrices(PriceRow("acme/a", "ws", dated))


def cost(tariff: Tariff | None) -> int | None:
    """The cost of a token of input, in 10^-16 of the currency: what a price of 1 per million is."""
    return None if tariff is None else tariff.rates.cost(INPUT) // 10**16


MOMENTS = [
    (10 * DAY_MS - 1, None),
    (10 * DAY_MS, 1),
    (20 * DAY_MS - 1, 1),
    (20 * DAY_MS, 2),
    (30 * DAY_MS, 3),
    (99_999 * DAY_MS, 3),
]


@pytest.mark.parametrize("moments", [MOMENTS, MOMENTS[::-1], MOMENTS * 2])
def test_price_switches_at_midnight_in_any_order_of_calls(moments: list[tuple[int, int | None]]) -> None:
    of_slug = prices(price(10, 1), price(20, 2), price(30, 3, "USD"))
    assert [cost(of_slug.tariff(at_ms, "", 1)) for at_ms, _ in moments] == [amount for _, amount in moments]


def test_tier_and_long_context_have_tariffs_of_their_own_and_others_share_one() -> None:
    of_slug = prices(price(10, 2))
    at_ms = 10 * DAY_MS
    costs = {(tier, count): cost(of_slug.tariff(at_ms, tier, count)) for tier in ("", "flex") for count in (100, 101)}
    assert costs == {("", 100): 2, ("", 101): 20, ("flex", 100): 1, ("flex", 101): 10}
    plain = of_slug.tariff(at_ms, "", 1)
    for number in range(1000):  # a provider may report any name
        assert of_slug.tariff(at_ms, f"tier-{number}", 1) is plain
    assert of_slug.tariff(at_ms, "priority", 1) is of_slug.tariff(at_ms, "priority", 2)


def test_currency_is_that_of_the_price_that_is_valid() -> None:
    of_slug = prices(price(10, 1), price(20, 1, "USD"))
    tariffs = [of_slug.tariff(day * DAY_MS, "", 1) for day in (10, 20)]
    assert [tariff.currency for tariff in tariffs if tariff is not None] == ["EUR", "USD"]


DEAREST = [
    (10 * DAY_MS, 10 * DAY_MS, 10),
    (10 * DAY_MS, 15 * DAY_MS - 1, 10),
    (10 * DAY_MS, 15 * DAY_MS, 20),
    (15 * DAY_MS, 20 * DAY_MS, 20),
    (20 * DAY_MS - 1, 25 * DAY_MS, 20),
    (20 * DAY_MS, 30 * DAY_MS - 1, 2),
    (20 * DAY_MS, 35 * DAY_MS, 2),
    (10 * DAY_MS, 35 * DAY_MS, 20),
    (10 * DAY_MS - 1, 35 * DAY_MS, None),
    (35 * DAY_MS, 99_999 * DAY_MS, None),
]


@pytest.mark.parametrize("times", [DEAREST, DEAREST[::-1], DEAREST * 2])
def test_dearest_rate_is_of_the_prices_that_hold_between_two_times(times: list[tuple[int, int, int | None]]) -> None:
    """The `priority` of the first two doubles them."""
    of_slug = prices(price(10, 5), price(15, 10), replace(price(20, 2), service_tiers=()), price(30, 99, "USD"))
    dearest = [of_slug.dearest(from_ms, until_ms, "EUR") for from_ms, until_ms, _ in times]
    assert [None if rates is None else rates.input // 10**16 for rates in dearest] == [input for *_, input in times]
    assert of_slug.dearest(35 * DAY_MS, 36 * DAY_MS, "USD") is not None


def test_dearest_rates_are_kept_while_the_same_prices_hold() -> None:
    of_slug = prices(price(10, 1), price(20, 2))
    rates = of_slug.dearest(11 * DAY_MS, 12 * DAY_MS, "EUR")
    assert of_slug.dearest(13 * DAY_MS, 14 * DAY_MS, "EUR") is rates
    assert of_slug.dearest(13 * DAY_MS, 20 * DAY_MS, "EUR") is not rates
