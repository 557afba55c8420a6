"""Answers of the spend limits."""

from decimal import Decimal

import pytest

from policy.limits.kinds import Unit
from policy.spend.effective import SpendBound
from policy.spend.limits import SpendLimit
from proxy.accounting.spend_taken import SpendHit


@pytest.mark.parametrize(("wait_ms", "seconds"), [(1, 1), (1_000, 1), (1_001, 2), (60_000, 60), (86_400_000, 86_400)])
def test_callers_wait_whole_seconds(wait_ms: int, seconds: int) -> None:
    bound = SpendBound(SpendLimit(Unit.DAY, Decimal(1), "EUR"), "g", "g")
    assert SpendHit(bound, wait_ms, is_spent=False).retry_after_s == seconds
