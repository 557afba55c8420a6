"""Limits of each enforcement need proxies of a level, and make a plan HARD."""

from decimal import Decimal

import pytest

from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.spend.balances import Balance
from policy.spend.effective import spend_plan
from policy.spend.limits import SpendEnforcement, SpendLimit, level_of

SOFT = SpendLimit(Unit.DAY, Decimal(1), "EUR")
HARD = SpendLimit(Unit.MONTH, Decimal(1), "EUR", SpendEnforcement.HARD)


@pytest.mark.parametrize(("limits", "level"), [((), 0), ((SOFT,), 1), ((HARD,), 2), ((SOFT, HARD), 2)])
def test_the_strictest_limit_has_the_level(limits: tuple[SpendLimit, ...], level: int) -> None:
    assert level_of(limits) == level


@pytest.mark.parametrize("enforcement", Enforcement)
def test_one_hard_limit_makes_a_plan_hard(enforcement: Enforcement) -> None:
    for upper, is_hard in (((SOFT,), False), ((HARD,), True), ((SOFT, HARD), True)):
        plan = spend_plan(("leaf", "root"), enforcement, [(SOFT,), upper], [None] * 2)
        assert plan is not None
        assert plan.is_hard == is_hard
    same_unit = SpendLimit(Unit.DAY, Decimal(1), "EUR", SpendEnforcement.HARD)
    plan = spend_plan(("leaf", "root"), enforcement, [(SOFT,), (same_unit,)], [None] * 2)
    assert plan is not None
    assert plan.is_hard == (enforcement is Enforcement.CASCADING), "the nearest limit of a unit counts"


@pytest.mark.parametrize("enforcement", Enforcement)
def test_a_balance_makes_a_plan_hard(enforcement: Enforcement) -> None:
    for limits in ((), (SOFT,)):
        plan = spend_plan(("leaf", "root"), enforcement, [limits, ()], [None, Balance("EUR", Decimal(1))])
        assert plan is not None
        assert plan.is_hard
