"""The price of calls of a day is the slug's latest one that is valid."""

from decimal import Decimal

from control.edges.sql.billing.sum_records import RateKey
from control.resources.billing.report_groups import PricedSlug, PricedSlugs
from policy.prices import LongContext, Price, token_prices

PLAIN = token_prices(Decimal(1), Decimal(1))


def price(valid_from_ms: int, slug: str = "acme/chat") -> Price:
    return Price(slug, valid_from_ms, "EUR", PLAIN)


def priced_at(prices: PricedSlugs, at_ms: int, text: str = "acme/chat") -> PricedSlug:
    return prices.at(RateKey.from_text(text), at_ms)


def test_the_price_of_a_time_is_the_latest_that_is_valid() -> None:
    january = price(10)
    march = price(30)
    other = price(20, "acme/b")
    priced = PricedSlugs([march, other, january])
    assert [priced_at(priced, at).price for at in (9, 10, 29, 30, 99)] == [None, january, january, march, march]
    assert [priced_at(priced, at).until_ms for at in (9, 10)] == [10, 30]
    assert priced_at(priced, 99, "acme/c").price is None


def test_calls_with_the_same_rates_are_of_the_same_price() -> None:
    """A tier that the price does not list, and a bound below its own, make no difference."""
    long_context = LongContext(1000, PLAIN)
    whole = Price("acme/chat", 0, "EUR", PLAIN, long_context=long_context, service_tiers=(("flex", Decimal(2)),))
    prices = PricedSlugs([whole])
    assert prices.bounds == {1000}
    plain = priced_at(prices, 5)
    for text in ("acme/chat 999 ", "acme/chat 0 other", "acme/chat 999 a b"):
        assert priced_at(prices, 5, text) is plain
    flex = priced_at(prices, 5, "acme/chat 0 flex")
    long = priced_at(prices, 5, "acme/chat 1000 other")
    assert (flex.service_tier, flex.is_long) == ("flex", False)
    assert (long.service_tier, long.is_long) == ("", True)
    assert priced_at(prices, 5, "acme/chat 128000 ") is long
