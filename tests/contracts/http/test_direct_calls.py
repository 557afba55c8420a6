"""Direct calls to platform models over real sockets on both sides: bodies, streams, disconnects, hostile heads.

See docs/reference/inference.md#direct-calls.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from policy.credentials import KeyKind, digest_of
from policy.deployments import Deployment
from policy.hosts import EgressRules
from policy.snapshot import KeyRow, WorkspaceRow
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from tests import upstream as script
from tests.fakes.directory import WORKSPACE_KEY
from tests.fakes.front import Caller, Front, listening
from tests.fakes.path import PathRig
from tests.upstream import Behaviour, Exchange, ScriptedUpstream
from tests.waiting import eventually, until_still

BOTH_LOOPS = True
MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ0"
OTHER_MODEL = "mdl_01JABCDEFGHJKMNPQRSTVWXYZ1"
HOST, OTHER_HOST = (f"model-{id.replace('_', '-').lower()}.models.test" for id in (MODEL, OTHER_MODEL))
OTHER_KEY = "tg_otherspace00.0123456789abcdefghijklmnopqrst"
PREDICT = f"POST /models/{MODEL}/production/predict"
OPTIONS = HttpLimits(watch_interval_s=0.05)
SSE = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}


@dataclass
class Wire:
    """The whole path, from a caller's socket to a scripted replica."""

    rig: PathRig
    front: Front
    upstream: ScriptedUpstream

    async def ask(self, line: str = PREDICT, body: bytes = b"", fields: str = "", key: str = WORKSPACE_KEY) -> Caller:
        """Send a request of known length."""
        caller = await self.front.caller()
        caller.send(request(line, body, fields, key))
        return caller

    async def answer(self, line: str = PREDICT, body: bytes = b"", fields: str = "") -> tuple[int, bytes, bytes]:
        """Status, head and body of one answer, with or without a length."""
        caller = await self.ask(line, body, f"connection: close\r\n{fields}")
        head, _, content = (await caller.read_to_end()).partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            content = dechunked(content)
        return int(head.split(b" ")[1]), head, content

    async def until_logged(self, count: int = 1) -> None:
        records = self.rig.meters.calls
        await eventually(lambda: len(records) == count, lambda: f"{count} calls are logged: {records}")
        self.rig.check_settled()
        await eventually(lambda: not any(self.rig.replicas.in_flight().values()), "all calls have ended")

    def replicas(self, *urls: str, status: str = "ACTIVE") -> None:
        """Give both models these replicas."""
        for id, workspace in ((MODEL, "w1"), (OTHER_MODEL, "w2")):
            self.rig.directory.add_model(id, Deployment(f"dep_{workspace}", status, urls), workspace_id=workspace)

    @property
    def asked(self) -> int:
        """Number of times a replica was asked for."""
        return sum(message["is"] == "ask" for message in self.rig.replicas.messages)


def request(line: str, body: bytes = b"", fields: str = "", key: str = WORKSPACE_KEY) -> bytes:
    host = "" if "host:" in fields else "Host: us\r\n"
    length = "" if "transfer-encoding" in fields or not body else f"Content-Length: {len(body)}\r\n"
    return f"{line} HTTP/1.1\r\n{host}Authorization: Bearer {key}\r\n{fields}{length}\r\n".encode() + body


def dechunked(content: bytes) -> bytes:
    whole = b""
    while True:
        size, _, content = content.partition(b"\r\n")
        if not int(size, 16):
            assert content == b"\r\n"
            return whole
        whole = whole + content[: int(size, 16)]
        content = content[int(size, 16) + 2 :]


def in_chunks(body: bytes, size: int) -> bytes:
    return script.chunked(*(body[at : at + size] for at in range(0, len(body), size)))


async def digest(exchange: Exchange) -> None:
    """Answer with the digest of the body."""
    body = await exchange.read_body()
    await exchange.send(script.head(200, {"content-length": "64"}) + hashlib.sha256(body).hexdigest().encode())
    exchange.received.body = b""


async def echo(exchange: Exchange) -> None:
    """Answer with the body."""
    await script.answer(200, await exchange.read_body(), {"content-type": "application/octet-stream"})(exchange)


