"""A prepaid balance of a group, as policy has it.

See docs/reference/money.md#balances.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from policy.prices import amount_text, parse_amount, parse_currency

Wire = dict[str, Any]
BALANCE_MEMBERS = frozenset(("currency", "deposited"))
"""The members of a balance in the database and in the snapshot."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A prepaid balance. `deposited`: the sum of its credits above 0.

    What is withdrawn counts as drawn, beside what calls cost. So `deposited` only grows, and a proxy that has an older
    one admits less.
    """

    currency: str
    deposited: Decimal


def balance_name(group_id: str) -> str:
    """The name by which a tree's hash counts a group's balance, beside what the groups spend. No group's id has `*`."""
    return f"{group_id}*"


def group_of_balance(name: str) -> str:
    """The group whose balance has this name."""
    return name.removesuffix("*")


def balance_to_wire(balance: Balance) -> Wire:
    """A balance as the database column and the snapshot hold it."""
    return {"currency": balance.currency, "deposited": amount_text(balance.deposited)}


def balance_from_wire(body: Wire | None) -> Balance | None:
    """A group's balance; None if it has none. Raises ValueError, KeyError, TypeError or AttributeError for what this
    version does not know."""
    if body is None:
        return None
    if unknown := body.keys() - BALANCE_MEMBERS:
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    return Balance(parse_currency(body["currency"]), parse_amount(body["deposited"]))
