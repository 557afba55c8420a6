"""The spend of a group, of each limit that binds it."""

from collections.abc import Sequence
from decimal import Decimal

import pytest

from control.errors import UsageUnavailableError
from control.records.spend import SpendReading, SpendUse
from control.resources.spend.group_spend import BoundSpend, read_spend
from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.spend.effective import SpendBound, spend_plan
from policy.spend.limits import SpendLimit

LARGEST = Decimal("999999999999.999999999999")
DAY = SpendLimit(unit=Unit.DAY, amount=Decimal(1), currency="EUR")
MONTH = SpendLimit(unit=Unit.MONTH, amount=LARGEST, currency="EUR")
PLAN = spend_plan(["child", "root"], Enforcement.CASCADING, [[DAY], [MONTH]], [None] * 2)
BEFORE_MIDNIGHT_MS = 1_772_323_199_999  # 2026-02-28T23:59:59.999Z


class Figures:
    """Counters with these uses, asked for once."""

    def __init__(self, *uses: SpendUse) -> None:
        self.uses = uses
        self.questions: list[tuple[tuple[str, ...], str]] = []

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        self.questions.append((tuple(bound.counting_group for bound in bounds), key))
        if not self.uses:
            raise UsageUnavailableError
        return SpendReading(BEFORE_MIDNIGHT_MS, self.uses)


async def test_uses_are_those_of_the_limits_in_order() -> None:
    source = Figures(SpendUse(Decimal("0.25"), Decimal("0.5")), SpendUse(Decimal("1e-22"), Decimal(0)))
    day, month = await read_spend(source, PLAN)
    assert source.questions == [(("child", "root"), "tg:{root|group}")]
    assert (day.bound.limit, day.remaining) == (DAY, Decimal("0.25"))
    assert (month.bound.limit, month.remaining) == (MONTH, Decimal("999999999999.9999999999989999999999"))
    assert (day.resets_at_ms, month.resets_at_ms) == (BEFORE_MIDNIGHT_MS + 1, BEFORE_MIDNIGHT_MS + 1)


@pytest.mark.parametrize(("spent", "rest"), [("1", "0"), ("1.5", "-0.5"), ("1e12", "-999999999999")])
def test_what_is_left_may_be_negative(spent: str, rest: str) -> None:
    use = SpendUse(Decimal(spent), Decimal(0))
    assert BoundSpend(SpendBound(DAY, "child", "child"), use, 0).remaining == Decimal(rest)


async def test_a_group_without_limits_asks_nothing() -> None:
    source = Figures()
    assert await read_spend(source, None) == []
    assert source.questions == []


async def test_counters_that_do_not_answer_are_an_error() -> None:
    with pytest.raises(UsageUnavailableError):
        await read_spend(Figures(), PLAN)


async def test_without_a_source_nothing_counts() -> None:
    day, month = await read_spend(None, PLAN)
    assert (day.use, month.use) == ((Decimal(0), Decimal(0)),) * 2
    assert day.resets_at_ms <= month.resets_at_ms