@asynccontextmanager
async def wired(max_body_bytes: int = 1_000_000, **settings: float) -> AsyncIterator[Wire]:
    rig = PathRig(model_host_suffix="models.test", max_body_bytes=max_body_bytes)
    rig.settings = DispatchSettings({}, **settings)
    directory = rig.directory
    directory.workspaces["w2"] = WorkspaceRow("w2", "active", "basic", True)
    other = digest_of(OTHER_KEY)
    directory.keys[other] = KeyRow(other, "tg_otherspace00", KeyKind.WORKSPACE_MANAGE_ALL, "w2", None)
    async with ScriptedUpstream() as upstream:
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 30.0))
        rig.over(client)
        async with listening(rig.pipeline.handle, OPTIONS) as front:
            wire = Wire(rig, front, upstream)
            wire.replicas(upstream.url)
            yield wire
        await client.aclose()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with wired() as wire:
        yield wire


# Bodies.


@pytest.mark.parametrize("size", [0, 1, 65_536, 131_073, 900_000])
async def test_binary_body_reaches_the_replica_and_returns_unchanged(wire: Wire, size: int) -> None:
    body = random.Random(size).randbytes(size)
    wire.upstream.plan(echo)
    status, head, content = await wire.answer(body=body, fields="content-type: application/x-msgpack\r\n")
    assert (status, content) == (200, body)
    assert b"content-type: application/octet-stream" in head
    [received] = wire.upstream.received
    assert received.header("content-type") == "application/x-msgpack"
    assert received.header("content-length") == str(size)
    await wire.until_logged()
    assert wire.rig.meters.calls[0].response_bytes == size


async def test_chunked_upload_reaches_the_replica_whole(wire: Wire) -> None:
    body = random.Random(1).randbytes(300_000)
    wire.upstream.plan(digest)
    caller = await wire.front.caller()
    caller.send(request(PREDICT, in_chunks(body, 7_000), "transfer-encoding: chunked\r\n"))
    assert (await caller.answer())[2] == hashlib.sha256(body).hexdigest().encode()
    assert wire.upstream.received[0].header("content-length") == "300000"


async def test_body_of_90_mb_goes_through_and_leaves_no_memory_held() -> None:
    piece = random.Random(2).randbytes(1_000_000)
    sent_digest = hashlib.sha256()
    async with wired(max_body_bytes=100_000_000) as wire:
        wire.upstream.plan(digest)
        caller = await wire.front.caller()
        caller.send(request(PREDICT, b"", "content-length: 90000000\r\n"))
        for _ in range(90):
            caller.send(piece)
            sent_digest.update(piece)
            await caller.writer.drain()
        assert (await caller.answer())[2] == sent_digest.hexdigest().encode()
        await wire.until_logged()
        assert wire.rig.meters.calls[0].request_bytes == 90_000_000
        assert wire.rig.pipeline._capacity.held_bytes == 0


async def test_body_above_the_bound_is_a_413_and_no_replica_hears_of_it(wire: Wire) -> None:
    body = b"x" * 1_000_001
    for message in (
        request(PREDICT, body),
        request(PREDICT, in_chunks(body, 50_000), "transfer-encoding: chunked\r\n"),
    ):
        caller = await wire.front.caller()
        caller.send(message)
        status, _, content = await caller.answer()
        assert status == 413
        assert json.loads(content)["error"].endswith("exceeds maximum size of 1000000 bytes")
    assert not wire.asked
    assert not wire.upstream.received


async def test_body_is_asked_for_by_100_continue(wire: Wire) -> None:
    wire.upstream.plan(echo)
    caller = await wire.ask(fields="content-length: 2\r\nexpect: 100-continue\r\n")
    assert await caller.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    caller.send(b"hi")
    assert (await caller.answer())[2] == b"hi"
    assert wire.upstream.received[0].header("expect") is None


# Answers.


async def test_stream_is_passed_on_as_it_comes(wire: Wire) -> None:
    go = asyncio.Event()
    wire.upstream.plan(
        script.held(
            go, script.head(200, SSE) + script.chunked(b"data: 1\n\n", end=False), script.chunked(b"data: 2\n\n")
        )
    )
    caller = await wire.ask()
    await caller.until(b"data: 1\n\n")
    go.set()
    await caller.until(b"data: 2\n\n\r\n0\r\n\r\n")
    await wire.until_logged()


async def test_replica_is_read_no_faster_than_the_caller_reads(wire: Wire) -> None:
    piece_count = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal piece_count
        await exchange.read_body()
        await exchange.send(script.head(200, {"content-length": "400000000"}))
        for _ in range(400):
            await exchange.send(b"x" * 1_000_000)
            piece_count += 1

    wire.upstream.plan(flood)
    caller = await wire.front.caller(receive_buffer=65_536)
    caller.send(request(f"GET /models/{MODEL}/production/sync/file"))
    await caller.head()
    await until_still(lambda: piece_count)
    assert piece_count < 40, "megabytes read ahead of a caller who does not read"
    caller.reset()
    await wire.until_logged()
    assert wire.rig.meters.calls[0].status == 499
    await wire.upstream.until(lambda: wire.upstream.open_connections == 0)


