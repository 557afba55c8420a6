"""A proxy whose worker runs out of file descriptors or memory: it sheds calls, says why, and bills nothing for them."""

import asyncio
import io
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contracts.process.test_supervisor import World, a_world, make_key
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server: apt-get install redis-server")

CALLS = 150
LEFT = 96
"""File descriptors that the worker may take besides those it has: 24 of a low limit are kept for other things."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            yield world


def limit_descriptors(pid: int, free: int) -> None:
    open_now = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + free, open_now + free))


async def call(
    world: World, client: aiohttp.ClientSession, content: str = "hi"
) -> tuple[int, dict[str, str], dict[str, Any]]:
    """One call on a connection of its own."""
    body = {"model": "org/m", "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": f"Bearer {make_key(1)}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{world.proxy.port}/v1/chat/completions"
    async with client.post(url, data=io.BytesIO(json.dumps(body).encode()), headers=headers) as answer:
        return answer.status, dict(answer.headers), await answer.json()


async def degraded(world: World) -> list[str]:
    status, report = await world.proxy.admin("/readyz")
    assert status == 200, report
    return [text for text in json.loads(report)["degraded"] if text.startswith("capacity: ")]


async def test_calls_beyond_the_descriptors_are_shed_and_leave_no_event(world: World) -> None:
    await world.proxy.start()
    (worker,) = world.proxy.workers()
    world.upstream.gate.close()
    limit_descriptors(worker, LEFT)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        calls = [asyncio.create_task(call(world, client)) for _ in range(CALLS)]

        async def all_but_the_sent_have_ended() -> bool:
            return sum(task.done() for task in calls) + len(world.upstream.received) == CALLS

        await eventually(all_but_the_sent_have_ended)
        shed = [task.result() for task in calls if task.done()]
        assert shed
        assert {(status, body["error_code"]) for status, _, body in shed} == {(529, "CAPACITY_EXHAUSTED")}
        assert {headers["Retry-After"] for _, headers, _ in shed} == {"1"}
        (text,) = await degraded(world)
        assert "Out of file descriptors" in text
        world.upstream.gate.open()
        answers = Counter(status for status, _, _ in await asyncio.gather(*calls))
    assert answers == {200: CALLS - len(shed), 529: len(shed)}

    async def events_are_shipped() -> bool:
        return len(world.events) == answers[200] and await world.proxy.metric("tollgate_journal_pending_events") == 0

    await eventually(events_are_shipped)
    log = world.proxy.log.read_text()
    assert "Raise it: `ulimit -n`" in log
    assert "Please report" not in log

    async def has_recovered() -> bool:
        return not await degraded(world)

    await eventually(has_recovered)
    async with aiohttp.ClientSession() as client:
        status, headers, _ = await call(world, client)
    assert status == 200
    assert int(headers["x-ratelimit-remaining-requests"]) == 1000 - answers[200] - 1, "what was taken was given back"


LARGE_BYTES = 30 << 20


async def test_call_that_takes_more_memory_than_the_worker_may_have_is_shed(world: World) -> None:
    await world.proxy.start()
    (worker,) = world.proxy.workers()
    assert (await world.proxy.call())[0] == 200
    limit_memory(worker, LARGE_BYTES // 2)
    async with aiohttp.ClientSession() as client:
        statuses = [(await call(world, client, "x" * LARGE_BYTES))[0] for _ in range(3)]
        assert statuses == [529] * 3
        (text,) = await degraded(world)
        assert "Out of memory" in text
        assert (await call(world, client))[0] == 200
    log = world.proxy.log.read_text()
    assert "`ulimit -v`" in log
    assert "Please report" not in log
    assert world.proxy.workers() == [worker]


def limit_memory(pid: int, free_bytes: int) -> None:
    (size,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmSize" in line]
    resource.prlimit(pid, resource.RLIMIT_AS, (int(size) * 1024 + free_bytes, resource.RLIM_INFINITY))
