"""Checks which limits bind a call, against a brute-force statement of the rule.

See docs/reference/limits.md#which-limits-bind.
"""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.limits.effective import Bound, bounds_of_each, limit_set, plan_for
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import KINDS, LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from tests.policy.limits.trees import SLUGS, group, levels_for, paths

INDEPENDENT = Enforcement.INDEPENDENT
CASCADING = Enforcement.CASCADING


def rpm(threshold: int) -> Limit:
    return Limit(LimitType.REQUEST, Unit.MINUTE, threshold)


def tpd(threshold: int) -> Limit:
    return Limit(LimitType.TOKEN, Unit.DAY, threshold)


def bounds_of(path: Sequence[Group], slug: str) -> tuple[Bound, ...]:
    """The limits that bind a call of `path[0]`, which may call the slug."""
    own, *above = levels_for(path, slug)
    plan = plan_for(path, slug, [own or limit_set(()), *above])
    assert plan is not None
    return plan.bounds


def configured_limits(group: Group, slug: str) -> list[Limit]:
    return [limit for entry in group.models if entry.slug == slug for limit in entry.limits]


def brute_force(path: tuple[Group, ...], slug: str) -> set[Bound]:
    """The rule, tuple by tuple, as docs/reference/limits.md states it."""
    bounds: set[Bound] = set()
    for kind, unit in product(LimitType, Unit):
        if kind is LimitType.CONCURRENT_REQUEST and unit is not Unit.SECOND:
            continue
        configuring = [
            (g, limit)
            for g in path
            for limit in configured_limits(g, slug)
            if limit.type is kind and (limit.unit is unit or kind is LimitType.CONCURRENT_REQUEST)
        ]
        if path[0].enforcement is CASCADING:
            bounds |= {Bound(limit, g.id, g.id) for g, limit in configuring}
        elif configuring:
            nearest, limit = configuring[0]
            bounds.add(Bound(limit, nearest.id, path[0].id))
    return bounds


@given(paths(), st.sampled_from(SLUGS))
def test_bounds_equal_those_of_the_brute_force_rule(path: tuple[Group, ...], slug: str) -> None:
    bounds = bounds_of(path, slug)
    assert set(bounds) == brute_force(path, slug)
    assert len(bounds) == len(set(bounds))


@given(paths(), st.sampled_from(SLUGS))
def test_bounds_are_in_the_order_of_trial(path: tuple[Group, ...], slug: str) -> None:
    """The calling group, then its ancestors; in each the kinds as the table has them."""
    depth = {g.id: level for level, g in enumerate(path)}
    order = [(depth[b.counting_group], KINDS.index((b.limit.type, b.limit.unit))) for b in bounds_of(path, slug)]
    assert order == sorted(order)


@given(paths(), st.sampled_from([*SLUGS, "a/z"]))
def test_ancestors_add_limits_but_never_access(path: tuple[Group, ...], slug: str) -> None:
    plan = plan_for(path, slug, levels_for(path, slug))
    assert (plan is not None) == any(entry.slug == slug for entry in path[0].models)
    if plan is not None:
        owner = path[-1].id if path[0].enforcement is CASCADING else path[0].id
        assert (plan.slug, plan.group_id) == (slug, path[0].id)
        assert plan.key == f"tg:{{{owner}|{slug}}}"


@given(paths())
def test_all_slugs_of_a_group_have_the_bounds_of_each_alone(path: tuple[Group, ...]) -> None:
    assert dict(bounds_of_each(path)) == {entry.slug: bounds_of(path, entry.slug) for entry in path[0].models}


@pytest.mark.parametrize(
    ("mode", "bounds"),
    [
        (INDEPENDENT, [(rpm(50), "kid", "kid"), (tpd(7), "top", "kid")]),
        (CASCADING, [(rpm(50), "kid", "kid"), (rpm(10), "top", "top"), (tpd(7), "top", "top")]),
    ],
)
def test_child_limit_overrides_or_adds(mode: Enforcement, bounds: list[tuple[Limit, str, str]]) -> None:
    kid = group("kid", "top", mode, SlugLimits("a/x", (rpm(50),)))
    top = group("top", None, mode, SlugLimits("a/x", (rpm(10),), (tpd(7),)), SlugLimits("a/y", (rpm(1),)))
    assert bounds_of([kid, top], "a/x") == tuple(Bound(*bound) for bound in bounds)


def test_group_inherits_the_other_unit_of_a_type_that_it_limits() -> None:
    per_second = Limit(LimitType.REQUEST, Unit.SECOND, 1)
    kid = group("kid", "top", INDEPENDENT, SlugLimits("a/x", (rpm(50),)))
    top = group("top", None, INDEPENDENT, SlugLimits("a/x", (per_second,)))
    assert [b.limit for b in bounds_of([kid, top], "a/x")] == [per_second, rpm(50)]


def test_slug_without_limits_has_a_plan_without_bounds() -> None:
    plan = plan_for([group("g", None, INDEPENDENT)], "a/x", [limit_set(())])
    assert plan is not None
    assert plan.bounds == ()
