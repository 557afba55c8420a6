"""Rules of the group tree: enforcement mode, depth, and thresholds of a child compared with its ancestors.

See docs/reference/management-api.md#the-group-tree.
"""

import pytest

from policy.limits.groups import (
    MAX_DEPTH,
    Enforcement,
    Group,
    GroupRuleError,
    check_depth,
    exceeding,
    inherit_enforcement,
    thresholds,
)
from policy.limits.limit import SlugLimits, limit_of
from tests.policy.limits.trees import group

INDEPENDENT = Enforcement.INDEPENDENT
CASCADING = Enforcement.CASCADING


@pytest.mark.parametrize(
    ("requested", "parent", "mode"),
    [
        (None, None, INDEPENDENT),
        (CASCADING, None, CASCADING),
        (None, group("p", None, CASCADING), CASCADING),
        (CASCADING, group("p", None, CASCADING), CASCADING),
        (None, group("p", None, INDEPENDENT), INDEPENDENT),
    ],
)
def test_a_new_group_inherits_its_enforcement_mode(
    requested: Enforcement | None, parent: Group | None, mode: Enforcement
) -> None:
    assert inherit_enforcement(requested, parent) is mode


@pytest.mark.parametrize(("mode", "parents"), [(CASCADING, INDEPENDENT), (INDEPENDENT, CASCADING)])
def test_a_mode_other_than_the_parents_is_refused(mode: Enforcement, parents: Enforcement) -> None:
    with pytest.raises(GroupRuleError, match=f"must be the parent's, {parents.value}"):
        inherit_enforcement(mode, group("p", None, parents))


def test_a_tree_has_at_most_five_levels() -> None:
    ancestors = [group(f"g{level}") for level in range(MAX_DEPTH)]
    check_depth(ancestors[:4])
    with pytest.raises(GroupRuleError, match="at most 5 levels"):
        check_depth(ancestors)


def models(threshold: int, slug: str = "a/x", type: str = "TOKEN", unit: str = "DAY") -> list[SlugLimits]:
    limit = limit_of(type, unit, threshold)
    rate, usage = ((), (limit,)) if unit == "DAY" else ((limit,), ())
    return [SlugLimits(slug, rate, usage)]


@pytest.mark.parametrize(
    "lower",
    [
        [],
        models(10),
        models(9),
        models(11, slug="a/y"),
        models(11, type="REQUEST"),
        models(11, unit="MINUTE"),
        [SlugLimits("a/x")],
    ],
)
def test_a_child_may_have_at_most_the_parents_threshold(lower: list[SlugLimits]) -> None:
    assert exceeding(thresholds(models(10)), thresholds(lower)) == []


def test_a_child_threshold_above_the_parents_is_refused() -> None:
    (key,) = exceeding(thresholds(models(10)), thresholds([SlugLimits("a/y"), *models(11)]))
    assert key[0] == "a/x"


def test_thresholds_of_different_units_are_not_compared() -> None:
    """A MINUTE ceiling says nothing about a SECOND limit below it: both bind, each in its own window."""
    lower = thresholds(models(11, unit="SECOND"))
    assert exceeding(thresholds(models(10, unit="MINUTE")), lower) == []