BODILESS: dict[str, tuple[str, Behaviour, bytes]] = {
    "head": ("HEAD", script.raw(script.head(200, {"content-length": "7"})), b"content-length: 7"),
    "no content": ("DELETE", script.raw(script.head(204)), b"HTTP/1.1 204"),
    "not modified": ("GET", script.raw(script.head(304, {"etag": '"1"', "content-length": "9"})), b'etag: "1"'),
}


@pytest.mark.parametrize(("method", "behaviour", "expected"), BODILESS.values(), ids=BODILESS)
async def test_answers_without_a_body_keep_the_connection_usable(
    wire: Wire, method: str, behaviour: Behaviour, expected: bytes
) -> None:
    wire.upstream.plan(behaviour, behaviour)
    caller = await wire.front.caller()
    for _ in range(2):
        caller.send(request(f"{method} /models/{MODEL}/production/sync/x"))
        head = await caller.head()
        assert expected in head
        assert b"chunked" not in head
        assert head.lower().count(b"content-length") == (method == "HEAD")
    await wire.until_logged(2)


async def test_answer_to_http_1_0_ends_with_the_connection(wire: Wire) -> None:
    wire.upstream.plan(script.raw(script.head(200, SSE) + script.chunked(b"a", b"b")))
    head, _, content = (await wire.front.ask(request(PREDICT).replace(b"HTTP/1.1", b"HTTP/1.0"))).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert content == b"ab"


async def test_early_answer_of_a_replica_passes(wire: Wire) -> None:
    refusal = b'{"error": "too much"}'
    wire.upstream.plan(script.early(script.head(413, {"content-length": str(len(refusal))}) + refusal, then="close"))
    status, _, content = await wire.answer(body=b"x" * 900_000)
    assert (status, content) == (413, refusal)


