"""Operations cost Redis as many commands, however many requests wait: commands are counted, not time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from tests.contracts.async_queue.queue_world import DEP, WS, World, redis_world
from tests.redis_server import RedisServer, private_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with private_redis() as instance:
        yield instance


@pytest.fixture
async def world(server: RedisServer) -> AsyncIterator[World]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as own:
        world = redis_world(server.url, own)
        yield world
        await world.close()


async def commands_of(world: World, work: Callable[[World], Awaitable[object]]) -> int:
    """Count the commands that Redis runs for the work, those of scripts included."""

    def calls() -> int:
        assert world.redis is not None
        stats: Any = world.redis.info("commandstats")
        return sum(command["calls"] for name, command in stats.items() if name != "cmdstat_info")

    before = calls()
    await work(world)
    return calls() - before


async def submit_and_cancel(world: World) -> None:
    await world.queue.cancel(WS, await world.submit(b"1"))


OPERATIONS: dict[str, Callable[[World], Awaitable[object]]] = {
    "sweep": lambda world: world.queue.sweep(WS),
    "submit and cancel": submit_and_cancel,
    "start": lambda world: world.queue.start(DEP, "a"),
    "overview": lambda world: world.queue.overview(),
    "figures": lambda world: world.queue.figures(DEP),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_cost_does_not_grow_with_the_queue(world: World, name: str) -> None:
    for _ in range(10):
        await world.submit(b"1")
    await world.start()
    await OPERATIONS[name](world)
    few = await commands_of(world, OPERATIONS[name])
    for _ in range(500):
        await world.submit(b"1")
    assert few > 0
    assert await commands_of(world, OPERATIONS[name]) == few


async def test_sweep_deals_with_a_bounded_number(world: World) -> None:
    for _ in range(250):
        await world.submit(b"1", max_time_in_queue_s=10)
    world.advance(10_000)
    swept = [await world.queue.sweep(WS) for _ in range(4)]
    assert [len(work.ended) for work in swept] == [100, 100, 50, 0]
    assert [work.more for work in swept] == [True, True, False, False]
