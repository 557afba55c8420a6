"""The price of calls of a day is the slug's latest one that is valid."""

from decimal import Decimal

from control.resources.billing.report_groups import PricedSlugs
from policy.prices import Price, token_prices


def price(valid_from_ms: int, slug: str = "acme/chat") -> Price:
    return Price(slug, valid_from_ms, "EUR", token_prices(Decimal(1), Decimal(1)))


def test_the_price_of_a_time_is_the_latest_that_is_valid() -> None:
    january = price(10)
    march = price(30)
    other = price(20, "acme/b")
    priced = PricedSlugs([march, other, january])
    assert [priced.at("acme/chat", at).price for at in (9, 10, 29, 30, 99)] == [None, january, january, march, march]
    assert [priced.at("acme/chat", at).until_ms for at in (9, 10)] == [10, 30]
    assert priced.at("acme/c", 99).price is None
