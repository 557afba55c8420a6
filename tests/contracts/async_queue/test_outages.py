"""Every fault of Redis is `QueueUnavailableError`, and a log line that names the cause and the remedy."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import DeploymentRef, NewRequest, Submission
from proxy.edges.redis.async_queue import commands
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.commands import QueueOptions
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from tests.contracts.async_queue.queue_world import LEASE_MS
from tests.contracts.redis.test_counters_access import IN_URL, PASSWORD, tls_front
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import own_port
from tests.redis_server import RedisServer, private_redis
from tests.waiting import PATIENCE_S

BOTH_LOOPS = True
WS = "ws1"
DEP = DeploymentRef("ws1", "mdl1", "dep1")
NEEDED = (
    "~tga:* &tga:* +evalsha +script|load +info +wait +hmget +hget +hkeys +zrange +ping +subscribe +unsubscribe +time"
)
IN_SCRIPTS = (
    "+del +exists +hdel +hexists +hgetall +hincrby +hlen +hset +hstrlen +persist +pexpire +publish +sadd"
    " +srandmember +srem +unlink +xack +xadd +xclaim +xdel +xgroup +xinfo +xlen +xpending +xrange +xreadgroup +zadd"
    " +zrangebyscore +zrem +zscore +auth +select"
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis() as instance:
        yield instance


@pytest.fixture
def own(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        yield client


@asynccontextmanager
async def queue_at(url: str, options: QueueOptions | None = None) -> AsyncIterator[RedisRequestQueue]:
    client = QueueClient(url, options)
    try:
        yield RedisRequestQueue(client, 1_000_000)
    finally:
        await client.close()


@pytest.fixture
async def queue(server: RedisServer) -> AsyncIterator[RedisRequestQueue]:
    async with queue_at(server.url, QueueOptions(timeout_s=2)) as request_queue:
        yield request_queue


async def submit(queue: RedisRequestQueue, id: str) -> None:
    await queue.submit(NewRequest(id, DEP, "/predict", Submission(b"{}")), parks=False)


async def refused(queue: RedisRequestQueue, caplog: pytest.LogCaptureFixture) -> str:
    """Submit, expect a refusal, and return the log of it."""
    caplog.clear()
    with pytest.raises(QueueUnavailableError):
        await submit(queue, "refused")
    return caplog.text


async def test_outage_is_logged_once_and_its_end_too(
    server: RedisServer, queue: RedisRequestQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await submit(queue, "r1")
    server.kill()
    for _ in range(3):
        with pytest.raises(QueueUnavailableError):
            await queue.state(WS, "r1")
    assert caplog.text.count("Redis does not serve asynchronous requests") == 1
    assert "TOLLGATE_ASYNC_REDIS_URL" in caplog.text
    server.start()
    await submit(queue, "r2")
    assert caplog.text.count("answers again") == 1


async def test_log_repeats_a_long_outage(
    server: RedisServer,
    queue: RedisRequestQueue,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "LOG_INTERVAL_S", 0.0)
    server.kill()
    for _ in range(3):
        with pytest.raises(QueueUnavailableError):
            await queue.state(WS, "r1")
    assert caplog.text.count("Redis does not serve asynchronous requests") == 3


async def test_silent_redis_is_unavailable(
    server: RedisServer, queue: RedisRequestQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await submit(queue, "r1")
    server.pause()
    try:
        assert "Timeout" in await refused(queue, caplog)
    finally:
        server.resume()
    await submit(queue, "r2")


async def test_key_of_another_program_is_named(
    queue: RedisRequestQueue, own: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    own.set("tga:{ws1}:d:dep1", "mine")
    assert "Another program uses keys" in await refused(queue, caplog)


async def test_full_redis_refuses_requests_but_lets_them_end(
    queue: RedisRequestQueue, own: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    await submit(queue, "r1")
    own.config_set("maxmemory", 1)
    assert "maxmemory" in await refused(queue, caplog)
    assert not own.exists("tga:{ws1}:r:refused")
    canceled = await queue.cancel(WS, "r1")
    assert canceled is not None
    assert canceled.canceled


async def test_replica_is_named(queue: RedisRequestQueue, own: "redis.Redis", caplog: pytest.LogCaptureFixture) -> None:
    await submit(queue, "r1")
    own.replicaof("127.0.0.1", 1)
    assert "must name a primary" in await refused(queue, caplog)


async def test_busy_redis_is_unavailable(
    queue: RedisRequestQueue, own: "redis.Redis", server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await submit(queue, "r1")
    own.config_set("lua-time-limit", 10)

    def block() -> None:
        with redis.Redis(unix_socket_path=str(server.socket_path)) as other, pytest.raises(redis.ResponseError):
            other.eval("while true do end", 0)

    blocker = threading.Thread(target=block)
    blocker.start()
    await asyncio.sleep(0.3)
    try:
        assert "runs for too long" in await refused(queue, caplog)
    finally:
        own.script_kill()
        blocker.join()


async def test_forgotten_scripts_are_loaded_again(queue: RedisRequestQueue, own: "redis.Redis") -> None:
    await submit(queue, "r1")
    own.script_flush()
    await submit(queue, "r2")


async def test_flood_opens_few_connections(server: RedisServer, own: "redis.Redis") -> None:
    async with queue_at(server.url, QueueOptions(connections=4)) as queue:
        await asyncio.gather(*(submit(queue, f"r{number}") for number in range(300)))
        clients: int = own.info("clients")["connected_clients"]
    assert clients <= 4 + 1 + 1, "the pool's, the subscription's and the test's"


async def test_abandoned_command_does_not_shift_replies(server: RedisServer) -> None:
    async with queue_at(server.url, QueueOptions(connections=2)) as queue:
        for number in range(8):
            deployment = DeploymentRef(WS, "mdl1", f"dep{number}")
            await queue.submit(NewRequest(f"r{number}", deployment, "/predict", Submission(b"{}")), parks=False)
        for turn in range(200):
            abandoned = [asyncio.create_task(queue.state(WS, f"r{number}")) for number in range(4)]
            for _ in range(turn % 10):
                await asyncio.sleep(0)
            for task in abandoned:
                task.cancel()
            state = await queue.state(WS, f"r{turn % 8}")
            assert state is not None
            assert state.deployment.deployment_id == f"dep{turn % 8}"
            await asyncio.gather(*abandoned, return_exceptions=True)


async def test_hints_survive_an_outage(server: RedisServer) -> None:
    client = QueueClient(server.url)
    async with aclosing(RedisAttemptQueue(client, 60, 1000).queue_hints()) as hints:
        assert await anext(hints) == ""
        server.kill()
        server.start()
        assert await asyncio.wait_for(anext(hints), PATIENCE_S) == ""
        await submit(RedisRequestQueue(client, 1000), "r1")
        assert await asyncio.wait_for(anext(hints), PATIENCE_S) == WS
    await client.close()


async def test_lease_ends_by_redis_own_clock(server: RedisServer, own: "redis.Redis") -> None:
    client = QueueClient(server.url)
    attempts = RedisAttemptQueue(client, 60, 1000)
    await submit(RedisRequestQueue(client, 1000), "r1")
    assert await attempts.start(DEP, "a")
    stream = "tga:{ws1}:q:dep1:0"
    held_key = "tga:{ws1}:held"

    async def sweep_after(idle_ms: int) -> int:
        """Return how many requests can be started after `idle_ms`."""
        entries: Any = own.xrange(stream)
        own.xclaim(stream, "w", "a", 0, [entries[0][0]], idle=idle_ms, justid=True)
        own.zadd(held_key, {stream: 0})
        return (await attempts.sweep(WS)).startable.get(DEP, 0)

    assert await sweep_after(1000) == 0
    due_ms: Any = own.zscore(held_key, stream)
    seconds, microseconds = own.time()
    assert 0 < due_ms - (seconds * 1000 + microseconds // 1000) <= LEASE_MS - 1000, "when the sweep looks again"
    assert await sweep_after(LEASE_MS) == 1
    await client.close()


# --- addresses and logins ---


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[RedisServer, int]]:
    """A Redis that requires a login, on TCP too."""
    port = own_port()
    with private_redis(["--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD]) as running:
        with redis.Redis(unix_socket_path=str(running.socket_path), password=PASSWORD) as own:
            rules = f"{NEEDED} {IN_SCRIPTS}".split()
            own.execute_command("ACL", "SETUSER", "tollgate", "on", f">{PASSWORD}", *rules)
        yield running, port


async def works(url: str) -> bool:
    async with queue_at(url, QueueOptions(connect_timeout_s=1)) as queue:
        try:
            await submit(queue, "r1")
        except QueueUnavailableError:
            return False
        return await queue.state(WS, "r1") is not None


async def test_client_connects_in_every_form_of_the_address(guarded: tuple[RedisServer, int], tmp_path: Path) -> None:
    server, port = guarded
    ca = ThrowawayCa(tmp_path)
    assert await works(f"unix://:{IN_URL}@{server.socket_path}?db=2")
    assert await works(f"redis://:{IN_URL}@127.0.0.1:{port}/3")
    assert await works(f"redis://tollgate:{IN_URL}@127.0.0.1:{port}"), "with only the documented commands"
    async with tls_front(server, ca, "localhost") as front:
        assert await works(f"rediss://:{IN_URL}@localhost:{front}?ssl_ca_certs={ca.ca_file}")
        assert await works(f"rediss://:{IN_URL}@localhost:{front}?ssl_cert_reqs=none")
        assert not await works(f"rediss://:{IN_URL}@localhost:{front}")


@pytest.mark.parametrize("login", ["", ":wrong@"])
async def test_failed_login_is_named_and_logs_no_password(
    guarded: tuple[RedisServer, int], login: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await works(f"redis://{login}127.0.0.1:{guarded[1]}")
    assert "Check the user and the password" in caplog.text
    assert "wrong@" not in caplog.text
