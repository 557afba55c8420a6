"""Group usage: one entry per slug and type of daily limit. Of several limits, the one that refuses first is shown.

See docs/reference/management-api.md#group-usage.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from control import app
from control.api.protocol.times import parse_time_ns
from control.resources.group_usage import DayUsage, daily_limits_by_slug, usage_entries
from control.resources.groups import read_group
from policy.groups import Enforcement, Group
from policy.limits.counter_layout import EXPIRY_S
from policy.limits.effective import plan_for
from policy.limits.limit import Limit, LimitType, SlugLimits, Unit
from policy.limits.settlement import Settlement
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import RedisCounters
from tests.control.plane import SLUG, ControlPlane, running_plane
from tests.redis_server import private_redis


def day(threshold: int, type: LimitType = LimitType.REQUEST) -> Limit:
    return Limit(type, Unit.DAY, threshold)


def group(id: str, *limits: Limit, mode: Enforcement = Enforcement.CASCADING) -> Group:
    return Group(id, "ws", None, id, mode, (SlugLimits(SLUG, (), limits),))


def entries(path: list[Group], used: dict[str, DayUsage]) -> list[tuple[str, int, int, str]]:
    limits = [limit for of_slug in daily_limits_by_slug(path) for limit in of_slug]
    found = usage_entries(limits, [used.get(limit.bucket.group_id, DayUsage(0, 0)) for limit in limits])
    return [(entry.type.value, entry.threshold, entry.current_usage, entry.source_group) for entry in found]


def test_the_limit_with_the_least_left_is_shown() -> None:
    path = [group("child", day(100)), group("parent", day(200)), group("root", day(1000))]
    assert entries(path, {}) == [("REQUEST", 100, 0, "child")]
    used = {"child": DayUsage(40, 9), "parent": DayUsage(150, 9), "root": DayUsage(150, 9)}
    assert entries(path, used) == [("REQUEST", 200, 150, "parent")]


def test_the_nearest_of_equal_limits_is_shown_and_overuse_counts() -> None:
    path = [group("child", day(100)), group("parent", day(100))]
    assert entries(path, {}) == [("REQUEST", 100, 0, "child")]
    tokens = [group("child", day(100, LimitType.TOKEN)), group("parent", day(100, LimitType.TOKEN))]
    used = {"child": DayUsage(0, 90), "parent": DayUsage(0, 130)}
    assert entries(tokens, used) == [("TOKEN", 100, 130, "parent")]


def test_in_an_independent_tree_an_inherited_limit_counts_per_group() -> None:
    mode = Enforcement.INDEPENDENT
    path = [group("child", mode=mode), group("parent", day(50), mode=mode)]
    used = {"child": DayUsage(3, 0), "parent": DayUsage(44, 0)}
    assert entries(path, used) == [("REQUEST", 50, 3, "parent")]


def test_rate_limits_and_slugs_named_only_by_an_ancestor_are_hidden() -> None:
    rate = Limit(LimitType.REQUEST, Unit.MINUTE, 5)
    child = Group("child", "ws", None, "child", Enforcement.CASCADING, (SlugLimits(SLUG, (rate,), ()),))
    other = Group("root", "ws", None, "root", Enforcement.CASCADING, (SlugLimits("acme/other", (), (day(5),)),))
    assert entries([child, other], {}) == []


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with private_redis() as server:
        yield server.url


@pytest.fixture
async def metered(tmp_path: Path, redis_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", redis_url=redis_url) as plane:
        yield plane


def models(*thresholds: tuple[str, int]) -> list[dict[str, Any]]:
    usage = [{"type": type, "unit": "DAY", "threshold": threshold} for type, threshold in thresholds]
    return [{"slug": SLUG, "usage_limits": usage}]


async def call_twice(redis_url: str, path: Sequence[Group], tokens: int) -> str:
    """Count two calls as a proxy does, and settle the second. Returns the Redis key of the counters."""
    plan = plan_for(path, SLUG)
    assert plan is not None
    counters = RedisCounters(redis_url, "worker-1")
    await counters.start()
    assert isinstance(await counters.take(plan, 100), Taken)
    taken = await counters.take(plan, 100)
    assert isinstance(taken, Taken)
    for reservation in taken.reservations:
        counters.settle(
            Settlement(reservation=reservation, number=counters.next_number(reservation.key), actual_tokens=tokens)
        )
    await counters.close()
    return plan.key


async def test_usage_shows_the_counts_of_the_proxies(metered: ControlPlane, redis_url: str) -> None:
    root = await metered.group("root", mode="CASCADING", models=models(("TOKEN", 10_000), ("REQUEST", 3)))
    child = await metered.group("child", parent=root["id"], models=models(("TOKEN", 5_000)))
    path = f"/v1/gateway/groups/{child['id']}/usage"
    before = (await metered.get(path)).ok()
    assert [(item["type"], item["current_usage"]) for item in before["items"]] == [("REQUEST", 0), ("TOKEN", 0)]

    found = await read_group(metered.store, metered.workspace_id, child["id"])
    await call_twice(redis_url, found.path, 777)

    answer = (await metered.get(path)).ok()
    assert answer["pagination"] == {"has_more": False, "cursor": None}
    requests, tokens = answer["items"]
    assert requests == {
        "slug": SLUG,
        "type": "REQUEST",
        "unit": "DAY",
        "threshold": 3,
        "current_usage": 2,
        "reset_at": requests["reset_at"],
        "source_group": root["id"],
    }
    assert (tokens["threshold"], tokens["current_usage"], tokens["source_group"]) == (5_000, 777, child["id"])
    reset_at_s, fraction_ns = divmod(parse_time_ns(requests["reset_at"]), 10**9)
    assert (reset_at_s % 86_400, fraction_ns) == (0, 0)
    async with Redis.from_url(redis_url) as redis:
        seconds, _ = await redis.time()
    assert 0 < reset_at_s - seconds <= 86_400


async def test_usage_is_paged(sqlite_plane: ControlPlane) -> None:
    slugs = [f"acme/m{n}" for n in range(5)]
    limits = [{"type": type, "unit": "DAY", "threshold": 9} for type in ("TOKEN", "REQUEST")]
    made = await sqlite_plane.group("g", models=[{"slug": slug, "usage_limits": limits} for slug in slugs])
    path, seen = f"/v1/gateway/groups/{made['id']}/usage", []
    answer = (await sqlite_plane.get(path, params={"limit": 3})).ok()
    while True:
        seen += [(item["slug"], item["type"]) for item in answer["items"]]
        if not answer["pagination"]["has_more"]:
            break
        answer = (await sqlite_plane.get(path, params={"cursor": answer["pagination"]["cursor"]})).ok()
    assert seen == [(slug, type) for slug in slugs for type in ("REQUEST", "TOKEN")]


async def test_usage_of_another_workspaces_group_is_404(sqlite_plane: ControlPlane) -> None:
    made = await sqlite_plane.group("g")
    other = (await sqlite_plane.another_workspace())["api_key"]
    (await sqlite_plane.get(f"/v1/gateway/groups/{made['id']}/usage", key=other)).refused(404)


async def test_without_redis_usage_is_503(tmp_path: Path) -> None:
    away = f"unix://{tmp_path}/nobody.sock"
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", redis_url=away) as plane:
        made = await plane.group("g", models=models(("TOKEN", 5)))
        (await plane.get(f"/v1/gateway/groups/{made['id']}/usage")).refused(503, "COUNTERS_UNAVAILABLE")


async def test_deleting_a_group_frees_the_counters_of_its_subtree(metered: ControlPlane, redis_url: str) -> None:
    root = await metered.group("root", mode="CASCADING", models=models(("TOKEN", 10_000)))
    middle = await metered.group("middle", parent=root["id"], models=models(("TOKEN", 5_000)))
    low = await metered.group("low", parent=middle["id"], models=models(("REQUEST", 9)))
    found = await read_group(metered.store, metered.workspace_id, low["id"])
    key = await call_twice(redis_url, found.path, 5)
    async with Redis.from_url(redis_url) as redis:
        assert {low["id"].encode(), middle["id"].encode(), root["id"].encode()} <= set(await redis.hkeys(key))
        (await metered.delete(f"/v1/gateway/groups/{middle['id']}")).ok()
        left = str(await redis.hkeys(key))
    assert root["id"] in left
    assert middle["id"] not in left
    assert low["id"] not in left


async def test_markers_of_dead_workers_are_cleaned_up(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_FIRST_HOUSEKEEPING_S", 0.01)
    async with Redis.from_url(redis_url) as redis:
        seconds, _ = await redis.time()
        stamps = {"@old": seconds - EXPIRY_S - 60, "@young": seconds - EXPIRY_S + 600}
        for name, at_s in stamps.items():
            await redis.hset("tg:{g|acme/tidy}", name, (1).to_bytes(6, "little") + (at_s * 1000).to_bytes(6, "little"))
        async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", redis_url=redis_url), asyncio.timeout(20):
            while await redis.hexists("tg:{g|acme/tidy}", "@old"):
                await asyncio.sleep(0.01)
        assert await redis.hkeys("tg:{g|acme/tidy}") == [b"@young"]


async def test_a_hanging_redis_delays_usage_at_most_a_second(tmp_path: Path) -> None:
    """Each answer takes at most 3 s, where redis-py alone takes about 12 s. Usage is right again once Redis answers."""
    with private_redis() as server:
        async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", redis_url=server.url) as plane:
            made = await plane.group("g", models=models(("TOKEN", 5)))
            path = f"/v1/gateway/groups/{made['id']}/usage"
            (await plane.get(path)).ok()
            server.pause()
            for _ in range(2):
                async with asyncio.timeout(3):
                    (await plane.get(path)).refused(503, "COUNTERS_UNAVAILABLE")
            server.kill()
            async with asyncio.timeout(3):
                (await plane.get(path)).refused(503, "COUNTERS_UNAVAILABLE")
            server.start()
            (await plane.get(path)).ok()