BROKEN: dict[str, tuple[Behaviour, int]] = {
    "reset": (script.raw(b"", then="reset"), 502),
    "closed": (script.raw(b"", then="close"), 502),
    "not HTTP": (script.raw(b"SSH-2.0\r\n\r\n", then="close"), 502),
    "switching protocols": (script.raw(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", then="close"), 502),
    "redirect": (script.answer(302, b"", {"location": "http://169.254.169.254/"}), 502),
    "two lengths": (script.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"), 502),
    "empty 500": (script.answer(500), 500),
    "own 500": (script.answer_json(500, {"error": {"message": "CUDA"}}), 500),
    "credential": (script.answer_json(401, {"error": "who"}), 401),
}


@pytest.mark.parametrize(("behaviour", "status"), BROKEN.values(), ids=BROKEN)
async def test_failing_replica_is_asked_once(wire: Wire, behaviour: Behaviour, status: int) -> None:
    wire.upstream.plan(behaviour)
    answered, head, content = await wire.answer()
    assert answered == status
    assert "error" in json.loads(content)
    assert f"127.0.0.1:{wire.upstream.port}".encode() not in head + content
    assert b"location" not in head
    await wire.until_logged()
    assert len(wire.upstream.received) == 1


async def test_replica_that_refuses_connections_is_replaced(wire: Wire) -> None:
    wire.replicas("http://127.0.0.1:1", "http://127.0.0.1:2", wire.upstream.url)
    wire.upstream.default = script.answer_json(200, 1)
    calls = 0
    while wire.asked == calls < 50:  # which replica is asked first is chance
        assert (await wire.answer())[0] == 200
        calls += 1
    await wire.until_logged(calls)
    assert len(wire.upstream.received) == calls
    assert wire.asked > calls


async def test_no_replica_that_accepts_connections_is_a_503(wire: Wire) -> None:
    wire.replicas("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert (await wire.answer())[0] == 503


async def test_parked_call_is_sent_once_a_replica_is_listed(wire: Wire) -> None:
    wire.replicas(status="SCALED_TO_ZERO")
    wire.upstream.plan(echo)
    answer = asyncio.create_task(wire.answer(body=b"x" * 300_000))
    await wire.rig.replicas.wait_start.wait()
    wire.replicas(wire.upstream.url)
    status, _, content = await answer
    assert (status, len(content)) == (200, 300_000)


async def test_answer_after_the_deadline_is_a_504() -> None:
    async with wired(request_timeout_s=0.2) as wire:
        wire.upstream.plan(script.silent())
        status, _, content = await wire.answer()
        assert (status, json.loads(content)["error_code"]) == (504, "UPSTREAM_TIMEOUT")
        await wire.until_logged()
        assert wire.rig.meters.calls[0].status == 504


async def test_answer_that_outlasts_the_deadline_is_cut() -> None:
    async with wired(request_timeout_s=2) as wire:  # it bounds the head too, which must come in time
        wire.upstream.plan(script.silent(script.head(200, SSE) + script.chunked(b"a", end=False)))
        caller = await wire.ask()
        assert (await caller.head()).startswith(b"HTTP/1.1 200 ")
        assert await caller.read_to_end() == b"1\r\na\r\n"
        await wire.until_logged()
        assert wire.rig.meters.calls[0].status == 504


# Callers that leave.


async def test_caller_who_leaves_within_a_stream_cancels_it(wire: Wire) -> None:
    wire.upstream.plan(script.silent(script.head(200, SSE) + script.chunked(b"data: 1\n\n", end=False)))
    caller = await wire.ask()
    await caller.until(b"data: 1")
    caller.disconnect()
    await wire.until_logged()
    assert wire.rig.meters.calls[0].status == 499
    await wire.upstream.until(lambda: wire.upstream.open_connections == 0)


@pytest.mark.parametrize("size", [0, 900_000])
async def test_caller_who_leaves_while_parked_is_noticed(wire: Wire, size: int) -> None:
    wire.replicas(status="SCALED_TO_ZERO")
    caller = await wire.ask(body=b"x" * size)
    await wire.rig.replicas.wait_start.wait()
    assert wire.rig.pipeline._capacity.held_bytes == size
    caller.disconnect()
    await wire.until_logged()
    assert wire.rig.meters.calls[0].status == 499
    assert wire.rig.pipeline._capacity.held_bytes == 0
    assert not wire.upstream.received


# Workspaces, hosts, and heads that try to leave.


async def test_each_workspace_reaches_its_own_models_alone(wire: Wire) -> None:
    wire.upstream.default = script.answer_json(200, 1)
    answers = {}
    for key in (WORKSPACE_KEY, OTHER_KEY):
        for id in (MODEL, OTHER_MODEL, "mdl_none"):
            caller = await wire.ask(f"POST /models/{id}/production/predict", fields="connection: close\r\n", key=key)
            raw = await caller.read_to_end()
            answers[key, id] = (int(raw.split(b" ")[1]), raw.partition(b"\r\n\r\n")[2])
    assert answers[WORKSPACE_KEY, MODEL][0] == answers[OTHER_KEY, OTHER_MODEL][0] == 200
    unknown = answers[WORKSPACE_KEY, "mdl_none"]
    assert unknown[0] == 404
    assert answers[WORKSPACE_KEY, OTHER_MODEL] == answers[OTHER_KEY, MODEL] == answers[OTHER_KEY, "mdl_none"] == unknown
    assert len(wire.upstream.received) == 2


async def test_model_is_found_by_its_host_in_any_spelling(wire: Wire) -> None:
    wire.upstream.default = script.answer_json(200, 1)
    for host in (HOST, HOST.upper(), f"{HOST}:443", HOST.replace("mdl-", "mdl_"), f"{HOST}."):
        line = "GET /environments/Production/sync/v1/models?a"
        assert (await wire.answer(line, fields=f"host: {host}\r\n"))[0] == 200
    assert {received.target for received in wire.upstream.received} == {"/v1/models?a"}
    assert {received.header("host") for received in wire.upstream.received} == {f"127.0.0.1:{wire.upstream.port}"}


HOSTILE: dict[str, tuple[bytes, int]] = {
    "two hosts": (request("POST /production/predict", fields=f"host: {HOST}\r\nhost: {OTHER_HOST}\r\n"), 400),
    "the same host twice": (request("POST /production/predict", fields=f"host: {HOST}\r\nhost: {HOST}\r\n"), 400),
    "host with a path": (request("POST /production/predict", fields=f"host: {HOST}/x\r\n"), 404),
    "host with credentials": (request("POST /production/predict", fields=f"host: a@{HOST}\r\n"), 404),
    "absolute form of another model": (
        request(f"POST http://{OTHER_HOST}/production/predict", fields=f"host: {HOST}\r\n"),
        404,
    ),
    "absolute form of no model": (request("POST http://us/production/predict", fields=f"host: {HOST}\r\n"), 404),
    "bare LF in the target": (request(f"{PREDICT}\nx: y"), 400),
    "CRLF in the target": (request(f"{PREDICT}?a\r\nx: y\r\n\r\nGET /"), 400),
    "blank in the target": (request(f"{PREDICT}?a b"), 400),
    "fragment": (request(f"{PREDICT}#x"), 400),
    "zero byte": (request(f"{PREDICT}?\0"), 400),
    "byte above ASCII": (request(f"{PREDICT}?é"), 400),
    "parent": (request(f"GET /models/{MODEL}/production/sync/../predict"), 400),
    "escaped parent": (request(f"GET /models/{MODEL}/production/sync/a/%2e%2E%2f%2e./x"), 400),
    "twice escaped parent": (request(f"GET /models/{MODEL}/production/sync/%252e%252e/x"), 400),
    "broken escape": (request(f"GET /models/{MODEL}/production/sync/%"), 400),
    "length and chunks": (request(PREDICT, b"0\r\n\r\n", "content-length: 5\r\ntransfer-encoding: chunked\r\n"), 400),
    "folded field": (request(PREDICT, fields="content-type: a\r\n b: c\r\n"), 400),
    "bare LF in a field": (request(PREDICT, fields="content-type: a\nx-api-key: b\r\n"), 400),
    "connect": (request(f"CONNECT {HOST}:80"), 404),
    "websocket": (
        request(
            f"GET /models/{MODEL}/production/websocket",
            fields="connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
        ),
        400,
    ),
    "websocket on sync": (
        request(f"GET /models/{MODEL}/production/sync/ws", fields="connection: upgrade\r\nupgrade: websocket\r\n"),
        400,
    ),
}


@pytest.mark.parametrize(("head", "status"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_head_reaches_no_replica(wire: Wire, head: bytes, status: int) -> None:
    caller = await wire.front.caller()
    caller.send(head)
    assert (await caller.answer())[0] == status
    assert not wire.upstream.received
    assert not wire.asked


async def test_absolute_form_names_the_model_and_the_host_field_does_not(wire: Wire) -> None:
    wire.upstream.default = script.answer_json(200, 1)
    status, _, _ = await wire.answer(f"POST http://{HOST}:80/production/predict?a", fields=f"host: {OTHER_HOST}\r\n")
    assert status == 200
    assert wire.upstream.received[0].target == "/predict?a"
    assert wire.rig.meters.calls[0].labels.model_id == MODEL


async def test_escaped_line_breaks_stay_escaped(wire: Wire) -> None:
    wire.upstream.plan(script.answer_json(200, 1))
    target = "/v1/x%0d%0aHost:%20evil?q=%0D%0A%0D%0AGET%20/"
    assert (await wire.answer(f"GET /models/{MODEL}/production/sync{target}"))[0] == 200
    [received] = wire.upstream.received
    assert received.target == target
    assert received.head.count(b"\r\n\r\n") == 1


async def test_replica_gets_no_credential_and_nothing_hop_by_hop(wire: Wire) -> None:
    wire.upstream.plan(
        script.answer_json(200, 1, {"set-cookie": "a=b", "x-internal": "1", "content-disposition": "inline"})
    )
    fields = (
        f"x-api-key: {WORKSPACE_KEY}\r\ncookie: a=b\r\nte: trailers\r\nforwarded: for=1.1.1.1\r\nx-tollgate: 1\r\n"
        "range: bytes=0-1\r\naccept: */*\r\nuser-agent: caf\xe9\r\nproxy-authorization: Basic x\r\n"
    )
    status, head, _ = await wire.answer(fields=fields)
    assert status == 200
    names = {name for name, _ in wire.upstream.received[0].headers}
    assert names == {"host", "x-request-id", "accept-encoding", "accept", "user-agent", "range", "content-length"}
    assert WORKSPACE_KEY.encode() not in wire.upstream.received[0].head
    assert b"set-cookie" not in head
    assert b"x-internal" not in head
    assert b"content-disposition: inline" in head


async def test_preflight_of_a_page_needs_no_key_and_other_options_reach_the_replica(wire: Wire) -> None:
    wire.upstream.plan(script.raw(script.head(204, {"allow": "GET"})))
    fields = "origin: https://a.test\r\naccess-control-request-method: PUT\r\n"
    status, head, _ = await wire.answer(f"OPTIONS /models/{MODEL}/production/sync/x", fields=fields)
    assert status == 204
    assert b"allow: GET" in head
    assert len(wire.upstream.received) == 1
