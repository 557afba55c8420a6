"""Spend limits as flags say them."""

from typing import Any

import click
import pytest

from commands.editing.spend_limits import changed_spend_limits, parse_spend_limits, spend_limit_text

DAILY = {"unit": "DAY", "amount": "100.00", "currency": "EUR", "enforcement": "SOFT"}
MONTHLY = DAILY | {"unit": "MONTH", "amount": "2000.00"}


def changed(present: list[dict[str, Any]], *texts: str) -> list[Any]:
    command = click.Command("set")
    return changed_spend_limits(present, parse_spend_limits(click.Context(command), click.Option(["--x"]), texts))


@pytest.mark.parametrize("text", ["DAY=100,EUR", "day=100.00,eur", "Day=100.0,EUR,soft"])
def test_spend_limit_is_added_beside_the_others(text: str) -> None:
    assert changed([MONTHLY], text) == [MONTHLY, DAILY]


def test_spend_limit_of_a_unit_is_replaced_or_removed() -> None:
    assert changed([DAILY, MONTHLY], "DAY=0.5,USD") == [DAILY | {"amount": "0.50", "currency": "USD"}, MONTHLY]
    assert changed([DAILY, MONTHLY], "DAY=none") == [MONTHLY]
    assert changed([], "MONTH=NONE") == []
    assert changed([DAILY], "day=100,eur,hard") == [DAILY | {"enforcement": "HARD"}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("DAY", "expected UNIT=AMOUNT,CURRENCY"),
        ("HOUR=1,EUR", "expected UNIT=AMOUNT,CURRENCY"),
        ("DAY=1", "expected UNIT=AMOUNT,CURRENCY"),
        ("DAY=,EUR", "decimal text"),
        ("DAY=-1,EUR", "decimal text"),
        ("DAY=1e3,EUR", "decimal text"),
        ("DAY=1,EURO", "ISO 4217"),
        ("DAY=1,EUR,FIRM", "FIRM is no mode; it is SOFT or HARD"),
    ],
)
def test_other_texts_are_refused_with_the_form(text: str, problem: str) -> None:
    with pytest.raises(click.BadParameter) as raised:
        changed([], text)
    assert problem in str(raised.value)


def test_spend_limit_reads_like_other_limits() -> None:
    assert spend_limit_text(DAILY) == "100.00 EUR/DAY SOFT"
