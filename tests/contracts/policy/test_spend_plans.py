"""Spend plans in a worker: of the group and those above it, current with the next look-up, one object for all slugs."""

from decimal import Decimal

import pytest

from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.snapshot import Row
from policy.spend.balances import Balance, balance_to_wire
from policy.spend.effective import BalanceBound, SpendBound, SpendPlan
from policy.spend.limits import SpendLimit, spend_limit_to_wire
from proxy.errors import PolicyUnavailableError
from tests.contracts.policy.test_replica import World, endpoint, group, key, workspace
from tests.contracts.policy.test_replica import world as world  # the fixture

DAY_5 = SpendLimit(Unit.DAY, Decimal(5), "EUR")
DAY_9 = SpendLimit(Unit.DAY, Decimal(9), "EUR")
BALANCE = Balance("EUR", Decimal(7))
MONTH_50 = SpendLimit(Unit.MONTH, Decimal(50), "EUR")


def prepaid(row: Row, balance: Balance = BALANCE) -> Row:
    """The row of a group with a balance."""
    assert row.body is not None
    row.body["balance"] = balance_to_wire(balance)
    return row


def spending(
    id: str, parent: str | None, *limits: SpendLimit, mode: Enforcement = Enforcement.CASCADING, models: bool = True
) -> Row:
    row = group(id, parent)
    assert row.body is not None
    row.body["enforcement"] = mode.value
    if models:
        row.body["models"].append({**row.body["models"][0], "slug": "acme/b"})
    if limits:
        row.body["spend_limits"] = [spend_limit_to_wire(limit) for limit in limits]
    return row


def publish(world: World, *groups: Row, reset: bool = False) -> None:
    world.publish(workspace(), endpoint("acme/a"), endpoint("acme/b"), key("d", "leaf"), *groups, reset=reset)


def plan(world: World, slug: str = "acme/a") -> SpendPlan | None:
    """The spend plan of a call of the lowest group's key."""
    holder = world.directory.key_holder("d")
    assert holder is not None
    assert holder.group is not None
    route = world.directory.slug_route(holder.group, holder.key, slug)
    assert route is not None
    assert route.spend == holder.group.spend
    return route.spend


def test_cascading_group_is_bound_by_each_group_up_the_tree(world: World) -> None:
    publish(world, spending("root", None, DAY_9, MONTH_50), spending("mid", "root"), spending("leaf", "mid", DAY_5))
    bounds = (
        SpendBound(DAY_5, "leaf", "leaf"),
        SpendBound(DAY_9, "root", "root"),
        SpendBound(MONTH_50, "root", "root"),
    )
    assert plan(world) == SpendPlan("leaf", "tg:{root|group}", ("leaf", "mid", "root"), "EUR", bounds)


def test_independent_group_is_bound_by_the_nearest_of_each_unit(world: World) -> None:
    mode = Enforcement.INDEPENDENT
    publish(world, spending("root", None, DAY_9, MONTH_50, mode=mode), spending("leaf", "root", DAY_5, mode=mode))
    bounds = (SpendBound(DAY_5, "leaf", "leaf"), SpendBound(MONTH_50, "root", "leaf"))
    assert plan(world) == SpendPlan("leaf", "tg:{root|group}", ("leaf",), "EUR", bounds)


def test_group_without_spend_limits_up_its_tree_has_no_plan(world: World) -> None:
    publish(world, spending("root", None), spending("leaf", "root"), spending("beside", "root", DAY_5))
    assert plan(world) is None
    empty = spending("root", None)
    assert empty.body is not None
    empty.body["spend_limits"] = []
    world.publish(empty)
    assert plan(world) is None


def test_external_id_that_looks_like_a_spend_limit_is_none(world: World) -> None:
    row = spending("leaf", None)
    assert row.body is not None
    row.body["external_entity_id"] = '"spend_limits":[1]'
    publish(world, row)
    assert plan(world) is None


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("changed", ["root", "leaf"])
def test_each_change_of_a_group_above_is_seen_on_the_next_lookup(world: World, changed: str, reset: bool) -> None:
    groups = {"root": spending("root", None), "leaf": spending("leaf", "root")}
    publish(world, *groups.values())
    assert plan(world) is None
    for limits in ((DAY_5,), (DAY_9,), (DAY_9, MONTH_50), (), (DAY_5,)):
        groups[changed] = spending(changed, None if changed == "root" else "root", *limits)
        if reset:
            publish(world, *groups.values(), reset=True)
        else:
            world.publish(groups[changed])
        current = plan(world)
        assert (() if current is None else tuple(bound.limit for bound in current.bounds)) == limits


