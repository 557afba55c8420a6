"""Asynchronous requests over real sockets, with the queue and the limits in a real Redis each.

See docs/reference/inference.md#asynchronous-requests.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import redis

from policy.deployments import Deployment
from policy.hosts import EgressRules
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.snapshot import WorkspaceRow
from proxy.async_requests.requests import DeploymentRef
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.telemetry.async_counts import AsyncCounts
from proxy.edges.upstream.receiver_urls import ReceiverUrls
from proxy.parts import AsyncQueueing, Parts
from tests.fakes.directory import WORKSPACE_KEY
from tests.fakes.front import Front, listening
from tests.fakes.path import PathRig
from tests.redis_server import RedisServer, private_redis
from tests.waiting import eventually

MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ0"
DEPLOYMENT = DeploymentRef("w1", MODEL, "dep_1")
SUBMIT = f"POST /models/{MODEL}/production/async_predict"
PATIENT = CountersOptions(client=RedisClientOptions(deadline_s=5.0))
"""Callers and workers share one busy loop here."""
OPTIONS = HttpLimits(watch_interval_s=0.05)


@dataclass
class WorkerRig(PathRig):
    """One worker: its own counters and its own client of the queue."""

    queueing: AsyncQueueing | None = None

    def parts(self) -> Parts:
        return replace(super().parts(), async_queueing=self.queueing)


@dataclass
class Machine:
    """Workers behind sockets, the Redis of their limits and that of their queue."""

    queue_redis: RedisServer
    queue: RedisRequestQueue
    rigs: list[WorkerRig] = field(default_factory=list)
    fronts: list[Front] = field(default_factory=list)

    async def answer(self, line: str, body: bytes = b"", fields: str = "", worker: int = 0) -> tuple[int, bytes, bytes]:
        """Status, head and body of one answer."""
        raw = await self.fronts[worker].ask(request(line, body, f"connection: close\r\n{fields}"))
        head, _, content = raw.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), head, content

    async def submit(self, body: bytes = b'{"model_input": 1}', worker: int = 0) -> str:
        status, _, content = await self.answer(SUBMIT, body, worker=worker)
        assert status == 201, content
        id: str = json.loads(content)["request_id"]
        return id

    async def status(self, id: str, worker: int = 0) -> str:
        status, _, content = await self.answer(f"GET /async_request/{id}", worker=worker)
        return str(json.loads(content)["status"]) if status == 200 else str(status)

    async def queued(self) -> int:
        return sum((await self.queue.figures(DEPLOYMENT)).queued.values())


def request(line: str, body: bytes = b"", fields: str = "") -> bytes:
    length = "" if "content-length" in fields or "transfer-encoding" in fields else f"Content-Length: {len(body)}\r\n"
    return (
        f"{line} HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {WORKSPACE_KEY}\r\n{fields}{length}\r\n".encode() + body
    )


def sized(size: int) -> bytes:
    return b'{"model_input": "' + b"x" * (size - 19) + b'"}'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with private_redis() as limits, private_redis(("--appendonly", "yes", "--appendfsync", "always")) as queue:
        yield limits, queue


@asynccontextmanager
async def serving(servers: tuple[RedisServer, RedisServer], workers: int = 1) -> AsyncIterator[Machine]:
    limits, queue_redis = servers
    async with AsyncExitStack() as stack:
        own = QueueClient(queue_redis.url)
        stack.push_async_callback(own.close)
        for server in servers:
            with redis.Redis(unix_socket_path=str(server.socket_path)) as emptying:
                emptying.flushall()
        machine = Machine(queue_redis, RedisRequestQueue(own, 1 << 20))
        for number in range(workers):
            client = QueueClient(queue_redis.url)
            urls = ReceiverUrls(EgressRules())
            stack.push_async_callback(client.close)
            stack.callback(urls.close)
            counters = RedisCounters(limits.url, f"worker-{number}-{id(machine)}", options=PATIENT)
            await counters.start()
            stack.push_async_callback(counters.close)
            queueing = AsyncQueueing(queue=RedisRequestQueue(client, 1 << 20), webhook_urls=urls, counts=AsyncCounts())
            rig = WorkerRig(queueing=queueing, max_body_bytes=100_000_000, counters=counters)  # type: ignore[arg-type]
            rig.directory.add_model(MODEL, Deployment("dep_1", "ACTIVE"))
            machine.rigs.append(rig)
            machine.fronts.append(await stack.enter_async_context(listening(rig.pipeline.handle, OPTIONS)))
        yield machine


@pytest.fixture
async def machine(servers: tuple[RedisServer, RedisServer]) -> AsyncIterator[Machine]:
    async with serving(servers) as machine:
        yield machine


async def test_request_is_queued_told_and_canceled(machine: Machine) -> None:
    id = await machine.submit(
        b'{"model_input": {"a": 1}, "priority": 2, "webhook_endpoint": "https://93.184.215.14/x"}'
    )
    status, head, content = await machine.answer(f"GET /models/{MODEL}/async_request/{id}")
    state = json.loads(content)
    assert (status, state["status"], state["webhook_status"]) == (200, "QUEUED", "PENDING")
    assert b"content-type: application/json" in head
    figures = json.loads((await machine.answer(f"GET /models/{MODEL}/deployment/dep_1/async_queue_status"))[2])
    assert figures["priorities"] == {"0": 0, "1": 0, "2": 1}
    for canceled in (True, False):
        content = (await machine.answer(f"DELETE /async_request/{id}"))[2]
        assert json.loads(content)["canceled"] is canceled
    assert await machine.status(id) == "CANCELED"
    assert await machine.queued() == 0


async def test_head_has_no_body_and_keeps_the_connection(machine: Machine) -> None:
    id = await machine.submit()
    caller = await machine.fronts[0].caller()
    for _ in range(2):
        caller.send(request(f"HEAD /async_request/{id}"))
        assert (await caller.head()).startswith(b"HTTP/1.1 200")
    caller.send(request(f"GET /async_request/{id}"))
    assert (await caller.answer())[0] == 200


# Bodies.


async def test_default_bound_holds_to_the_byte_declared_and_chunked(machine: Machine) -> None:
    for size, expected in ((262_144, 201), (262_145, 413)):
        body = sized(size)
        chunked = b"".join(chunk(body[at : at + 60_000]) for at in range(0, size, 60_000)) + b"0\r\n\r\n"
        for sent_body, fields in ((body, ""), (chunked, "transfer-encoding: chunked\r\n")):
            status, _, content = await machine.answer(SUBMIT, sent_body, fields)
            assert status == expected, content
            if status == 413:
                message = json.loads(content)["error"]
                assert message == "payload size of 262145 bytes exceeds maximum size of 262144 bytes"
    assert await machine.queued() == 2


async def test_hundred_megabytes_are_refused_before_they_are_read(machine: Machine) -> None:
    caller = await machine.fronts[0].caller()
    caller.send(request(SUBMIT, b"", "content-length: 100000000\r\nexpect: 100-continue\r\n"))
    status, _, content = await caller.answer()
    assert status == 413
    assert b"payload size of 100000000 bytes exceeds maximum size of 262144 bytes" in content
    caller = await machine.fronts[0].caller()
    caller.send(request(SUBMIT, b"", "transfer-encoding: chunked\r\n"))
    for _ in range(5):
        caller.send(chunk(b"x" * 65_536))
    assert (await caller.answer())[0] == 413
    assert [call.status for call in machine.rigs[0].meters.calls] == [413, 413]
    await eventually(lambda: machine.rigs[0].pipeline._capacity.held_bytes == 0)


async def test_workspace_with_a_bound_of_its_own_may_send_megabytes(machine: Machine) -> None:
    machine.rigs[0].directory.workspaces["w1"] = WorkspaceRow("w1", "active", "basic", True, 900_000)
    await machine.submit(sized(900_000))
    assert (await machine.answer(SUBMIT, sized(900_001)))[0] == 413
    status, _, content = await machine.answer(SUBMIT, sized(300_000))
    assert (status, json.loads(content)["error_code"]) == (429, "ASYNC_QUEUE_FULL")


async def test_body_in_drops_is_put_together(machine: Machine) -> None:
    caller = await machine.fronts[0].caller()
    body = b'{"priority": 1, "model_input": 1, "model_input": 2, "priority": 2}'
    caller.send(request(SUBMIT, b"", f"content-length: {len(body)}\r\n"))
    for byte in body:
        caller.send(bytes((byte,)))
        await caller.writer.drain()
    assert (await caller.answer())[0] == 201
    assert (await machine.queue.figures(DEPLOYMENT)).queued == {0: 0, 1: 0, 2: 1}, "of a double member the last counts"


async def test_caller_who_leaves_within_the_body_queues_nothing(machine: Machine) -> None:
    caller = await machine.fronts[0].caller()
    caller.send(request(SUBMIT, b'{"model_input', "content-length: 300\r\n"))
    await eventually(lambda: machine.rigs[0].pipeline._capacity.held_bytes > 0)
    caller.disconnect()
    await eventually(lambda: [call.status for call in machine.rigs[0].meters.calls] == [499])
    assert await machine.queued() == 0


HOSTILE = {
    f"GET /async_request/{'a' * 7000}": 404,
    "GET /async_request/..": 404,
    "DELETE /async_request/%2e%2e%2fadmin": 404,
    "GET /async_request/%zz": 400,
    "GET /async_request/a#b": 400,
    "DELETE /async_request/": 404,
    "GET /async_request": 404,
    "GET /async_request/areq_01JABCDEFGHJKMNPQRSTVWXYZ0/": 404,
    f"POST /models/{MODEL}/production/async_predict/": 404,
    f"POST /models/{MODEL}/production/../production/async_predict": 404,
    f"POST /models/{MODEL}/production/ASYNC_PREDICT": 404,
    f"GET {SUBMIT.removeprefix('POST ')}": 405,
    f"OPTIONS {SUBMIT.removeprefix('POST ')}": 405,
    "POST /async_request/areq_01JABCDEFGHJKMNPQRSTVWXYZ0": 405,
    "PATCH /async_request/x": 405,
}


@pytest.mark.parametrize(("line", "status"), HOSTILE.items(), ids=lambda value: str(value)[:60])
async def test_odd_paths_are_refused_flat(machine: Machine, line: str, status: int) -> None:
    answered, head, content = await machine.answer(line, b'{"model_input": 1}' if line.startswith("POST") else b"")
    assert answered == status
    assert set(json.loads(content)) == {"error", "error_code"}
    assert (b"allow:" in head) == (status == 405)
    assert await machine.queued() == 0


# Limits over several workers.


async def test_limits_hold_over_two_workers(
    servers: tuple[RedisServer, RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy.limits.async_limits.SUBMISSIONS", Limit(LimitType.REQUEST, Unit.MINUTE, 30))
    async with serving(servers, workers=2) as machine:
        answers = await asyncio.gather(
            *(machine.answer(SUBMIT, b'{"model_input": 1}', worker=n % 2) for n in range(80))
        )
        assert Counter(status for status, *_ in answers) == {201: 30, 429: 50}
        assert await machine.queued() == 30
        waits = [int(re.search(rb"retry-after: (\d+)", head)[1]) for status, head, _ in answers if status == 429]  # type: ignore[index]
        assert all(30 < wait <= 61 for wait in waits)
        assert {json.loads(content)["error_code"] for status, _, content in answers if status == 429} == {
            "RATE_LIMITED"
        }


async def test_hundred_look_ups_a_second_over_two_workers(servers: tuple[RedisServer, RedisServer]) -> None:
    async with serving(servers, workers=2) as machine:
        id = await machine.submit()
        lines = (f"GET /async_request/{id}", f"DELETE /async_request/{id}")
        answers = await asyncio.gather(*(machine.answer(lines[n % 2], worker=n // 2 % 2) for n in range(160)))
        statuses = Counter(status for status, *_ in answers)
        assert set(statuses) <= {200, 429}
        assert statuses[200] >= 100, "the whole limit may be used at once"
        await asyncio.sleep(1.1)
        assert await machine.status(id) == "CANCELED", "a second later there is room again"


# A queue that is away.


async def test_queue_that_hangs_is_a_503_in_time_and_the_request_has_one_fate(machine: Machine) -> None:
    await machine.submit()
    machine.queue_redis.pause()
    try:
        status, _, content = await machine.answer(SUBMIT, b'{"model_input": 1}')
        assert (status, json.loads(content)["error_code"]) == (503, "ASYNC_UNAVAILABLE")
        for line in (
            "GET /async_request/areq_01JABCDEFGHJKMNPQRSTVWXYZ0",
            f"GET /models/{MODEL}/production/async_queue_status",
        ):
            assert (await machine.answer(line))[0] == 503
    finally:
        machine.queue_redis.resume()
    await machine.submit()
    [doubtful] = re.findall("areq_[0-9A-Z]{26}", json.loads(content)["error"])
    fate = await machine.status(doubtful)
    assert fate in ("404", "CANCELED", "QUEUED")
    assert await machine.queued() == (3 if fate == "QUEUED" else 2)


async def test_queue_that_is_down_and_comes_back_serves_again(machine: Machine) -> None:
    id = await machine.submit()
    machine.queue_redis.kill()
    status, _, content = await machine.answer(SUBMIT, b'{"model_input": 1}')
    assert (status, json.loads(content)["error_code"]) == (503, "ASYNC_UNAVAILABLE")
    machine.queue_redis.start()
    assert await machine.status(id) == "QUEUED"
    await machine.submit()


async def test_queue_that_was_never_there_refuses_only_asynchronous_requests(
    servers: tuple[RedisServer, RedisServer],
) -> None:
    async with serving(servers) as machine:
        absent = QueueClient("unix:///nowhere/redis.sock")
        machine.rigs[0].queueing = AsyncQueueing(
            queue=RedisRequestQueue(absent, 1), webhook_urls=ReceiverUrls(EgressRules()), counts=AsyncCounts()
        )
        machine.rigs[0].over(machine.rigs[0].upstream)
        async with listening(machine.rigs[0].pipeline.handle, OPTIONS) as front:
            machine.fronts[0] = front
            assert (await machine.answer(SUBMIT, b'{"model_input": 1}'))[0] == 503
            assert (await machine.answer("GET /v1/models"))[0] == 403
        await absent.close()


async def test_caller_who_leaves_before_the_201_may_have_queued_a_request(machine: Machine) -> None:
    machine.queue_redis.pause()
    caller = await machine.fronts[0].caller()
    try:
        caller.send(request(SUBMIT, b'{"model_input": 1}'))
        await asyncio.sleep(0.3)
        caller.disconnect()
        await eventually(lambda: [call.status for call in machine.rigs[0].meters.calls] == [499])
    finally:
        machine.queue_redis.resume()
    await machine.submit()
    assert await machine.queued() in (1, 2)
