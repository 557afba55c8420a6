"""The limits of a key in a worker: beside those of its group, current with the next look-up, one plan for all slugs."""

from decimal import Decimal

import pytest

from policy.credentials import KeyKind
from policy.keys.settings import KeySettings
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.snapshot import KeyRow, Row
from policy.spend.effective import SpendBound, SpendPlan
from policy.spend.key_names import key_plan
from policy.spend.limits import SpendLimit, spend_limit_to_wire
from proxy.directory_values import KeyHolder, SlugRoute
from proxy.errors import PolicyUnavailableError
from tests.contracts.policy.test_replica import World, endpoint, group, workspace
from tests.contracts.policy.test_replica import world as world  # the fixture

FIVE = (Limit(LimitType.REQUEST, Unit.MINUTE, 5),)
SIX = (Limit(LimitType.REQUEST, Unit.MINUTE, 6),)


def key(
    digest: str, limits: tuple[Limit, ...] = (), bucket: str | None = None, spend: tuple[SpendLimit, ...] = ()
) -> Row:
    settings = KeySettings(rate_limits=limits, spend_limits=spend) if limits or spend else None
    row = KeyRow(digest, f"tg_{digest}", KeyKind.FEDERATED, "ws", "leaf", settings, bucket)
    return Row("key", digest, 1, row.to_wire())


def publish(world: World, *keys: Row, of_group: tuple[SpendLimit, ...] = ()) -> None:
    leaf = group("leaf", "root")
    assert leaf.body is not None
    if of_group:
        leaf.body["spend_limits"] = [spend_limit_to_wire(limit) for limit in of_group]
    leaf.body["models"].append({**leaf.body["models"][0], "slug": "acme/b"})
    world.publish(workspace(), endpoint("acme/a"), endpoint("acme/b"), group("root"), leaf, *keys)


def holder_of(world: World, digest: str) -> KeyHolder:
    holder = world.directory.key_holder(digest)
    assert holder is not None
    return holder


def route(world: World, digest: str, slug: str = "acme/a", holder: KeyHolder | None = None) -> SlugRoute:
    holder = holder or holder_of(world, digest)
    assert holder.group is not None
    found_route = world.directory.slug_route(holder.group, holder.key, slug)
    assert found_route is not None
    return found_route


def test_key_s_limits_bind_beside_those_of_its_group_and_no_other_key(world: World) -> None:
    publish(world, key("limited", FIVE), key("other"))
    own = route(world, "limited")
    assert own.further == (key_plan("root", "tg_limited", FIVE),)
    assert own.further[0].key == "tg:{root|group}"
    assert own.plan == route(world, "other").plan
    assert route(world, "other").further == ()


def test_all_slugs_share_one_plan_and_keep_their_routes(world: World) -> None:
    publish(world, key("limited", FIVE))
    first = route(world, "limited")
    assert route(world, "limited") is first
    assert route(world, "limited", "acme/b").further[0] is first.further[0]


def test_keys_of_a_rotation_count_under_the_name_of_the_first(world: World) -> None:
    publish(world, key("first", FIVE), key("second", FIVE, "tg_first"))
    assert route(world, "second").further == route(world, "first").further


def test_each_change_of_the_limits_is_seen_on_the_next_look_up(world: World) -> None:
    publish(world, key("one"))
    for limits in (FIVE, SIX, (), FIVE):
        world.publish(key("one", limits))
        plans = route(world, "one").further
        assert [bound.limit for plan in plans for bound in plan.bounds] == list(limits)


def test_a_call_whose_body_came_slowly_leaves_no_older_limits_behind(world: World) -> None:
    publish(world, key("one", FIVE))
    before = holder_of(world, "one")
    world.publish(key("one", SIX))
    slow = route(world, "one", holder=before)
    assert [bound.limit for bound in slow.further[0].bounds] == list(SIX)
    assert route(world, "one") is slow


def test_slug_that_the_group_may_not_call_has_no_route(world: World) -> None:
    publish(world, key("one", FIVE))
    holder = holder_of(world, "one")
    assert holder.group is not None
    assert world.directory.slug_route(holder.group, holder.key, "acme/none") is None


DAY_5 = SpendLimit(Unit.DAY, Decimal(5), "EUR")
MONTH_9 = SpendLimit(Unit.MONTH, Decimal(9), "EUR")
NAME = "key_tg_one"


def test_spend_limits_of_the_key_come_before_those_of_its_groups(world: World) -> None:
    publish(world, key("one", spend=(MONTH_9, DAY_5)), key("other"), of_group=(DAY_5,))
    plan = route(world, "one").spend
    assert plan is not None
    own = (SpendBound(DAY_5, NAME, NAME), SpendBound(MONTH_9, NAME, NAME))
    assert plan == SpendPlan(
        "leaf", "tg:{root|group}", (NAME, "leaf", "root"), "EUR", (*own, SpendBound(DAY_5, "leaf", "leaf"))
    )
    assert route(world, "one", "acme/b").spend is plan
    others = route(world, "other").spend
    assert others is not None
    assert others.groups == ("leaf", "root")


def test_key_without_spend_limits_shares_the_plan_of_its_group(world: World) -> None:
    publish(world, key("one", FIVE), of_group=(DAY_5,))
    holder = holder_of(world, "one")
    assert holder.group is not None
    assert route(world, "one").spend is holder.group.spend is not None


def test_changes_of_the_group_and_of_the_key_are_seen_on_the_next_look_up(world: World) -> None:
    publish(world, key("one", spend=(DAY_5,)))
    for of_group, of_key in (((), (DAY_5,)), ((MONTH_9,), (DAY_5,)), ((MONTH_9,), (MONTH_9,)), ((MONTH_9,), ())):
        publish(world, key("one", spend=of_key), of_group=of_group)
        plan = route(world, "one").spend
        assert plan is not None
        assert [bound.limit for bound in plan.bounds] == [*of_key, *of_group]


def test_two_currencies_are_an_outage_and_never_no_limit(world: World) -> None:
    publish(world, key("one", spend=(SpendLimit(Unit.DAY, Decimal(5), "USD"),)), key("other"), of_group=(DAY_5,))
    with pytest.raises(PolicyUnavailableError):
        route(world, "one")
    assert route(world, "other").spend is not None