def test_all_slugs_and_keys_of_a_group_share_one_plan_until_policy_changes(world: World) -> None:
    publish(world, spending("root", None, DAY_5), spending("leaf", "root"))
    world.publish(key("e", "leaf"))
    first = plan(world)
    other = world.directory.key_holder("e")
    assert other is not None
    assert other.group is not None
    assert plan(world, "acme/b") is other.group.spend is first
    world.publish(spending("elsewhere", None, DAY_9), endpoint("acme/a", "other"))
    assert plan(world) is first
    world.publish(spending("root", None, DAY_9))
    assert plan(world) is not first


@pytest.mark.parametrize("limits", [(), (DAY_9,)])
def test_route_of_a_call_whose_body_came_slowly_has_the_limits_of_now(
    world: World, limits: tuple[SpendLimit, ...]
) -> None:
    """The call was authenticated before the limit changed. What is cached binds later calls too."""
    publish(world, spending("root", None, *limits), spending("leaf", "root"))
    holder = world.directory.key_holder("d")
    assert holder is not None
    assert holder.group is not None
    world.publish(spending("root", None, DAY_5))
    for _ in range(2):
        route = world.directory.slug_route(holder.group, holder.key, "acme/a")
        assert route is not None
        assert route.spend is not None
        assert [bound.limit for bound in route.spend.bounds] == [DAY_5]
    assert route is not None
    assert plan(world) is route.spend


def test_two_currencies_in_a_tree_are_refused(world: World) -> None:
    """Control allows one. Which amounts would count is unknown."""
    dollars = SpendLimit(Unit.DAY, Decimal(5), "USD")
    publish(world, spending("root", None, dollars), spending("leaf", "root", DAY_5))
    with pytest.raises(PolicyUnavailableError):
        world.directory.key_holder("d")


@pytest.mark.parametrize("mode", Enforcement)
def test_group_draws_from_the_nearest_balance_up_its_path(world: World, mode: Enforcement) -> None:
    root = prepaid(spending("root", None, DAY_9, mode=mode), Balance("EUR", Decimal(100)))
    mid = prepaid(spending("mid", "root", mode=mode))
    publish(world, root, mid, spending("leaf", "mid", mode=mode))
    current = plan(world)
    assert current is not None
    assert current.balance == BalanceBound(BALANCE, "mid")
    assert current.groups == (("leaf", "mid", "root") if mode is Enforcement.CASCADING else ("leaf",)) + ("mid*",)
    assert current.is_hard


def test_balance_alone_makes_a_plan(world: World) -> None:
    publish(world, prepaid(spending("root", None)), spending("leaf", "root"))
    assert plan(world) == SpendPlan(
        "leaf", "tg:{root|group}", ("leaf", "root", "root*"), "EUR", (), BalanceBound(BALANCE, "root")
    )


@pytest.mark.parametrize("changed", ["root", "leaf"])
def test_each_change_of_a_balance_is_seen_on_the_next_lookup(world: World, changed: str) -> None:
    publish(world, spending("root", None), spending("leaf", "root"))
    assert plan(world) is None
    for balance in (BALANCE, Balance("EUR", Decimal(99)), None, BALANCE):
        row = spending(changed, None if changed == "root" else "root")
        world.publish(row if balance is None else prepaid(row, balance))
        current = plan(world)
        bound = None if current is None else current.balance
        assert bound == (None if balance is None else BalanceBound(balance, changed))


def test_balance_in_another_currency_than_the_trees_limits_is_refused(world: World) -> None:
    publish(world, prepaid(spending("root", None), Balance("USD", Decimal(7))), spending("leaf", "root", DAY_5))
    with pytest.raises(PolicyUnavailableError):
        world.directory.key_holder("d")
