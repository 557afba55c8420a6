"""Async workers as real processes: the supervisor starts, replaces and stops them, and reports on them."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.async_requests.requests import DeploymentRef, NewRequest, Submission
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from tests.contracts.process.test_supervisor import World, a_world
from tests.processes import command_line, is_running
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            world.proxy.environ["TOLLGATE_ASYNC_WORKERS"] = "1"
            yield world


def async_workers(world: World) -> list[int]:
    return [pid for pid in world.proxy.workers() if "proxy.async_worker" in command_line(pid)]


async def check(world: World, name: str) -> str | None:
    """Return the report of one check in `/readyz`. The proxy must be ready all the time."""
    status, report = await world.proxy.admin("/readyz")
    assert status == 200, report
    text: str | None = json.loads(report)["checks"].get(name)
    return text


async def test_killed_async_worker_is_replaced_and_never_makes_the_proxy_unready(world: World) -> None:
    await world.proxy.start()
    await eventually(lambda: reports(world, "ok"))
    (killed,) = async_workers(world)
    os.kill(killed, signal.SIGSTOP)
    text = await check(world, "async")
    assert text is not None
    assert text.startswith("0 of 1 async workers serve")
    assert await check(world, "workers") == "ok"
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: reports(world, "ok"))
    (replaced,) = async_workers(world)
    assert replaced != killed
    assert (await world.proxy.call())[0] == 200


async def test_without_async_workers_there_is_no_process_and_no_check(world: World) -> None:
    for name, value in (("TOLLGATE_ASYNC", "off"), ("TOLLGATE_ASYNC_WORKERS", "0")):
        before = dict(world.proxy.environ)
        world.proxy.environ[name] = value
        await world.proxy.start()
        assert async_workers(world) == []
        assert await check(world, "async") is None
        assert await world.proxy.stop() == 0
        world.proxy.environ = before


async def test_no_async_worker_outlives_the_supervisor(world: World) -> None:
    await world.proxy.start(TOLLGATE_ASYNC_WORKERS="2")
    workers = async_workers(world)
    assert len(workers) == 2
    await world.proxy.stop(signal.SIGKILL)

    async def ended() -> bool:
        return not any(is_running(pid) for pid in workers)

    await eventually(ended)


async def test_idle_async_worker_ends_at_once_on_sigterm(world: World) -> None:
    await world.proxy.start(TOLLGATE_DRAIN_TIMEOUT_S="60")
    await eventually(lambda: reports(world, "ok"))
    async with asyncio.timeout(20):
        assert await world.proxy.stop() == 0
    assert "Killed" not in world.proxy.log.read_text()


async def reports(world: World, text: str) -> bool:
    return await check(world, "async") == text


async def test_metrics_show_the_shared_queue_only_while_redis_answers(tmp_path: Path) -> None:
    deployment = DeploymentRef("ws", "mdl", "dep")
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            await world.proxy.start(TOLLGATE_ASYNC_WORKERS="0")
            client = QueueClient(redis.url)
            queue = RedisRequestQueue(client, max_queued_bytes=1000)
            await queue.submit(NewRequest("areq_1", deployment, "/", Submission(b"{}", priority=2)), parks=False)
            await client.close()
            labels = 'deployment_id="dep",model_id="mdl",priority="2",workspace="ws"'
            sample = f"tollgate_async_queued{{{labels}}} 1.0"
            assert sample in (await world.proxy.admin("/metrics"))[1]
            redis.pause()
            text = (await world.proxy.admin("/metrics"))[1]
            redis.resume()
            assert "tollgate_async_queued" not in text
            assert "tollgate_async_requests_total" in text
            assert sample in (await world.proxy.admin("/metrics"))[1]
