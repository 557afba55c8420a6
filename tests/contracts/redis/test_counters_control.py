"""Control reads the counters that the proxy writes, and deletes those of deleted groups and dead workers."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import redis

from control.edges.redis.client import connect
from control.edges.redis.usage_counters import UsageCounters
from control.errors import UsageUnavailableError
from control.records.usage import Bucket, Meter, Used
from policy.limits.counter_layout import EXPIRY_S, HASH_EXPIRY_S, fields_of
from policy.limits.effective import Plan, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.take_numbers import TakeStamp
from policy.limits.windows import DAY_MS, lease_ms
from proxy.edges.redis.scripts import Scripts
from runtime.redis.routed import RoutedRedis
from tests.contracts.redis.counters_world import (
    REDIS_CLOCK,
    RPD,
    RPM,
    RPS,
    START_MS,
    TPD,
    TPM,
    TPS,
    World,
    group,
    plan_of,
    redis_world,
)
from tests.redis_counters import take_arguments
from tests.redis_server import RedisServer, private_redis

TOP = group("top", {RPD: 10, TPD: 1000})
LOW = group("low", {RPD: 5, RPM: 90, TPM: 100_000}, "top")
PLAN = plan_of(LOW, TOP)
BUCKETS = [Bucket(PLAN.key, "low"), Bucket(PLAN.key, "top"), Bucket(PLAN.key, "unknown"), Bucket("tg:{no|key}", "low")]
UNTIL_MIDNIGHT_MS = DAY_MS - START_MS % DAY_MS
TAKE = Scripts.load(REDIS_CLOCK).take


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
        new_world = redis_world(server.url, client)
        await new_world.counters.start()
        yield new_world
        await new_world.counters.close()


@pytest.fixture
async def usage(world: World) -> AsyncIterator[UsageCounters]:
    assert world.redis is not None
    path = world.redis.connection_pool.connection_kwargs["path"]
    async with aclosing(connect(f"unix://{path}")) as client:
        yield FixedClock(client, world)


async def day_usage(usage: UsageCounters, *buckets: Bucket) -> list[tuple[int, int]]:
    """Return the requests and the tokens of the day of each bucket."""
    meters = [Meter(bucket, type, Unit.DAY) for bucket in buckets for type in (LimitType.REQUEST, LimitType.TOKEN)]
    amounts = [usage_of_meter.amount for usage_of_meter in await usage.used(meters)]
    return list(zip(amounts[::2], amounts[1::2], strict=True))


async def test_usage_is_what_was_admitted_and_settled_today(world: World, usage: UsageCounters) -> None:
    assert await day_usage(usage, *BUCKETS) == [(0, 0)] * 4
    await world.settle(await world.admit(PLAN, 50), 70)
    await world.admit(PLAN, 50)
    assert await day_usage(usage, *BUCKETS) == [(2, 0), (2, 70), (0, 0), (0, 0)]
    meter = Meter(BUCKETS[0], LimitType.REQUEST, Unit.DAY)
    assert await usage.used([meter]) == [Used(2, UNTIL_MIDNIGHT_MS)]
    await world.at(START_MS + UNTIL_MIDNIGHT_MS)
    assert await day_usage(usage, *BUCKETS[:2]) == [(0, 0)] * 2
    assert await usage.used([meter]) == [Used(0, DAY_MS)]
    await world.admit(PLAN, 50)
    assert await usage.used_at([meter], world.now_ms) == [Used(1, DAY_MS)]
    assert await usage.used_at([meter], world.now_ms - 1) == [Used(2, 1)], "yesterday's last millisecond"


async def test_usage_of_a_day_is_read_again_after_a_step_over_midnight_and_back(
    world: World, usage: UsageCounters
) -> None:
    await world.settle(await world.admit(PLAN, 50), 70)
    await world.at(START_MS + UNTIL_MIDNIGHT_MS + 1_000)
    await world.admit(PLAN, 50)
    assert await day_usage(usage, *BUCKETS[:2]) == [(1, 0)] * 2
    await world.at(START_MS + 1_000)
    assert await day_usage(usage, *BUCKETS[:2]) == [(1, 0), (1, 70)], "as soon as the clock shows that day"
    await world.admit(PLAN, 50)
    assert await day_usage(usage, *BUCKETS[:2]) == [(2, 0), (2, 70)]


async def test_control_reads_what_the_script_would_count_after_a_step_back(world: World, usage: UsageCounters) -> None:
    low = group("low", {RPS: 20, RPM: 60, TPM: 640}, "top")
    plan = plan_of(low, group("top", {RPM: 64, RPD: 10**6}))
    await world.admit(plan, 3)
    await world.advance(700)
    await world.admit(plan, 3)
    await world.advance(-3_600_000)
    for step_ms in (0, 301, 400, 58_000, 2_000):
        assert await read_by_control(usage, plan) == left_by_the_script(world, plan)
        await world.advance(step_ms)
    await world.admit(plan, 3)
    assert await read_by_control(usage, plan) == left_by_the_script(world, plan)


def left_by_the_script(world: World, plan: Plan) -> list[tuple[int, int]]:
    """Return, per bound, what is left and how long something counts, as the script says to a call of no weight."""
    assert world.redis is not None
    figures = []
    for bound in plan.bounds:
        alone = plan_of_limits(plan.slug, bound.counting_group, plan.key, (bound.limit,))
        arguments = take_arguments(alone, lease_ms(1200), TakeStamp("nobody", 1, 0))
        reply: Any = world.redis.eval(TAKE.text.decode(), 1, plan.key, *arguments)
        of_requests = reply[6:9]
        of_tokens = reply[9:12]
        _, remaining, reset_ms = of_requests if bound.limit.type is LimitType.REQUEST else of_tokens
        figures.append((remaining, reset_ms))
    return figures


async def read_by_control(usage: UsageCounters, plan: Plan) -> list[tuple[int, int]]:
    meters = [Meter(Bucket(plan.key, b.counting_group), b.limit.type, b.limit.unit) for b in plan.bounds]
    read = await usage.used(meters)
    return [
        (max(0, bound.limit.threshold - usage_of_meter.amount), usage_of_meter.resets_in_ms)
        for bound, usage_of_meter in zip(plan.bounds, read, strict=True)
    ]


@pytest.mark.parametrize("scale", [1, 100], ids=["exact logs", "logs of granules"])
async def test_control_reads_what_the_script_would_count_now(world: World, usage: UsageCounters, scale: int) -> None:
    """Reserved and settled tokens, in both windows, at the edges of windows and of granules, at two levels."""
    low = group("low", {RPS: 20 * scale, RPM: 60 * scale, TPS: 64 * scale, TPM: 64 * scale}, "top")
    top = group("top", {RPM: 64 * scale, TPM: 60 * scale, RPD: 10**6})
    plan = plan_of(low, top)
    calls = []
    readings = set()
    assert await read_by_control(usage, plan) == left_by_the_script(world, plan)
    for step_ms in (0, 3, 16, 1, 500, 480, 1, 900, 59_000 - 900, 1, 1):
        await world.advance(step_ms)
        calls.append(await world.admit(plan, 3))
        assert await read_by_control(usage, plan) == left_by_the_script(world, plan)
    for admission, actual in zip(calls, (1, 0, 5, 3, 9, 2), strict=False):
        await world.settle(admission, actual)
        assert await read_by_control(usage, plan) == left_by_the_script(world, plan)
    started_ms = world.now_ms
    for ahead_ms in (1, 19, 20, 999, 1_000, 1_001, 1_002, 30_000, 57_999, 59_000, 59_999, 60_000, 60_001):
        await world.at(started_ms + ahead_ms)
        read = await read_by_control(usage, plan)
        assert read == left_by_the_script(world, plan)
        readings.add(tuple(read))
    assert len(readings) > 8, "most of these moments differ"
    assert all(reset_ms == 0 for bound, (_, reset_ms) in zip(plan.bounds, read, strict=True) if bound.limit.is_rate)


async def test_a_bucket_without_calls_counts_nothing(usage: UsageCounters) -> None:
    meters = [Meter(bucket, type, unit) for bucket in BUCKETS[2:] for type, unit in (RPS, RPM, TPS, TPM)]
    assert await usage.used(meters) == [Used(0, 0)] * 8


async def test_a_clock_that_stepped_back_frees_nothing(world: World, usage: UsageCounters) -> None:
    plan = plan_of(group("low", {RPM: 90, TPM: 100}))
    await world.admit(plan, 50)
    await world.advance(59_000)
    await world.admit(plan, 5)
    await world.advance(-59_500)
    assert await read_by_control(usage, plan) == left_by_the_script(world, plan) == [(88, 60_001), (45, 60_001)]


async def test_reservations_of_a_day_are_left_out(world: World, usage: UsageCounters) -> None:
    """Control does not know their lease, which is the proxy's request timeout."""
    await world.settle(await world.admit(PLAN, 50), 70)
    await world.admit(PLAN, 50)
    assert [
        usage_of_meter.amount for usage_of_meter in await usage.used([Meter(BUCKETS[1], *TPD), Meter(BUCKETS[0], *TPM)])
    ] == [70, 120]


