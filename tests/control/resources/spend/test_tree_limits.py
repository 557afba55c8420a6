"""The rules for the spend limits of one group. Those of a tree: tests/control/api/test_group_spend_limits.py."""

from decimal import Decimal

import pytest

from control.errors import InvalidFieldError
from control.resources.spend.tree_limits import checked_spend_limits
from policy.limits.kinds import Unit
from policy.spend.limits import SpendLimit


def limit(unit: Unit, currency: str = "EUR") -> SpendLimit:
    return SpendLimit(unit=unit, amount=Decimal(1), currency=currency)


def test_limits_are_ordered_by_unit() -> None:
    month, day = limit(Unit.MONTH), limit(Unit.DAY)
    assert checked_spend_limits([month, day]) == (day, month)
    assert checked_spend_limits([]) == ()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ([limit(Unit.DAY), limit(Unit.DAY)], "at most one spend limit per unit"),
        ([limit(Unit.MINUTE)], "unit is DAY or MONTH"),
        ([limit(Unit.DAY), limit(Unit.MONTH, "USD")], "not EUR and USD"),
    ],
)
def test_limits_that_break_a_rule_are_refused(limits: list[SpendLimit], message: str) -> None:
    with pytest.raises(InvalidFieldError, match=message) as refused:
        checked_spend_limits(limits)
    assert refused.value.field == "spend_limits"
