"""Exact money: no digit is lost, whatever the figures; rounding happens once, half to even."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.prices import (
    DAY_MS,
    Price,
    Usage,
    amount_text,
    date_text,
    parse_amount,
    parse_currency,
    parse_date,
    rounded_text,
    sum_of,
)

AMOUNTS = st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,12})?", fullmatch=True)
TOKENS = st.integers(0, 2**70)


def price(valid_from_ms: int = 0, slug: str = "acme/chat", amounts: tuple[str, ...] = ("1", "1", "1", "1")) -> Price:
    return Price(slug, valid_from_ms, "EUR", *map(Decimal, amounts))


@given(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS), TOKENS, TOKENS, TOKENS)
def test_a_cost_is_exact(amounts: tuple[str, ...], uncached: int, cached: int, output: int) -> None:
    cost = price(amounts=amounts).cost(Usage(7, uncached + cached, output, cached))
    input, cached_input, output_price, per_call = map(Fraction, amounts)
    exact = (input * uncached + cached_input * cached + output_price * output) / 1_000_000 + per_call * 7
    assert Fraction(cost) == exact
    assert Fraction(amount_text(cost)) == exact


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
