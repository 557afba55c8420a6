"""The hint subscriber on a real Redis: hints arrive at once, and again after each outage."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from control.edges.redis.client import connect
from control.edges.redis.hints import HintPublisher
from proxy.edges.policy.supervisor.control_feed import ControlFeed
from proxy.edges.policy.supervisor.hints import CHANNEL, HintSubscriber
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.edges.redis import subscription
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.supervisor.refresher import Refresher
from runtime.background import running
from tests.control.plane import TOKEN, running_plane
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")


@asynccontextmanager
async def subscribed(url: str, hints_received: list[int | None]) -> AsyncIterator[HintSubscriber]:
    hints = HintSubscriber(url, hints_received.append)
    task = asyncio.create_task(hints.run())
    try:
        yield hints
    finally:
        task.cancel()
        await asyncio.wait([task])
        await hints.close()


async def until_received(hints_received: list[int | None], count: int) -> None:
    await eventually(lambda: len(hints_received) >= count)


async def until_newer(replica: PolicyReplica, before: ReplicaVersion) -> None:
    await eventually(lambda: replica.version.revision > before.revision)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis() as running:
        yield running


async def publish(server: RedisServer, text: str) -> None:
    client = Redis.from_url(server.url)
    await client.publish(CHANNEL, text)
    await client.aclose()


async def test_subscription_and_every_hint_are_reported(server: RedisServer) -> None:
    hints_received: list[int | None] = []
    async with subscribed(server.url, hints_received) as hints:
        await until_received(hints_received, 1)
        await publish(server, "42")
        for malformed in ("gibberish", "²", "٣", "-1", ""):
            await publish(server, malformed)
        await until_received(hints_received, 7)
        assert hints_received == [None, 42, *[None] * 5]
        assert not await hints.refusal()
        assert not hints.trouble


async def test_change_at_one_control_reaches_a_proxy_that_asks_another(server: RedisServer, tmp_path: Path) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path}/control.db"
    async with AsyncExitStack() as stack:
        other_plane = await stack.enter_async_context(running_plane(database, "acme", redis_url=server.url))
        other = await stack.enter_async_context(running_plane(database, "other", redis_url=server.url))
        feed = ControlFeed(str(other_plane.client.make_url("/")).rstrip("/"), TOKEN)
        stack.push_async_callback(feed.close)
        replica = PolicyReplica(tmp_path / "replica.db")
        stack.callback(replica.close)
        refresher = Refresher(replica, feed, interval_s=1000)
        hints = HintSubscriber(server.url, refresher.hint)
        stack.push_async_callback(hints.close)
        await stack.enter_async_context(running(refresher.run, hints.run))
        await eventually(lambda: not hints.trouble and not refresher.trouble and replica.version.loaded)
        for name in ("first", "second", "third"):  # the refresh after the subscription may bring one
            before = replica.version
            await other.secret(name)
            await until_newer(replica, before)


async def test_resubscription_after_an_outage_counts_as_a_hint(server: RedisServer) -> None:
    hints_received: list[int | None] = []
    async with subscribed(server.url, hints_received) as hints:
        await until_received(hints_received, 1)
        server.kill()
        assert await hints.refusal()
        await eventually(lambda: hints.trouble)
        assert "not connected yet" not in hints.trouble
        server.start()
        await until_received(hints_received, 2)
        assert not hints.trouble
        await publish(server, "7")
        await until_received(hints_received, 3)
    assert hints_received == [None, None, 7]


async def test_subscription_starts_when_redis_comes_up(server: RedisServer) -> None:
    hints_received: list[int | None] = []
    server.kill()
    async with subscribed(server.url, hints_received) as hints:
        assert await hints.refusal()
        server.start()
        await until_received(hints_received, 1)


async def test_unresponsive_connection_is_replaced(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "QUIET_S", 0.4)
    hints_received: list[int | None] = []
    async with subscribed(server.url, hints_received) as hints:
        await until_received(hints_received, 1)
        await asyncio.sleep(1)
        assert hints_received == [None]  # Redis answers pings, so the connection is kept
        server.pause()
        await eventually(hints.refusal)
        server.resume()
        await until_received(hints_received, 2)


async def test_control_sends_hints_for_lower_revisions_too(server: RedisServer) -> None:
    """The database of control may be restored to a point in time while control runs."""
    hints_received: list[int | None] = []
    redis = connect(server.url)
    telling = HintPublisher(redis)
    await telling.start()
    async with subscribed(server.url, hints_received):
        await until_received(hints_received, 1)
        for count, revision in enumerate((100, 7, 7), start=2):
            telling.publish(revision)
            await until_received(hints_received, count)
    await telling.close()
    await redis.aclose()
    assert hints_received == [None, 100, 7, 7]
