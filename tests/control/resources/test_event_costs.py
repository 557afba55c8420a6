"""Costs of single events: every kind of figure at its own price, to the last digit."""

from decimal import Decimal
from typing import Any

import pytest

from control.records.events import ShownEvent
from control.resources.billing.event_costs import EventCosts
from policy.prices import LongContext, Price, token_prices

DAY_MS = 86_400_000
TOKENS = token_prices(
    Decimal(2),
    Decimal(8),
    cached_input=Decimal("0.5"),
    cache_write=Decimal("2.5"),
    cache_write_1h=Decimal(4),
    audio_input=Decimal(10),
    image_input=Decimal(5),
    audio_output=Decimal(20),
    image_output=Decimal(30),
)
PRICE = Price(
    "acme/chat",
    5 * DAY_MS,
    "EUR",
    TOKENS,
    per_call=Decimal("0.01"),
    per_server_tool_call=Decimal("0.02"),
    long_context=LongContext(1000, token_prices(Decimal(4), Decimal(16))),
    service_tiers=(("flex", Decimal("0.5")),),
)
WHOLE = {
    "cache_write_tokens": 200,
    "cache_write_1h_tokens": 50,
    "reasoning_tokens": 77,
    "audio_input_tokens": 30,
    "audio_output_tokens": 40,
    "image_input_tokens": 20,
    "image_output_tokens": 10,
    "server_tool_calls": 3,
}


def cost(price: Price = PRICE, timestamp_ms: int = 6 * DAY_MS, input_tokens: int = 1000, **more: Any) -> Any:
    plain = ShownEvent(timestamp_ms, "key", "req", "acme/chat", "customer", "tg_x", input_tokens, 500, 100)
    return EventCosts([price]).of(plain._replace(status=200, source="REPORTED", **more))


@pytest.mark.parametrize(
    ("more", "amount"),
    [
        # 900 × 2 + 100 × 0.5 + 500 × 8 = 5850
        pytest.param({}, "0.01585", id="input, cached input and output"),
        pytest.param({"charged": 0}, "0.00585", id="a call that costs no per_call"),
        # (650 × 2 + 100 × 0.5 + 150 × 2.5 + 50 × 4 + 30 × 10 + 20 × 5) + (450 × 8 + 40 × 20 + 10 × 30) = 7025
        pytest.param(WHOLE, "0.077025", id="every kind, and three calls of tools"),
        pytest.param({**WHOLE, "service_tier": "flex"}, "0.0735125", id="a tier multiplies what tokens cost alone"),
        pytest.param({"service_tier": "priority"}, "0.01585", id="a tier that is not listed"),
        # 901 × 4 + 100 × 4 + 500 × 16 = 12004
        pytest.param({"input_tokens": 1001}, "0.022004", id="long context"),
        pytest.param({"input_tokens": 1001, "service_tier": "flex"}, "0.016002", id="long context of a tier"),
    ],
)
def test_each_figure_costs_its_own_price(more: dict[str, Any], amount: str) -> None:
    assert cost(**more) == {"amount": amount, "currency": "EUR"}


def test_the_price_that_is_valid_at_the_timestamp_counts() -> None:
    assert cost(timestamp_ms=5 * DAY_MS - 1) is None
    assert cost(timestamp_ms=5 * DAY_MS) is not None
    assert EventCosts([]).of(ShownEvent(0, "key", "req", "acme/chat", "customer", "tg_x", 1, 1, 0)) is None