async def test_reading_writes_nothing(world: World, usage: UsageCounters) -> None:
    assert world.redis is not None
    for _ in range(3):
        await world.settle(await world.admit(PLAN, 50), 70)
        await world.advance(1500)
    before = world.redis.dump(PLAN.key), world.redis.ttl(PLAN.key)
    await world.advance(59_000)
    await read_by_control(usage, PLAN)
    assert (world.redis.dump(PLAN.key), world.redis.ttl(PLAN.key)) == before


async def test_deleted_group_leaves_no_fields(world: World, usage: UsageCounters) -> None:
    assert world.redis is not None
    for _ in range(3):
        await world.settle(await world.admit(PLAN, 50), 70)
        await world.advance(1500)
    before = set(world.redis.hkeys(PLAN.key))
    await usage.forget([Bucket(PLAN.key, "low"), Bucket("tg:{no|key}", "low")])
    deleted_fields = before - set(world.redis.hkeys(PLAN.key))
    assert b"low" in deleted_fields
    assert len(deleted_fields) > 1
    assert deleted_fields <= {field.encode() for field in fields_of("low")}
    assert await day_usage(usage, *BUCKETS[:2]) == [(0, 0), (3, 210)]


async def test_markers_of_dead_workers_are_pruned(world: World, usage: UsageCounters) -> None:
    await world.settle(await world.admit(PLAN, 50), 70)
    assert await usage.prune_markers() == 0
    await world.advance(EXPIRY_S * 1000)
    assert await usage.prune_markers() == 0
    await world.advance(1)
    assert await usage.prune_markers() == 2  # of what it settled, and of what it took
    assert await usage.prune_markers() == 0


async def test_key_expires_34_days_after_its_last_use(world: World) -> None:
    assert world.redis is not None
    await world.admit(PLAN, 50)
    assert world.redis.ttl(PLAN.key) >= HASH_EXPIRY_S - 1
    world.redis.expire(PLAN.key, HASH_EXPIRY_S - 3600)
    await world.advance(3_600_000)
    await world.admit(PLAN, 50)
    assert world.redis.ttl(PLAN.key) >= HASH_EXPIRY_S - 1


async def test_usage_is_unavailable_without_redis() -> None:
    with private_redis() as server:
        url = RedisServer(server.folder).url
    async with aclosing(connect(url)) as client:
        counters = UsageCounters(client)
        with pytest.raises(UsageUnavailableError):
            await counters.used([Meter(BUCKETS[0], *RPM)])
        with pytest.raises(UsageUnavailableError):
            await counters.forget(BUCKETS)
        with pytest.raises(UsageUnavailableError):
            await counters.prune_markers()
