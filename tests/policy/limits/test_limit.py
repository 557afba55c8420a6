"""Checks which sets of limits are legal (docs/reference/management-api.md#limit-objects)."""

import pytest

from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import MAX_THRESHOLD, IllegalLimitsError, Limit, SlugLimits, check_slug_limits

REQUEST = LimitType.REQUEST
TOKEN = LimitType.TOKEN
IN_FLIGHT = LimitType.CONCURRENT_REQUEST
SECOND = Unit.SECOND
MINUTE = Unit.MINUTE
DAY = Unit.DAY


def entry(rate: tuple[Limit, ...] = (), usage: tuple[Limit, ...] = (), slug: str = "a/b") -> SlugLimits:
    return SlugLimits(slug, rate, usage)


@pytest.mark.parametrize(
    "legal",
    [
        entry(),
        entry((Limit(REQUEST, SECOND, 1), Limit(TOKEN, MINUTE, MAX_THRESHOLD))),
        entry((Limit(REQUEST, MINUTE, 5),), (Limit(REQUEST, DAY, 5), Limit(TOKEN, DAY, 5))),
        entry((Limit(REQUEST, SECOND, 0),), (Limit(TOKEN, DAY, 0), Limit(TOKEN, Unit.MONTH, 5))),
    ],
)
def test_legal_limits_pass(legal: SlugLimits) -> None:
    check_slug_limits(legal)
    assert legal.limits == legal.rate_limits + legal.usage_limits


@pytest.mark.parametrize(
    ("illegal", "says"),
    [
        (entry((Limit(REQUEST, DAY, 1),)), "per DAY or MONTH belong in usage_limits"),
        (entry(usage=(Limit(TOKEN, MINUTE, 1),)), "per SECOND or MINUTE belong in rate_limits"),
        (entry((Limit(REQUEST, SECOND, 1), Limit(REQUEST, MINUTE, 9))), "at most one rate limit per type"),
        (entry((Limit(IN_FLIGHT, SECOND, 1), Limit(IN_FLIGHT, MINUTE, 9))), "at most one rate limit per type"),
        (entry(usage=(Limit(IN_FLIGHT, DAY, 1),)), "a usage limit's type is REQUEST or TOKEN or"),
        (entry(usage=(Limit(TOKEN, DAY, 1), Limit(TOKEN, DAY, 2))), "at most one usage limit per type and unit"),
        (entry((Limit(TOKEN, SECOND, -1),)), "from 0 to"),
        (entry(usage=(Limit(TOKEN, DAY, MAX_THRESHOLD + 1),)), "from 0 to"),
    ],
)
def test_illegal_limits_are_refused_with_the_rule_and_the_slug(illegal: SlugLimits, says: str) -> None:
    with pytest.raises(IllegalLimitsError, match=says) as caught:
        check_slug_limits(illegal)
    assert "a/b" in str(caught.value)


@pytest.mark.parametrize(("unit", "is_rate"), [(SECOND, True), (MINUTE, True), (DAY, False)])
def test_only_day_limits_are_not_rate_limits(unit: Unit, is_rate: bool) -> None:
    assert Limit(REQUEST, unit, 1).is_rate is is_rate
