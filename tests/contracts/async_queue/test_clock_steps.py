"""Redis' clock steps by any size, forward or back: the queue's time goes on as if it had not."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from proxy.async_requests.requests import Again, RetryRules, Succeeded
from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.workspaces import GRACE_S
from tests.contracts.async_queue.queue_world import (
    DEP,
    ERROR,
    LEASE_MS,
    START_MS,
    TIMEOUT_S,
    WS,
    RedisQueue,
    World,
    leftovers,
    new_client,
    redis_world,
)
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.stepped_clock import SteppedClock

HOUR_MS = 3_600_000
STEPS_MS = [HOUR_MS, 400 * 24 * HOUR_MS, -10_000, -HOUR_MS]
SCAN_MS = 1_000


@pytest.fixture(scope="module")
def own() -> Iterator["redis.Redis"]:
    with private_redis() as server, redis.Redis(unix_socket_path=str(server.socket_path)) as own:
        yield own


@pytest.fixture
async def world(own: "redis.Redis") -> AsyncIterator[World]:
    world = redis_world(url_of(own), own)
    yield world
    await world.close()


def url_of(own: "redis.Redis") -> str:
    return f"unix://{own.connection_pool.connection_kwargs['path']}"


@pytest.fixture(params=STEPS_MS)
def step_ms(request: pytest.FixtureRequest) -> int:
    step: int = request.param
    return step


async def scan(world: World, milliseconds: int) -> int:
    """Let time pass while the workspace is swept each second. How many requests can be started then."""
    work = await world.queue.sweep(WS)
    for _ in range(milliseconds // SCAN_MS):
        world.advance(SCAN_MS)
        work = await world.queue.sweep(WS)
    return work.startable.get(DEP, 0)


async def test_lease_lasts_as_long_as_without_the_step(world: World, step_ms: int) -> None:
    await world.submit()
    attempt = await world.start()
    await scan(world, LEASE_MS // 2)
    world.step(step_ms)
    assert await scan(world, LEASE_MS // 2 - 2 * SCAN_MS) == 0
    assert await world.queue.renew([attempt.ref]) == []
    assert await scan(world, LEASE_MS - SCAN_MS) == 0
    assert await scan(world, 2 * SCAN_MS) == 1


async def test_dead_worker_s_attempt_is_taken_back_within_a_lease_of_the_step(world: World, step_ms: int) -> None:
    await world.submit()
    await world.start()
    await scan(world, 10_000)
    world.step(step_ms)
    assert await scan(world, LEASE_MS + SCAN_MS) == 1


async def test_delivery_s_lease_lasts_as_long_as_without_the_step(world: World, step_ms: int) -> None:
    await world.submit()
    assert await world.queue.finish((await world.start()).ref, Succeeded(0, 0))
    await world.next_delivery()
    await scan(world, 10_000)
    world.step(step_ms)
    await scan(world, LEASE_MS - 12_000)
    assert (await world.queue.sweep(WS)).deliveries == 0
    await scan(world, LEASE_MS)
    assert (await world.queue.sweep(WS)).deliveries == 1


async def test_request_expires_when_it_has_waited_long_enough(world: World, step_ms: int) -> None:
    id = await world.submit(hook=None, max_time_in_queue_s=20)
    await scan(world, 10_000)
    world.step(step_ms)
    await scan(world, 9_000)
    assert (await world.state(id)).status is Status.QUEUED
    await scan(world, 2_000)
    assert (await world.state(id)).status is Status.EXPIRED


@pytest.mark.parametrize("step_first", [True, False])
async def test_start_after_the_step_begins_what_has_not_expired(world: World, step_ms: int, step_first: bool) -> None:
    if step_first:
        await world.submit()
        world.step(step_ms)
    await world.submit(max_time_in_queue_s=10)
    if not step_first:
        world.step(step_ms)
    attempt = await world.start()
    assert attempt.run_until_ms - attempt.started_at_ms == TIMEOUT_S * 1000


async def test_attempt_that_fails_after_the_step_is_followed_by_another_one(world: World, step_ms: int) -> None:
    await world.submit(retries=RetryRules(max_attempts=2))
    attempt = await world.start()
    world.step(step_ms)
    assert await world.queue.finish(attempt.ref, Again(5_000, ERROR))
    assert await scan(world, 4_000) == 0
    assert await scan(world, 2_000) == 1


async def test_second_try_of_a_delivery_comes_in_time(world: World, step_ms: int) -> None:
    await world.submit()
    assert await world.queue.finish((await world.start()).ref, Succeeded(0, 0))
    first = await world.next_delivery()
    await scan(world, 2_000)
    world.step(step_ms)
    assert await world.queue.undelivered(first, 13_000)
    await scan(world, 11_000)
    assert (await world.queue.sweep(WS)).deliveries == 0
    await scan(world, 3_000)
    second = await world.next_delivery()
    assert 15_000 <= second.age_ms <= 18_000
    assert abs(second.ended_at_ms - (world.now_ms + world.offset_ms - second.age_ms)) <= SCAN_MS


async def test_times_are_told_by_the_clock_as_it_is_now(world: World, step_ms: int) -> None:
    id = await world.submit(hook=None)
    other = await world.submit()
    await scan(world, 5_000)
    world.step(step_ms)
    await scan(world, 5_000)
    for state in (await world.state(id), await world.state(other)):
        assert abs(state.created_at_ms - (START_MS + step_ms)) <= SCAN_MS
    assert await world.queue.cancel(WS, id)
    ended = await world.state(id)
    assert abs(ended.status_at_ms - (START_MS + step_ms + 10_000)) <= SCAN_MS
    assert abs(ended.created_at_ms - (START_MS + step_ms)) <= SCAN_MS


async def test_steps_there_and_back_delay_nothing_by_more_than_a_lease(world: World, step_ms: int) -> None:
    await world.submit()
    late = await world.submit(hook=None, max_time_in_queue_s=100)
    await world.start()
    for step in (step_ms, -step_ms, step_ms, -step_ms):
        world.step(step)
        assert await scan(world, 8_000) == 1
    assert await scan(world, LEASE_MS) == 2
    await scan(world, 7_000)
    assert (await world.state(late)).errors


async def test_step_that_a_process_does_not_know_of_is_left_to_one_that_does(world: World, own: "redis.Redis") -> None:
    await world.submit(hook=None, max_time_in_queue_s=20)
    await world.queue.sweep(WS)
    world.step(HOUR_MS)
    new = new_client(url_of(own), lambda: 5.0)
    try:
        reply = await new.commands.run("sweep", keys_of(WS), 100, 1000)
        assert reply[5:] == [[], [], []]
        assert (await world.queue.sweep(WS)).startable == {DEP: 1}
        reply = await new.commands.run("sweep", keys_of(WS), 100, 1000)
        assert reply[5] == [b"mdl1 dep1", b"1"]
    finally:
        await new.close()


async def test_time_in_which_no_process_ran_has_passed(world: World, own: "redis.Redis") -> None:
    id = await world.submit(hook=None, max_time_in_queue_s=20)
    await world.queue.sweep(WS)
    await world.close()
    world.advance(HOUR_MS)
    world.connect(url_of(own))
    await scan(world, SCAN_MS)
    assert (await world.state(id)).status is Status.EXPIRED


async def test_time_in_which_redis_was_away_has_passed(world: World) -> None:
    id = await world.submit(hook=None, max_time_in_queue_s=20)
    world.advance(21_000)
    await world.queue.sweep(WS)
    assert (await world.state(id)).status is Status.EXPIRED


async def test_workspace_of_a_request_is_not_forgotten(world: World) -> None:
    """The workspace was announced before the step, and a sweep found nothing in it yet."""
    assert world.client is not None
    await world.client.index.add(WS)
    await world.queue.sweep(WS)
    world.step(HOUR_MS)
    await world.queue.sweep(WS)
    await world.submit()
    assert await world.queue.workspaces() == [WS]


@pytest.mark.parametrize("step_ms", [0, *STEPS_MS], indirect=True)
async def test_nothing_is_left_after_the_last_end(world: World, own: "redis.Redis", step_ms: int) -> None:
    id = await world.submit(hook=None)
    await scan(world, 2_000)
    world.step(step_ms)
    await scan(world, 2_000)
    await world.queue.cancel(WS, id)
    await scan(world, int(GRACE_S * 1000) + SCAN_MS)
    assert leftovers(own) == []


async def taken_back(world: World, own: "redis.Redis", idle_ms: int | None = None) -> bool:
    """Return whether a sweep of all leases takes the only attempt back. `idle_ms`: renew it so long ago before."""
    streams: Any = own.zrange(keys_of(WS) + "held", 0, -1)
    (stream,) = streams
    if idle_ms is not None:
        entries: Any = own.xrange(stream)
        ((entry, _),) = entries
        own.xclaim(stream, "w", "a", 0, [entry], idle=idle_ms, justid=True)
    own.zadd(keys_of(WS) + "held", {stream: 0})
    return bool((await world.queue.sweep(WS)).startable)


@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_leases_end_on_a_server_whose_clock_steps(tmp_path: Path, binary: str) -> None:
    clock = SteppedClock(tmp_path)
    with (
        private_redis(binary=binary, environment=clock.environment) as server,
        redis.Redis(unix_socket_path=str(server.socket_path)) as own,
    ):
        client = QueueClient(server.url)
        world = World(RedisQueue(client))
        await world.submit(max_time_in_queue_s=600)
        attempt = await world.start()
        assert not await taken_back(world, own)
        for step_s in (3600, -7200, 3600):
            clock.step(step_s)
            assert not await taken_back(world, own)
            assert await world.queue.renew([attempt.ref]) == []
            assert not await taken_back(world, own)
        assert await taken_back(world, own, 3_600_000 + LEASE_MS)
        await client.close()
