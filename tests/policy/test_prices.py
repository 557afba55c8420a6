"""Exact money: no digit is lost, whatever the figures; rounding happens once, half to even."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import Details, Tokens
from policy.prices import (
    DAY_MS,
    CostFigures,
    LongContext,
    Price,
    amount_text,
    cost_figures,
    date_text,
    parse_amount,
    parse_currency,
    parse_date,
    rounded_text,
    sum_of,
    token_prices,
)

AMOUNTS = st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,12})?", fullmatch=True)
TOKENS = st.integers(0, 2**70)


def price(valid_from_ms: int = 0, slug: str = "acme/chat", amounts: tuple[str, ...] = ("1", "1", "1", "1")) -> Price:
    input, cached_input, output, per_call = map(Decimal, amounts)
    return Price(slug, valid_from_ms, "EUR", token_prices(input, output, cached_input=cached_input), per_call)


@given(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS), TOKENS, TOKENS, TOKENS)
def test_a_cost_is_exact(amounts: tuple[str, ...], uncached: int, cached: int, output: int) -> None:
    cost = price(amounts=amounts).cost(CostFigures(7, uncached + cached, output, cached))
    input, cached_input, output_price, per_call = map(Fraction, amounts)
    exact = (input * uncached + cached_input * cached + output_price * output) / 1_000_000 + per_call * 7
    assert Fraction(cost) == exact
    assert Fraction(amount_text(cost)) == exact


DEAR = token_prices(
    Decimal(3),
    Decimal(15),
    cached_input=Decimal("0.3"),
    cache_write=Decimal("3.75"),
    cache_write_1h=Decimal(6),
    audio_input=Decimal(40),
    image_input=Decimal(10),
    audio_output=Decimal(80),
    image_output=Decimal(60),
)
LONG = LongContext(200_000, token_prices(Decimal(6), Decimal("22.5"), cached_input=Decimal("0.6")))
WHOLE = Price(
    *("acme/chat", 0, "USD", DEAR, Decimal("0.001"), Decimal("0.01"), LONG),
    service_tiers=(("flex", Decimal("0.5")), ("priority", Decimal("1.7501"))),
)
CALLS: list[tuple[str, Tokens, Details, str]] = [
    ("text", Tokens(input=1000, output=100), Details(), "0.0055"),  # and a call
    ("cached", Tokens(input=1000, output=0, cached_input=400), Details(), "0.00292"),  # 600 · 3 + 400 · 0.3, + 0.001
    (
        "written",
        Tokens(input=1000, output=0, cached_input=100),
        Details(cache_write=500, cache_write_1h=200),
        "0.004555",
    ),
    # 400 · 3, 600 · 40, 30 · 15, 20 · 80, and a call
    ("sound", Tokens(input=1000, output=50), Details(audio_input=600, audio_output=20), "0.02825"),
    # 100 · 3, 900 · 10, 50 · 60, and a call
    ("pictures", Tokens(input=1000, output=50), Details(image_input=900, image_output=50), "0.0133"),
    # 50 · .3, 20 · 10, 30 · 40, and a call
    (
        "cached beyond text",
        Tokens(input=100, output=0, cached_input=50),
        Details(audio_input=30, image_input=40),
        "0.002415",
    ),
    # 80 · .3, 20 · 40, and a call
    (
        "cached beyond pictures",
        Tokens(input=100, output=0, cached_input=80),
        Details(audio_input=30, image_input=40),
        "0.001824",
    ),
    ("reasoning", Tokens(input=0, output=100), Details(reasoning=80), "0.0025"),  # output once
    ("tools", Tokens(input=0, output=0), Details(server_tool_calls=3), "0.031"),
    ("at the bound", Tokens(input=200_000, output=0), Details(), "0.601"),
    (
        "above the bound",
        Tokens(input=200_001, output=10),
        Details(audio_output=10),
        "1.201231",
    ),  # 6 · 200 001, 22.5 · 10
    ("half price", Tokens(input=1000, output=100), Details(service_tier="flex"), "0.00325"),  # of tokens only
    ("dearer", Tokens(input=1, output=0), Details(service_tier="priority"), "0.0010052503"),  # 3 · 1.7501
    ("a tier without a factor", Tokens(input=1000, output=100), Details(service_tier="default"), "0.0055"),
    (
        "more parts than input",
        Tokens(input=10, output=0, cached_input=20),
        Details(cache_write=30, audio_input=40),
        "0.001003",
    ),
]


@pytest.mark.parametrize(("tokens", "details", "cost"), [call[1:] for call in CALLS], ids=[call[0] for call in CALLS])
def test_each_token_of_a_call_costs_its_own_price_once(tokens: Tokens, details: Details, cost: str) -> None:
    figures = cost_figures(tokens, details)
    assert WHOLE.cost(figures, details.service_tier, is_long=WHOLE.is_long(tokens.input)) == Decimal(cost)


@given(st.lists(st.tuples(*[st.integers(0, 60)] * 11), min_size=1, max_size=9))
def test_the_cost_of_a_sum_is_the_sum_of_the_costs(calls: list[tuple[int, ...]]) -> None:
    each = [cost_figures(Tokens._make(call[:3]), Details._make((*call[3:], ""))) for call in calls]
    total = CostFigures(*map(sum, zip(*each, strict=True)))
    assert WHOLE.cost(total) == sum(map(WHOLE.cost, each))


@given(st.tuples(*[st.integers(0, 60)] * 11))
def test_no_part_of_a_call_is_negative_and_none_counts_twice(call: tuple[int, ...]) -> None:
    figures = cost_figures(Tokens._make(call[:3]), Details._make((*call[3:], "")))
    assert min(figures) >= 0
    parts = figures.cached_input + figures.cache_write + figures.audio_input + figures.image_input
    assert parts <= figures.input
    assert figures.cache_write_1h <= figures.cache_write
    assert figures.audio_output + figures.image_output <= figures.output


def test_kinds_without_a_price_cost_what_their_default_does() -> None:
    prices = token_prices(Decimal(3), Decimal(15), cache_write=Decimal(4))
    assert prices == tuple(map(Decimal, (3, 3, 4, 4, 3, 3, 15, 15, 15)))


@given(st.lists(AMOUNTS, max_size=9))
def test_sums_are_exact_and_apart_by_currency(texts: list[str]) -> None:
    sums = sum_of((currency, parse_amount(text)) for text in texts for currency in ("USD", "EUR"))
    expected = sum(map(Fraction, texts), Fraction(0))
    assert {name: Fraction(amount) for name, amount in sums.items()} == (
        {"EUR": expected, "USD": expected} if texts else {}
    )


@pytest.mark.parametrize(
    ("currency", "amount", "text"),
    [
        ("EUR", "0.005", "0.00"),
        ("EUR", "0.015", "0.02"),
        ("EUR", "0.0150000000000000001", "0.02"),
        ("EUR", "0.025", "0.02"),
        ("JPY", "2.5", "2"),
        ("KWD", "1.0005", "1.000"),
        ("USD", "123456789012345678901234567890.125", "123456789012345678901234567890.12"),
    ],
)
def test_totals_are_rounded_half_to_even_to_the_minor_unit(currency: str, amount: str, text: str) -> None:
    assert rounded_text(currency, Decimal(amount)) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0.00"), ("3", "3.00"), ("0.1500", "0.15"), ("1E+3", "1000.00"), ("1E-18", f"0.{'0' * 17}1")],
)
def test_amounts_show_all_digits_and_no_exponent(amount: str, text: str) -> None:
    assert amount_text(Decimal(amount)) == text


@pytest.mark.parametrize("text", ["", " 1", "1.", ".5", "+1", "1_000", "Infinity", "٣", "1" * 13])
def test_other_texts_are_no_amounts(text: str) -> None:
    with pytest.raises(ValueError, match="decimal text"):
        parse_amount(text)


def test_dates_are_utc_days() -> None:
    assert parse_date("1970-01-02") == DAY_MS
    assert date_text(2 * DAY_MS - 1) == "1970-01-02"
    assert date_text(parse_date("9999-12-31")) == "9999-12-31"
    for text in ("2026-1-1", "20260101", "2026-W01-1", "2026-13-01", "1969-12-31"):
        with pytest.raises(ValueError, match="must be"):
            parse_date(text)
    with pytest.raises(ValueError, match="ISO 4217"):
        parse_currency("euro")
