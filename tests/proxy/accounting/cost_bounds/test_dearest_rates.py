"""The dearest rates: of each part over all prices, tiers and lengths that may hold."""

from dataclasses import replace
from decimal import Decimal

import pytest

from policy.prices import CostFigures, LongContext, Price
from proxy.accounting.cost_bounds.dearest_rates import UNBOUNDED, dearest_rates
from tests.proxy.accounting.cost_bounds.calls import A_MILLIONTH, ONE, price, tokens

FLEX = ("flex", Decimal("0.5"))
PRIORITY = ("priority", Decimal("1.75"))


@pytest.mark.parametrize(
    ("prices", "input", "output"),
    [
        ([price(2, 10)], 2, 10),
        ([price(2, 10), price(3, 7)], 3, 10),
        ([replace(price(2, 10), tokens=tokens(2, 10, cached_input=1, cache_write="2.5"))], "2.5", 10),
        ([replace(price(2, 10), tokens=tokens(2, 10, cache_write="2.5", cache_write_1h=4))], 4, 10),
        ([replace(price(2, 10), tokens=tokens(2, 10, cached_input=9))], 9, 10),
        ([replace(price(2, 10), tokens=tokens(2, 10, audio_input=40, audio_output=80))], 40, 80),
        ([replace(price(2, 10), tokens=tokens(2, 10, image_input=8, image_output=30))], 8, 30),
        ([price(2, 10, service_tiers=(FLEX,))], 2, 10),
        ([price(2, 10, service_tiers=(FLEX, PRIORITY))], "3.5", "17.5"),
        ([price(2, 10, service_tiers=(PRIORITY,)), price(3, 20)], "3.5", 20),
    ],
)
def test_dearest_rate_of_each_part_counts(prices: list[Price], input: int | str, output: int | str) -> None:
    rates = dearest_rates(prices)
    assert rates.input == Decimal(input) * A_MILLIONTH
    assert rates.output == Decimal(output) * A_MILLIONTH


def test_prices_of_a_call_and_of_a_tool_call_have_no_tier() -> None:
    rates = dearest_rates([price(per_call=Decimal(3), per_server_tool_call=Decimal("0.01"), service_tiers=(PRIORITY,))])
    assert (rates.per_call, rates.per_server_tool_call) == (3 * ONE, ONE // 100)
    assert rates.cost(CostFigures(charged_calls=1, server_tool_calls=2)) == 3 * ONE + ONE // 50


def test_long_context_counts_where_the_input_may_be_above_its_bound() -> None:
    at_100 = price(2, 10, long_context=LongContext(100, tokens(4, 15)))
    at_200 = price(3, 9, long_context=LongContext(200, tokens(1, 50)))
    rates = dearest_rates([at_100, at_200])
    rates_by_input = {
        count: (rates.at(count).input // A_MILLIONTH, rates.at(count).output // A_MILLIONTH)
        for count in (0, 100, 101, 200, 201, UNBOUNDED)
    }
    assert rates_by_input == {0: (3, 10), 100: (3, 10), 101: (4, 15), 200: (4, 15), 201: (4, 50), UNBOUNDED: (4, 50)}


@pytest.mark.parametrize(
    ("figures", "largest"), [([None], None), ([5], 5), ([5, 9], 9), ([5, None], None), ([None, 5], None)]
)
def test_most_tokens_are_known_if_each_price_tells_them(figures: list[int | None], largest: int | None) -> None:
    rates = dearest_rates([price(max_input_tokens=figure, max_output_tokens=figure) for figure in figures])
    assert (rates.max_input_tokens, rates.max_output_tokens) == (largest, largest)
