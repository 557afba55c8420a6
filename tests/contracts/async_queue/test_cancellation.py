"""A task that is cancelled in the midst of a command ends: redis-py and the event loop must not swallow it."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from tests.redis_server import RedisServer, private_redis
from tests.waiting import PATIENCE_S

BOTH_LOOPS = True
ROUNDS = 200


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with private_redis() as instance:
        yield instance


async def test_a_cancelled_task_ends_wherever_its_command_is(server: RedisServer) -> None:
    client = QueueClient(server.url)
    queue = RedisAttemptQueue(client, 3600, 1_000_000)

    async def sweep_for_ever() -> None:
        while True:
            await queue.sweep("ws1")
            await asyncio.sleep(0)

    for _ in range(ROUNDS):
        task = asyncio.create_task(sweep_for_ever())
        for _ in range(random.randrange(60)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        assert task.cancelled(), "it goes on"
    await client.close()
