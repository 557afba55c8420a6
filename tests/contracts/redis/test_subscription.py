"""A subscription on a real Redis: whenever its reader is cancelled, it ends; a silent server is reported."""

import asyncio
from collections.abc import Iterator

import pytest

from proxy.edges.redis import subscription
from proxy.edges.redis.subscription import connect, subscribed
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")
STEPS = 40
"""Steps of the event loop: more than a subscription takes."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with private_redis() as running:
        yield running


async def read(url: str, losses: list[Exception]) -> None:
    client = connect(url)
    try:
        async for _ in subscribed(client, "channel", losses.append, (0.1, 0.1)):
            pass
    finally:
        await client.aclose()


@pytest.mark.parametrize("steps", range(STEPS))
async def test_cancelled_reader_ends_wherever_it_is(server: RedisServer, steps: int) -> None:
    losses: list[Exception] = []
    reader = asyncio.create_task(read(server.url, losses))
    for _ in range(steps):
        await asyncio.sleep(0)
    reader.cancel()
    ended, _ = await asyncio.wait([reader], timeout=PATIENCE_S)
    reader.cancel()
    await asyncio.wait([reader])
    assert ended, "the cancellation was swallowed"
    assert losses == []


async def test_server_that_is_silent_from_the_start_is_reported(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "SUBSCRIBE_S", 0.2)
    losses: list[Exception] = []
    server.pause()
    reader = asyncio.create_task(read(server.url, losses))
    try:
        await eventually(lambda: losses)
    finally:
        server.resume()
        reader.cancel()
        await asyncio.wait([reader])
    assert isinstance(losses[0], TimeoutError)
