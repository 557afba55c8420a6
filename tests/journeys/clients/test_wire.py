"""Stock clients on the wire: keep-alive, pipelining, large bodies, calls that wait for a replica."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.journeys.conftest import Stage

MAX_BYTES = 100_000_000
MESSAGES = [{"role": "user", "content": "Hello"}]


def message(stage: Stage, key: str, more: str = "") -> bytes:
    body = json.dumps({"model": stage.slug, "messages": MESSAGES})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@asynccontextmanager
async def connected(stage: Stage) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    at = urlsplit(stage.product.proxy)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


def ask_twice(stage: Stage, key: str) -> tuple[list[int], set[Any]]:
    """Make two calls with the standard library's client. Return their statuses and their local addresses."""
    at = urlsplit(stage.product.proxy)
    statuses = []
    sockets = set()
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=30)
    for stream in (False, True):
        body = json.dumps({"model": stage.slug, "messages": MESSAGES, "stream": stream})
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"})
        sockets.add(connection.sock.getsockname())
        answer = connection.getresponse()
        assert answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses, sockets


async def test_stock_clients_keep_their_connection(stage: Stage) -> None:
    key = await stage.key_without_limits()
    statuses, sockets = await asyncio.to_thread(ask_twice, stage, key)
    assert (statuses, len(sockets)) == ([200, 200], 1)

    opened = 0

    async def count(*_: Any) -> None:
        nonlocal opened
        opened += 1

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(count)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(trace_configs=[trace], headers=headers) as session:
        for stream in (False, True, False):
            body = {"model": stage.slug, "messages": MESSAGES, "stream": stream}
            async with session.post(stage.product.proxy + "/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()
    assert opened == 1


async def test_pipelined_calls_are_answered_in_order(stage: Stage) -> None:
    key = await stage.key_without_limits()
    async with connected(stage) as (reader, writer):
        writer.write(b"".join(message(stage, key, f"X-Request-Id: p{number}\r\n") for number in range(5)))
        for number in range(5):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert f"x-request-id: p{number}\r\n".encode() in head
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            await reader.readexactly(int(length.partition(b": ")[2]))
    events = await stage.events_of(stage.name, 5)
    assert sorted(event["requestId"] for event in events) == [f"p{number}" for number in range(5)]


async def test_413_names_the_bodys_size_and_the_limit(stage: Stage) -> None:
    key = await stage.key_without_limits()
    head = message(stage, key).partition(b"Content-Length")[0]
    async with connected(stage) as (reader, writer):
        writer.write(head + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (MAX_BYTES + 1))
        answer = await reader.readuntil(b"}")
        assert answer.startswith(b"HTTP/1.1 413 "), "no 100 Continue before it"
        assert b"payload size of 100000001 bytes exceeds maximum size of 100000000 bytes" in answer

    async with connected(stage) as (reader, writer):
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"f4240\r\n" + b" " * 1_000_000 + b"\r\n"
        answered = asyncio.ensure_future(reader.readuntil(b"}"))
        try:
            for _ in range(2 * MAX_BYTES // 1_000_000):
                if answered.done():
                    break
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass  # the proxy closed the connection after its answer
        answer = await asyncio.wait_for(answered, 30)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"bytes exceeds maximum size of 100000000 bytes" in answer
    assert not stage.upstream.received


async def test_parked_call_is_answered_once_a_replica_is_running(stage: Stage) -> None:
    model = await stage.operator.model(stage.name, stage.upstream.url)
    path = f"/v1/models/{model}/deployments"
    [deployment] = (await stage.operator.call("GET", path))["items"]
    replicas = f"{path}/{deployment['id']}/replicas"
    assert (await stage.operator.call("PUT", replicas, {"replicas": []}))["status"] == "SCALED_TO_ZERO"
    await stage.operator.endpoint(stage.slug, model)
    key = await stage.operator.key(await stage.operator.group(stage.name, [{"slug": stage.slug}]))
    parked = asyncio.ensure_future(stage.ask(key))
    leaves = asyncio.ensure_future(stage.ask(key, metadata={"who": "leaves"}))
    ended_tasks, _ = await asyncio.wait([parked, leaves], timeout=1.0)
    assert not ended_tasks, "held, not answered 503"
    gone_before = hang_ups(stage)
    leaves.cancel()
    await stage.until(lambda: hung_up_since(stage, gone_before), "the log says that a caller left")
    await stage.operator.call("PUT", replicas, {"replicas": [stage.upstream.url]})
    answer = await asyncio.wait_for(parked, 30)
    assert answer.choices[0].message.content == "This is upstream."
    assert len(stage.upstream.received) == 1, "who left is not sent"
    assert len(await stage.events_of(stage.name, 1)) == 1


def hang_ups(stage: Stage) -> int:
    """Count the log lines that say that a caller has left."""
    whole = stage.product.log.read_text().rpartition("\n")[0]  # the product may be writing the last line
    lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    statuses = [line["status"] for line in lines if line["message"] == "Client closed connection"]
    assert set(statuses) <= {499}
    return len(statuses)


async def hung_up_since(stage: Stage, before: int) -> bool:
    return hang_ups(stage) > before


async def test_pages_of_named_origins_may_call(killable_stage: Stage) -> None:
    stage = killable_stage
    page = "https://app.example.com"
    stage.product.stop()
    stage.product.environment["TOLLGATE_CORS_ORIGINS"] = page
    stage.product.start()
    key = await stage.key_without_limits()
    url = f"{stage.product.proxy}/v1/chat/completions"
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
    }
    async with stage.session.options(url, headers={"Origin": page} | preflight) as answer:
        assert (answer.status, await answer.read()) == (204, b"")
        assert answer.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    async with stage.session.options(url, headers={"Origin": "https://other.example"} | preflight) as answer:
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (401, None)
    headers = {"Origin": page, "Authorization": f"Bearer {key}"}
    async with stage.session.post(url, json={"model": stage.slug, "messages": MESSAGES}, headers=headers) as answer:
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, page)
