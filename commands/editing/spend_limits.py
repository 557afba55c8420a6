"""Spend limits on the command line: `DAY=100.00,EUR,HARD`, and how `groups set` changes a list of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from commands.output import Column
from policy.limits.kinds import USAGE_UNITS, Unit
from policy.prices import parse_amount, parse_currency
from policy.spend.limits import SpendEnforcement, SpendLimit, spend_limit_to_wire

_EXPECTED = (
    "expected UNIT=AMOUNT,CURRENCY, such as DAY=100.00,EUR, or UNIT=AMOUNT,CURRENCY,HARD; none in place of"
    " AMOUNT,CURRENCY removes the limit"
)
_NONE = "none"
SPEND_COLUMNS = (
    Column("UNIT", lambda entry: entry["unit"]),
    Column("SPENT", lambda entry: entry["spent"]),
    Column("RESERVED", lambda entry: entry["reserved"]),
    Column("REMAINING", lambda entry: entry["remaining"]),
    Column("LIMIT", lambda entry: entry["amount"]),
    Column("CURRENCY", lambda entry: entry["currency"]),
    Column("ENFORCEMENT", lambda entry: entry["enforcement"]),
    Column("SET BY", lambda entry: entry["source_group"]),
    Column("RESET", lambda entry: entry["reset_at"]),
)
"""The columns of what is spent of spend limits, of a group or of a key."""
Wire = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpendLimitChange:
    """The spend limit of a unit. `limit` None removes it."""

    unit: Unit
    limit: SpendLimit | None


def parse_spend_limits(
    _context: click.Context, _option: click.Parameter, texts: Sequence[str]
) -> tuple[SpendLimitChange, ...]:
    """The callback of `--spend-limit`. Raises click.BadParameter."""
    return tuple(_parse(text) for text in texts)


def changed_spend_limits(present: Sequence[Wire], changes: Sequence[SpendLimitChange]) -> list[Wire]:
    """The spend limits with those of the named units added, replaced or removed. Others stay as they are."""
    by_unit = {limit["unit"]: limit for limit in present}
    for change in changes:
        if change.limit is None:
            by_unit.pop(change.unit, None)
        else:
            by_unit[change.unit] = spend_limit_to_wire(change.limit)
    return list(by_unit.values())


def spend_limit_text(limit: Wire) -> str:
    """A spend limit as people read it: `100.00 EUR/DAY SOFT`."""
    return f"{limit['amount']} {limit['currency']}/{limit['unit']} {limit['enforcement']}"


def _parse(text: str) -> SpendLimitChange:
    unit_text, _, value = text.partition("=")
    unit = next((unit for unit in USAGE_UNITS if unit == unit_text.upper()), None)
    if unit is None:
        raise click.BadParameter(f"{text!r}: {_EXPECTED}")
    if value.lower() == _NONE:
        return SpendLimitChange(unit, None)
    amount, separator, rest = value.partition(",")
    currency, _, mode = rest.partition(",")
    if not separator:
        raise click.BadParameter(f"{text!r}: {_EXPECTED}")
    try:
        enforcement = SpendEnforcement(mode.upper() or SpendEnforcement.SOFT)
    except ValueError:
        raise click.BadParameter(f"{text!r}: {mode} is no mode; it is {' or '.join(SpendEnforcement)}") from None
    try:
        limit = SpendLimit(unit, parse_amount(amount), parse_currency(currency.upper()), enforcement)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: AMOUNT or CURRENCY {error}") from None
    return SpendLimitChange(unit, limit)
