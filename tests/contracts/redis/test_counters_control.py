"""Control reads the counters that the proxy writes, and deletes those of deleted groups and dead workers."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import redis

from control.edges.redis.client import connect
from control.edges.redis.usage_counters import UsageCounters
from control.resources.errors import UsageUnavailableError
from control.resources.group_usage import Bucket, DayUsage
from policy.limits.counter_layout import EXPIRY_S, fields_of
from policy.limits.windows import DAY_MS
from runtime.redis.routed import RoutedRedis
from tests.contracts.redis.counters_world import RPD, RPM, START_MS, TPD, TPM, World, group, plan_of, redis_world
from tests.redis_server import RedisServer, private_redis

TOP, LOW = group("top", {RPD: 10, TPD: 1000}), group("low", {RPD: 5, RPM: 90, TPM: 100_000}, "top")
PLAN = plan_of(LOW, TOP)
BUCKETS = [Bucket(PLAN.key, "low"), Bucket(PLAN.key, "top"), Bucket(PLAN.key, "unknown"), Bucket("tg:{no|key}", "low")]


class FixedClock(UsageCounters):
    """Control's reader with the clock that the test has set for the scripts."""

    def __init__(self, client: RoutedRedis, world: World) -> None:
        super().__init__(client)
        self._world = world

    async def _time_ms(self) -> int:
        return self._world.now_ms


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with private_redis() as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        made = redis_world(server.url, client)
        await made.counters.start()
        yield made
        await made.counters.close()


@pytest.fixture
async def usage(world: World) -> AsyncIterator[UsageCounters]:
    assert world.redis is not None
    path = world.redis.connection_pool.connection_kwargs["path"]
    async with aclosing(connect(f"unix://{path}")) as client:
        yield FixedClock(client, world)


async def test_usage_is_what_was_admitted_and_settled_today(world: World, usage: UsageCounters) -> None:
    assert await usage.day_usage(BUCKETS) == [DayUsage(0, 0)] * 4
    await world.settle(await world.admit(PLAN, 50), 70)
    await world.admit(PLAN, 50)
    assert await usage.day_usage(BUCKETS) == [DayUsage(2, 0), DayUsage(2, 70), DayUsage(0, 0), DayUsage(0, 0)]
    await world.at(START_MS - START_MS % DAY_MS + DAY_MS)
    assert await usage.day_usage(BUCKETS[:2]) == [DayUsage(0, 0)] * 2


async def test_deleted_group_leaves_no_fields(world: World, usage: UsageCounters) -> None:
    assert world.redis is not None
    for _ in range(3):
        await world.settle(await world.admit(PLAN, 50), 70)
        await world.advance(1500)
    before = set(world.redis.hkeys(PLAN.key))
    await usage.forget([Bucket(PLAN.key, "low"), Bucket("tg:{no|key}", "low")])
    gone = before - set(world.redis.hkeys(PLAN.key))
    assert b"low" in gone
    assert len(gone) > 1
    assert gone <= {field.encode() for field in fields_of("low")}
    assert await usage.day_usage(BUCKETS[:2]) == [DayUsage(0, 0), DayUsage(3, 210)]


async def test_markers_of_dead_workers_are_pruned(world: World, usage: UsageCounters) -> None:
    await world.settle(await world.admit(PLAN, 50), 70)
    assert await usage.prune_markers() == 0
    await world.advance(EXPIRY_S * 1000)
    assert await usage.prune_markers() == 0
    await world.advance(1)
    assert await usage.prune_markers() == 2  # of what it settled, and of what it took
    assert await usage.prune_markers() == 0


async def test_key_expires_three_days_after_its_last_use(world: World) -> None:
    assert world.redis is not None
    await world.admit(PLAN, 50)
    assert world.redis.ttl(PLAN.key) >= EXPIRY_S + 3599
    world.redis.expire(PLAN.key, EXPIRY_S)
    await world.advance(3_600_000)
    await world.admit(PLAN, 50)
    assert world.redis.ttl(PLAN.key) >= EXPIRY_S + 3599


async def test_usage_is_unavailable_without_redis() -> None:
    with private_redis() as server:
        url = RedisServer(server.folder).url
    async with aclosing(connect(url)) as client:
        counters = UsageCounters(client)
        with pytest.raises(UsageUnavailableError):
            await counters.day_usage(BUCKETS)
        with pytest.raises(UsageUnavailableError):
            await counters.forget(BUCKETS)
        with pytest.raises(UsageUnavailableError):
            await counters.prune_markers()
