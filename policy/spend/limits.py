"""A spend limit (unit, amount, currency, enforcement), and the rules for those of a group and of a tree.

See docs/reference/money.md#spend-limits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from policy.limits.kinds import USAGE_UNITS, Unit
from policy.prices import amount_text, parse_amount, parse_currency
from policy.spend.levels import PolicyLevel

Wire = dict[str, Any]
MAX_SPEND_LIMITS = len(USAGE_UNITS)
"""The most spend limits of a group: one per unit."""
SPEND_MEMBERS = frozenset(("unit", "amount", "currency", "enforcement"))
"""The members of a spend limit in the API, in the database and in the snapshot."""


class SpendEnforcement(StrEnum):
    """The point from which calls are refused.

    SOFT: once what is spent and reserved has come to the amount. HARD: where that and the most that the call can cost
    would be above it.
    """

    SOFT = "SOFT"
    HARD = "HARD"

    __hash__ = str.__hash__


_LEVELS = {
    SpendEnforcement.SOFT: PolicyLevel.SOFT_SPEND_LIMITS,
    SpendEnforcement.HARD: PolicyLevel.HARD_SPEND_LIMITS,
}


@dataclass(frozen=True, slots=True)
class SpendLimit:
    """A limit of `amount` of `currency` in one DAY or MONTH, over all slugs of a group."""

    unit: Unit
    amount: Decimal
    currency: str
    enforcement: SpendEnforcement = SpendEnforcement.SOFT

    @property
    def is_hard(self) -> bool:
        return self.enforcement is SpendEnforcement.HARD


class IllegalSpendLimitsError(ValueError):
    """The spend limits of a group break a rule. The message names the rule."""


class TreeCurrencyError(ValueError):
    """Spend limits of one tree have more than one currency."""

    def __init__(self, currencies: Sequence[str]) -> None:
        super().__init__(
            f"all spend limits and balances of a group tree have one currency, not {' and '.join(currencies)}"
        )


def check_spend_limits(limits: Sequence[SpendLimit]) -> None:
    """Raise `IllegalSpendLimitsError` unless each limit has a unit of its own."""
    if any(limit.unit not in USAGE_UNITS for limit in limits):
        raise IllegalSpendLimitsError(f"a spend limit's unit is {' or '.join(USAGE_UNITS)}")
    if len({limit.unit for limit in limits}) < len(limits):
        raise IllegalSpendLimitsError("at most one spend limit per unit; leave out the repeated one")


def level_of(limits: Iterable[SpendLimit]) -> int:
    """The least level of a proxy that can enforce these limits; 0 for none."""
    return max((_LEVELS[limit.enforcement] for limit in limits), default=0)


class HasCurrency(Protocol):
    """A spend limit or a balance."""

    @property
    def currency(self) -> str: ...


def check_currency(amounts: Iterable[HasCurrency]) -> None:
    """Raise `TreeCurrencyError` unless all limits and balances, which are those of one tree, have one currency."""
    currencies = sorted({amount.currency for amount in amounts})
    if len(currencies) > 1:
        raise TreeCurrencyError(currencies)


def amounts(limits: Iterable[SpendLimit]) -> dict[Unit, Decimal]:
    """The amount of each unit: what is compared with other groups of a CASCADING tree."""
    return {limit.unit: limit.amount for limit in limits}


def spend_limit_to_wire(limit: SpendLimit) -> Wire:
    """A spend limit as the API, the database column and the snapshot hold it."""
    return {
        "unit": limit.unit.value,
        "amount": amount_text(limit.amount),
        "currency": limit.currency,
        "enforcement": limit.enforcement.value,
    }


def spend_limits_from_wire(body: Sequence[Wire]) -> tuple[SpendLimit, ...]:
    """The spend limits of a group.

    Raises ValueError, KeyError, TypeError or AttributeError for what this version does not know.
    """
    limits = tuple([spend_limit_from_wire(wire) for wire in body])
    check_spend_limits(limits)
    return limits


def spend_limit_from_wire(wire: Wire) -> SpendLimit:
    """One of them. Raises the same, but for rules that bind several."""
    if unknown := wire.keys() - SPEND_MEMBERS:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    return SpendLimit(
        Unit[wire["unit"]],
        parse_amount(wire["amount"]),
        parse_currency(wire["currency"]),
        SpendEnforcement(wire["enforcement"]),
    )
