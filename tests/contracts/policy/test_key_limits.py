"""The limits of a key in a worker: beside those of its group, current with the next look-up, one plan for all slugs."""

from policy.credentials import KeyKind
from policy.keys.limits import key_plan
from policy.keys.settings import KeySettings
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.snapshot import KeyRow, Row
from proxy.directory_values import KeyHolder, SlugRoute
from tests.contracts.policy.test_replica import World, endpoint, group, workspace
from tests.contracts.policy.test_replica import world as world  # the fixture

FIVE = (Limit(LimitType.REQUEST, Unit.MINUTE, 5),)
SIX = (Limit(LimitType.REQUEST, Unit.MINUTE, 6),)


def key(digest: str, limits: tuple[Limit, ...] = (), bucket: str | None = None) -> Row:
    settings = KeySettings(rate_limits=limits) if limits else None
    row = KeyRow(digest, f"tg_{digest}", KeyKind.FEDERATED, "ws", "leaf", settings, bucket)
    return Row("key", digest, 1, row.to_wire())


def publish(world: World, *keys: Row) -> None:
    leaf = group("leaf", "root")
    assert leaf.body is not None
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
