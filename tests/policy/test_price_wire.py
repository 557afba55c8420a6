"""The JSON form of a price keeps every digit, and what has a default may be missing."""

from decimal import Decimal
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import Details, Tokens
from policy.price_wire import parse_multiplier, parse_token_count, price_from_wire, price_to_wire
from policy.prices import DAY_MS, LongContext, Price, TokenPrices, cost_figures, token_prices
from policy.snapshot import PriceRow, Wire

AMOUNTS = st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,12})?", fullmatch=True).map(Decimal)
FACTORS = st.from_regex(r"(1000|[0-9]{1,3}(\.[0-9]{1,4})?)", fullmatch=True).map(Decimal)
COUNTS = st.none() | st.integers(1, 1_000_000_000)
LONG_TOKENS = st.builds(
    lambda input, cached, write, output: token_prices(input, output, cached_input=cached, cache_write=write),
    *(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS),
)
PRICES = st.builds(
    Price,
    slug=st.just("acme/chat"),
    valid_from_ms=st.integers(0, 400_000).map(lambda day: day * DAY_MS),
    currency=st.just("EUR"),
    tokens=st.builds(TokenPrices, *[AMOUNTS] * len(TokenPrices._fields)),
    per_call=AMOUNTS,
    per_server_tool_call=AMOUNTS,
    long_context=st.none() | st.builds(LongContext, st.integers(1, 1_000_000_000), LONG_TOKENS),
    service_tiers=st.dictionaries(st.text(min_size=1, max_size=64), FACTORS).map(
        lambda tiers: tuple(sorted(tiers.items()))
    ),
    max_input_tokens=COUNTS,
    max_output_tokens=COUNTS,
)


@given(st.lists(PRICES, min_size=1, max_size=3))
def test_prices_are_equal_after_a_round_trip_through_json(prices: list[Price]) -> None:
    row = PriceRow("acme/chat", "ws_1", tuple(prices))
    assert PriceRow.from_wire("acme/chat", orjson.loads(orjson.dumps(row.to_wire()))) == row


PLAIN = {"valid_from": "2026-11-01", "currency": "EUR", "input_per_million": "1", "output_per_million": "2"}


@pytest.mark.parametrize("absent", [{}, dict.fromkeys(("per_call", "long_context", "service_tiers"))])
def test_missing_and_null_members_have_their_defaults(absent: Wire) -> None:
    price = price_from_wire("acme/chat", PLAIN | absent)
    assert price.tokens == token_prices(Decimal(1), Decimal(2))
    assert price_from_wire("acme/chat", price_to_wire(price)) == price


NEWER = (
    {"weekend_multiplier": "2"},
    {"long_context": {"above_input_tokens": 1, "input_per_million": "1", "output_per_million": "1", "per_call": "9"}},
    {"service_tiers": {"flex": {"multiplier": "1", "from_hour": 3}}},
)


@pytest.mark.parametrize("member", NEWER)
def test_a_row_with_a_member_of_a_newer_version_cannot_be_read(member: Wire) -> None:
    wire = price_to_wire(price_from_wire("acme/chat", PLAIN)) | member
    with pytest.raises(ValueError, match="unknown members"):
        PriceRow.from_wire("acme/chat", {"workspace_id": "ws_1", "prices": [wire]})


@pytest.mark.parametrize("text", ["", "-1", "1e3", ".5", "5.", "0.12345", "1000.1", "1001", "1,5", "1\n", "١"])
def test_a_wrong_factor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0 to 1000"):
        parse_multiplier(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "1000000001", "10000000000", "١"])
def test_a_wrong_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number from 1"):
        parse_token_count(text)


def test_the_largest_and_smallest_numbers_are_read() -> None:
    assert list(map(parse_multiplier, ("0", "0.0001", "999.9999", "1000.0000"))) == list(
        map(Decimal, ("0", "0.0001", "999.9999", "1000"))
    )
    assert list(map(parse_token_count, ("1", "1000000000"))) == [1, 1_000_000_000]


def test_example_of_the_reference_costs_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/usage-reports.md").read_text()
    wire = orjson.loads(page.partition("```\n")[2].partition("```")[0])
    price = price_from_wire(wire.pop("slug"), wire)
    assert price_to_wire(price) == wire
    tokens = Tokens(input=10_000, cached_input=6_000, output=500)
    figures = cost_figures(tokens, Details(cache_write=1_000, server_tool_calls=2))
    cost = price.cost(figures, "priority", is_long=price.is_long(tokens.input))
    assert f"{cost.normalize():f}  EUR" in (Path(__file__).parents[2] / "docs/reference/money.md").read_text()
