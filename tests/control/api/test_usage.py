"""Group usage: one entry per slug and type of daily limit. Of several limits, the one that refuses first is shown.

Group limits: every limit, with what counts against it now.
See docs/reference/management-api.md#group-usage and docs/reference/management-api.md#group-limits.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from control import app
from control.api.protocol.times import parse_time_ns
from control.records.usage import Bucket, BucketStart, Meter, Used
from control.resources.group_usage import GroupLimits, read_usage
from control.resources.groups import read_group
from policy.limits.counter_layout import EXPIRY_S
from policy.limits.effective import plan_for
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import Taken
from proxy.edges.redis.counters import RedisCounters
from tests.control.plane import SLUG, ControlPlane, running_plane
from tests.policy.limits.trees import levels_for
from tests.redis_server import private_redis
from tests.waiting import stay_within_one_day


def day(threshold: int, type: LimitType = LimitType.REQUEST) -> Limit:
    return Limit(type, Unit.DAY, threshold)


def group(id: str, *limits: Limit, mode: Enforcement = Enforcement.CASCADING) -> Group:
    return Group(id, "ws", None, id, mode, (SlugLimits(SLUG, (), limits),))


class Counted:
    """A source that has counted so much for each group, of whatever kind, and says so half a minute later."""

    def __init__(self, **amounts: int) -> None:
        self.amounts = amounts
        self.meters: list[Meter] = []

    async def used(self, meters: Sequence[Meter]) -> list[Used]:
        self.meters += meters
        return [Used(self.amounts.get(meter.bucket.group_id, 0), 30_000) for meter in meters]

    async def now_ms(self) -> int:
        return 0

    async def start(self, starts: Sequence[BucketStart]) -> None:
        raise NotImplementedError

    async def forget(self, buckets: Sequence[Bucket]) -> None:
        raise NotImplementedError


async def entries(path: list[Group], **counts: int) -> list[tuple[str, int, int, str]]:
    (usage,) = await read_usage(Counted(**counts), [path])
    return [
        (entry.bound.limit.type.value, entry.bound.limit.threshold, entry.usage.amount, entry.bound.source_group)
        for entry in usage
    ]


async def test_the_limit_with_the_least_left_is_shown() -> None:
    path = [group("child", day(100)), group("parent", day(200)), group("root", day(1000))]
    assert await entries(path) == [("REQUEST", 100, 0, "child")]
    assert await entries(path, child=40, parent=150, root=150) == [("REQUEST", 200, 150, "parent")]


async def test_the_nearest_of_equal_limits_is_shown_and_overuse_counts() -> None:
    path = [group("child", day(100)), group("parent", day(100))]
    assert await entries(path) == [("REQUEST", 100, 0, "child")]
    tokens = [group("child", day(100, LimitType.TOKEN)), group("parent", day(100, LimitType.TOKEN))]
    assert await entries(tokens, child=90, parent=130) == [("TOKEN", 100, 130, "parent")]


async def test_in_an_independent_tree_an_inherited_limit_counts_per_group() -> None:
    mode = Enforcement.INDEPENDENT
    path = [group("child", mode=mode), group("parent", day(50), mode=mode)]
    assert await entries(path, child=3, parent=44) == [("REQUEST", 50, 3, "parent")]


async def test_rate_limits_and_slugs_named_only_by_an_ancestor_are_hidden() -> None:
    child = Group("child", "ws", None, "child", Enforcement.CASCADING, (SlugLimits(SLUG, (per_minute(5),), ()),))
    other = Group("root", "ws", None, "root", Enforcement.CASCADING, (SlugLimits("acme/other", (), (day(5),)),))
    assert await entries([child, other]) == []


def per_minute(threshold: int) -> Limit:
    return Limit(LimitType.REQUEST, Unit.MINUTE, threshold)


async def test_of_each_slug_and_type_the_limit_with_the_least_left_binds() -> None:
    second = Limit(LimitType.REQUEST, Unit.SECOND, 50)
    child = Group(
        "child",
        "ws",
        None,
        "child",
        Enforcement.CASCADING,
        (SlugLimits("acme/b", (per_minute(50),), ()), SlugLimits("acme/a", (second,), (day(9, LimitType.TOKEN),))),
    )
    root = Group("root", "ws", None, "root", Enforcement.CASCADING, (SlugLimits("acme/a", (second,), (day(60),)),))
    usages = await (await GroupLimits.of([child, root])).read(Counted(child=3, root=20), None, 100)
    assert [(use.slug, use.bound.limit.unit, use.bound.counting_group, use.binds) for use in usages] == [
        ("acme/a", Unit.SECOND, "child", False),
        ("acme/a", Unit.SECOND, "root", True),  # 30 of 50 left
        ("acme/a", Unit.DAY, "root", False),
        ("acme/a", Unit.DAY, "child", True),  # of tokens
        ("acme/b", Unit.MINUTE, "child", True),
    ]


async def test_a_page_reads_the_counters_of_its_own_slugs_only() -> None:
    names = [f"acme/m{number:04}" for number in range(1000)]
    many = tuple(SlugLimits(name, (per_minute(5),), (day(9),)) for name in names)
    path = [Group(id, "ws", None, id, Enforcement.CASCADING, many) for id in ("child", "parent", "root")]
    limits = await GroupLimits.of(path)
    source = Counted()
    first = await limits.read(source, None, 100)
    assert len(source.meters) == 50 * 6
    following = await limits.read(source, first[-1].place, 7)
    assert len(source.meters) == 100 * 6
    assert [use.slug for use in (*first, *following)] == [name for name in names[:18] for _ in range(6)][:107]


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
    plan = plan_for(path, SLUG, levels_for(path, SLUG))
    assert plan is not None
    counters = RedisCounters(redis_url, "worker-1")
    await counters.start()
    assert isinstance(await counters.take(plan, Estimate(100)), Taken)
    decision = await counters.take(plan, Estimate(100))
    assert isinstance(decision, Taken)
    for reservation in decision.reservations:
        counters.settle(reservation, number=next(counters.numbers), actual_tokens=tokens)
    await counters.close()
    return plan.key


async def test_usage_shows_the_counts_of_the_proxies(metered: ControlPlane, redis_url: str) -> None:
    root = await metered.group("root", mode="CASCADING", models=models(("TOKEN", 10_000), ("REQUEST", 3)))
    child = await metered.group("child", parent=root["id"], models=models(("TOKEN", 5_000)))
    path = f"/v1/gateway/groups/{child['id']}/usage"
    before = (await metered.get(path)).ok()
    assert [(item["type"], item["current_usage"]) for item in before["items"]] == [("REQUEST", 0), ("TOKEN", 0)]

    record = await read_group(metered.store, metered.workspace_id, child["id"])
    await call_twice(redis_url, record.path, 777)

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
    new_group = await sqlite_plane.group("g", models=[{"slug": slug, "usage_limits": limits} for slug in slugs])
    path = f"/v1/gateway/groups/{new_group['id']}/usage"
    pairs = []
    answer = (await sqlite_plane.get(path, params={"limit": 3})).ok()
    while True:
        pairs += [(item["slug"], item["type"]) for item in answer["items"]]
        if not answer["pagination"]["has_more"]:
            break
        answer = (await sqlite_plane.get(path, params={"cursor": answer["pagination"]["cursor"]})).ok()
    assert pairs == [(slug, type) for slug in slugs for type in ("REQUEST", "TOKEN")]


async def test_limits_show_every_limit_and_the_counts_of_the_proxies(metered: ControlPlane, redis_url: str) -> None:
    rates = [
        {"type": "REQUEST", "unit": "MINUTE", "threshold": 4},
        {"type": "TOKEN", "unit": "MINUTE", "threshold": 9000},
    ]
    root = await metered.group("top", mode="CASCADING", models=[{**models(("REQUEST", 50))[0], "rate_limits": rates}])
    child = await metered.group("low", parent=root["id"], models=[{"slug": SLUG, "rate_limits": rates[:1]}])
    record = await read_group(metered.store, metered.workspace_id, child["id"])
    await call_twice(redis_url, record.path, 777)
    answer = (await metered.get(f"/v1/gateway/groups/{child['id']}/limits")).ok()
    assert answer["pagination"] == {"has_more": False, "cursor": None}
    resets = [item.pop("resets_in_s") for item in answer["items"]]
    assert all(50 <= reset <= 61 for reset in (*resets[:2], resets[3]))
    assert 0 < resets[2] <= 86_400
    expected = [
        ("REQUEST", "MINUTE", 4, 2, child["id"], True),
        ("REQUEST", "MINUTE", 4, 2, root["id"], False),
        ("REQUEST", "DAY", 50, 2, root["id"], False),
        ("TOKEN", "MINUTE", 9000, 877, root["id"], True),  # 777 settled, 100 reserved
    ]
    assert answer["items"] == [
        {
            "slug": SLUG,
            "type": type,
            "unit": unit,
            "threshold": threshold,
            "current_usage": usage,
            "source_group": counting,
            "counting_group": counting,
            "binds": binds,
        }
        for type, unit, threshold, usage, counting, binds in expected
    ]


async def test_limits_are_paged_and_without_redis_configured_nothing_counts(sqlite_plane: ControlPlane) -> None:
    limits = {
        "rate_limits": [{"type": "TOKEN", "unit": "SECOND", "threshold": 9}],
        "usage_limits": [{"type": type, "unit": "DAY", "threshold": 9} for type in ("TOKEN", "REQUEST")],
    }
    new_group = await sqlite_plane.group("g", models=[{"slug": f"acme/m{n}", **limits} for n in (2, 0, 1)])
    path = f"/v1/gateway/groups/{new_group['id']}/limits"
    rows = list[tuple[str, str, str]]()
    answer = (await sqlite_plane.get(path, params={"limit": 2})).ok()
    while True:
        for item in answer["items"]:
            assert (item["current_usage"], item["binds"]) == (0, item["unit"] != "DAY" or item["type"] == "REQUEST")
            assert (item["resets_in_s"] is None) == (item["unit"] == "SECOND")
            rows.append((item["slug"], item["type"], item["unit"]))
        if not answer["pagination"]["has_more"]:
            break
        answer = (await sqlite_plane.get(path, params={"cursor": answer["pagination"]["cursor"]})).ok()
    kinds = (("REQUEST", "DAY"), ("TOKEN", "SECOND"), ("TOKEN", "DAY"))
    assert rows == [(f"acme/m{n}", *kind) for n in range(3) for kind in kinds]


async def test_list_of_groups_shows_the_usage_of_each(metered: ControlPlane, redis_url: str) -> None:
    stay_within_one_day()
    parent = await metered.group("parent", mode="CASCADING", models=models(("TOKEN", 10_000), ("REQUEST", 3)))
    children = [await metered.group(f"c{n}", parent=parent["id"], models=models(("TOKEN", 500))) for n in range(5)]
    alone = await metered.group("alone", models=[{"slug": SLUG}])
    record = await read_group(metered.store, metered.workspace_id, children[2]["id"])
    await call_twice(redis_url, record.path, 777)
    page = (await metered.get("/v1/gateway/groups?usage=true&limit=4")).ok()
    rest = (await metered.get(f"/v1/gateway/groups?cursor={page['pagination']['cursor']}")).ok()
    usages = {item["id"]: item.pop("usage") for item in (*page["items"], *rest["items"])}
    for member in (parent, *children, alone):
        assert usages[member["id"]] == (await metered.get(f"/v1/gateway/groups/{member['id']}/usage")).ok()["items"]
    assert [entry["current_usage"] for entry in usages[children[2]["id"]]] == [2, 777]
    assert usages[alone["id"]] == []
    assert page["items"] + rest["items"] == (await metered.get("/v1/gateway/groups")).ok()["items"]


async def test_usage_of_many_groups_reads_each_counter_once_and_those_of_a_hash_together() -> None:
    roots = [group(f"root{n}", day(9)) for n in range(3)]
    paths = [[group(f"leaf{n}", day(5)), roots[n % 3]] for n in range(12)]
    source = Counted(root1=8)
    usages = await read_usage(source, paths)
    assert len(source.meters) == len(set(source.meters)) == 12 + 3
    keys = [meter.bucket.key for meter in source.meters]
    assert [key for key, _ in groupby(keys)] == list(dict.fromkeys(keys))
    binding = [entry.bound.source_group for (entry,) in usages]
    assert binding == [f"root{n % 3}" if n % 3 == 1 else f"leaf{n}" for n in range(12)]


@pytest.mark.parametrize("what", ["usage", "limits"])
async def test_usage_of_another_workspaces_group_is_404(sqlite_plane: ControlPlane, what: str) -> None:
    new_group = await sqlite_plane.group("g")
    other = (await sqlite_plane.another_workspace())["api_key"]
    (await sqlite_plane.get(f"/v1/gateway/groups/{new_group['id']}/{what}", key=other)).refused(404)


async def test_without_redis_usage_is_503(tmp_path: Path) -> None:
    away = f"unix://{tmp_path}/nobody.sock"
    async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", redis_url=away) as plane:
        new_group = await plane.group("g", models=models(("TOKEN", 5)))
        for what in ("usage", "limits"):
            (await plane.get(f"/v1/gateway/groups/{new_group['id']}/{what}")).refused(503, "COUNTERS_UNAVAILABLE")


async def test_deleting_a_group_frees_the_counters_of_its_subtree(metered: ControlPlane, redis_url: str) -> None:
    root = await metered.group("root", mode="CASCADING", models=models(("TOKEN", 10_000)))
    middle = await metered.group("middle", parent=root["id"], models=models(("TOKEN", 5_000)))
    low = await metered.group("low", parent=middle["id"], models=models(("REQUEST", 9)))
    record = await read_group(metered.store, metered.workspace_id, low["id"])
    key = await call_twice(redis_url, record.path, 5)
    async with Redis.from_url(redis_url) as redis:
        assert {low["id"].encode(), middle["id"].encode(), root["id"].encode()} <= set(await redis.hkeys(key))
        (await metered.delete(f"/v1/gateway/groups/{middle['id']}")).ok()
        fields = str(await redis.hkeys(key))
    assert root["id"] in fields
    assert middle["id"] not in fields
    assert low["id"] not in fields


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


async def test_a_hanging_redis_delays_usage_less_than_its_client_waits(tmp_path: Path) -> None:
    """redis-py alone takes about 12 s. Usage is right again once Redis answers."""
    with private_redis() as server:
        async with running_plane(f"sqlite+aiosqlite:///{tmp_path}/x.db", redis_url=server.url) as plane:
            new_group = await plane.group("g", models=models(("TOKEN", 5)))
            path = f"/v1/gateway/groups/{new_group['id']}/usage"
            (await plane.get(path)).ok()
            server.pause()
            for _ in range(2):
                async with asyncio.timeout(10):
                    (await plane.get(path)).refused(503, "COUNTERS_UNAVAILABLE")
            server.kill()
            async with asyncio.timeout(10):
                (await plane.get(path)).refused(503, "COUNTERS_UNAVAILABLE")
            server.start()
            (await plane.get(path)).ok()
