"""The whole path over real sockets on both sides: every row of both error tables, streams and disconnects.

See docs/reference/inference.md#errors.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policy.billing import Tokens
from policy.endpoints import Target
from policy.hosts import EgressRules
from policy.limits.effective import Plan
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.parts import DispatchSettings
from tests import upstream as script
from tests.fakes.counters import FakeCounters
from tests.fakes.directory import KEY, SLUG, platform
from tests.fakes.front import Caller, Front, listening
from tests.fakes.path import PathRig, now_ms
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.upstream import Behaviour, ScriptedUpstream
from tests.waiting import eventually, until_still

BOTH_LOOPS = True
SECRET = "sk-upstream-secret"
DELIVERED = 1
"""Tokens of a one-letter text."""
USED = Tokens(input=12, output=5, cached_input=4)
OPTIONS = HttpLimits(watch_interval_s=0.05)
JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}


@dataclass
class Wire:
    """The whole path, from a caller's socket to a scripted upstream."""

    rig: PathRig
    front: Front
    upstream: ScriptedUpstream

    async def call(self, stream: bool = False, **more: Any) -> Caller:
        caller = await self.front.caller()
        caller.send(request(stream=stream, **more))
        return caller

    async def answer(self, **more: Any) -> tuple[int, dict[str, str], bytes]:
        """One whole answer; the connection stays open."""
        caller = await self.call(**more)
        status, head, body = await caller.answer()
        caller.disconnect()
        lines = head.decode().split("\r\n")[1:-2]
        return status, dict(line.split(": ", 1) for line in lines), body

    async def until_logged(self, count: int = 1) -> None:
        await eventually(lambda: len(self.rig.meters.calls) == count)
        self.rig.check_settled()

    @property
    def billed(self) -> Tokens:
        return self.rig.journal.closed[-1].tokens

    @property
    def status(self) -> int:
        """The last call's status; metrics, access log and billing event must agree on it."""
        [status] = {
            self.rig.meters.calls[-1].status,
            self.rig.meters.calls[-1].status,
            self.rig.journal.closed[-1].status,
        }
        return status

    def check_discreet(self, *outputs: bytes) -> None:
        """The upstream's host, model and credential appear in no answer, metric or log line."""
        everything = b"".join(outputs) + repr(self.rig.meters).encode()
        assert SECRET.encode() not in everything
        assert f"127.0.0.1:{self.upstream.port}".encode() not in everything
        assert b"their-model" not in everything


def request(stream: bool = False, **more: Any) -> bytes:
    body = json.dumps({"model": SLUG, "messages": [{"role": "user", "content": "hi"}], "stream": stream} | more)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: us\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@asynccontextmanager
async def wired(
    rig: PathRig,
    base_url: str | None = None,
    ca_file: str | None = None,
    connect_timeout_s: float = 30.0,
    **settings: float,
) -> AsyncIterator[Wire]:
    async with ScriptedUpstream() as upstream:
        client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), connect_timeout_s, ca_file))
        rig.settings = DispatchSettings({"VENDOR_B": base_url or upstream.url}, **settings)
        rig.over(client)
        async with listening(rig.pipeline.handle, OPTIONS) as front:
            yield Wire(rig, front, upstream)
        await client.aclose()


@pytest.fixture
def rig() -> PathRig:
    rig = PathRig()
    rig.directory.limit(Limit(LimitType.TOKEN, Unit.MINUTE, 1_000_000))
    return rig


@pytest.fixture
async def wire(rig: PathRig) -> AsyncIterator[Wire]:
    async with wired(rig) as wire:
        yield wire


def deploy_platform_model(rig: PathRig, *replicas: str) -> None:
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", *replicas)


# Answers that succeed.


async def test_plain_answer_passes_and_is_billed(wire: Wire) -> None:
    status, headers, body = await wire.answer()
    assert status == 200
    assert json.loads(body)["model"] == SLUG
    assert headers["content-type"] == "application/json"
    assert headers["x-ratelimit-limit-tokens"] == "1000000"
    await wire.until_logged()
    assert (wire.status, wire.billed) == (200, USED)
    wire.check_discreet(repr(headers).encode(), body)


async def test_streamed_answer_passes_without_the_usage_that_we_asked_for(wire: Wire) -> None:
    caller = await wire.call(stream=True)
    raw = await caller.until(b"0\r\n\r\n")
    frames = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    assert frames[-1] == b"[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    assert {chunk["model"] for chunk in chunks} == {SLUG}
    assert all("usage" not in chunk for chunk in chunks)
    assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == "Hello there!"
    assert wire.upstream.received[0].json["stream_options"] == {"include_usage": True}
    await wire.until_logged()
    assert (wire.status, wire.billed) == (200, USED)


async def test_first_bytes_of_a_stream_are_sent_at_once(wire: Wire) -> None:
    go = asyncio.Event()
    frames = script.chat_frames("their-model", ("a",), None)
    wire.upstream.plan(
        script.held(
            go,
            script.head(200, SSE) + script.chunked(frames[0], end=False),
            script.chunked(*frames[1:]),
        )
    )
    caller = await wire.call(stream=True)
    await caller.until(b'"role":"assistant"')
    assert not wire.rig.journal.closed
    go.set()
    await caller.until(b"0\r\n\r\n")
    await wire.until_logged()


async def test_two_calls_on_one_connection_have_different_request_ids(wire: Wire) -> None:
    caller = await wire.front.caller()
    for _ in range(2):
        caller.send(request())
        assert (await caller.answer())[0] == 200
    await wire.until_logged(2)
    assert wire.upstream.connections == 1
    ids = {call.request_id for call in wire.rig.journal.opened}
    assert len(ids) == 2


# Failures before the answer's head: third-party target, then a replica.

BEFORE_THE_HEAD: dict[str, tuple[Behaviour, int]] = {
    "reset": (script.raw(b"", then="reset"), 502),
    "closed": (script.raw(b"", then="close"), 502),
    "half a head": (script.raw(b"HTTP/1.1 200 OK\r\nContent-", then="close"), 502),
    "not HTTP": (script.raw(b"SSH-2.0-OpenSSH_9\r\n\r\n", then="close"), 502),
    "no status": (script.raw(b"HTTP/1.1 hello\r\n\r\n", then="close"), 502),
    "1xx and then nothing": (script.raw(b"HTTP/1.1 103 Early\r\n\r\n", then="close"), 502),
    "redirect": (script.answer(307, b"", {"location": "http://127.0.0.1/"}), 502),
    "compressed": (script.answer(200, b"x", {**JSON, "content-encoding": "gzip"}), 502),
}


@pytest.mark.parametrize(("behaviour", "status"), BEFORE_THE_HEAD.values(), ids=BEFORE_THE_HEAD)
async def test_unusable_upstream_head_is_a_502_and_bills_nothing(wire: Wire, behaviour: Behaviour, status: int) -> None:
    wire.upstream.plan(behaviour)
    answer_status, headers, body = await wire.answer(stream=True)
    assert answer_status == status
    assert json.loads(body) == {"error": "Error making prediction", "error_code": "UPSTREAM_ERROR"}
    assert "location" not in headers
    await wire.until_logged()
    assert (wire.status, wire.billed) == (status, Tokens())
    wire.check_discreet(repr(headers).encode(), body)


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "https://127.0.0.1:{port}"])
async def test_unreachable_upstream_is_a_503(rig: PathRig, base_url: str) -> None:
    """Connection refused, name not resolved, and a TLS handshake with a server without TLS."""
    async with ScriptedUpstream() as plain, wired(rig, base_url.format(port=plain.port), connect_timeout_s=1) as wire:
        status, headers, body = await wire.answer()
        assert status == 503
        await wire.until_logged()
        assert (wire.status, wire.billed) == (503, Tokens())
        wire.check_discreet(repr(headers).encode(), body)
        assert b"no-such-host" not in body


async def test_untrusted_upstream_certificate_is_a_503(rig: PathRig, tmp_path: Path) -> None:
    tls = ThrowawayCa(tmp_path).server_context("127.0.0.1")
    async with ScriptedUpstream(tls=tls) as upstream, wired(rig, upstream.url) as wire:
        assert (await wire.answer())[0] == 503
        assert not upstream.received


async def test_another_replica_is_tried_after_a_refused_connection(rig: PathRig) -> None:
    async with wired(rig) as wire:
        deploy_platform_model(rig, "http://127.0.0.1:1")
        assert (await wire.answer())[0] == 503
        deploy_platform_model(rig, "http://127.0.0.1:1", wire.upstream.url)
        assert [(await wire.answer())[0] for _ in range(4)] == [200] * 4


async def test_late_upstream_head_is_a_504(rig: PathRig) -> None:
    async with wired(rig, request_timeout_s=0.2) as wire:
        wire.upstream.plan(script.silent())
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["error_code"]) == (504, "UPSTREAM_TIMEOUT")
        await wire.until_logged()
        assert (wire.status, wire.billed) == (504, Tokens())


# Failures after the head.

BROKEN_BODIES: dict[str, Behaviour] = {
    "short": script.raw(script.head(200, JSON | {"content-length": "100"}) + b'{"model":', then="close"),
    "reset": script.raw(script.head(200, JSON | {"content-length": "100"}) + b'{"model":', then="reset"),
    "no last chunk": script.raw(
        script.head(200, JSON | {"transfer-encoding": "chunked"}) + b"2\r\n{}\r\n", then="close"
    ),
    "bad chunk": script.raw(script.head(200, JSON | {"transfer-encoding": "chunked"}) + b"zz\r\n{}\r\n", then="close"),
}


@pytest.mark.parametrize("behaviour", BROKEN_BODIES.values(), ids=BROKEN_BODIES)
async def test_broken_plain_answer_is_a_502_and_bills_nothing(wire: Wire, behaviour: Behaviour) -> None:
    wire.upstream.plan(behaviour)
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["error"]) == (502, "Error making prediction")
    await wire.until_logged()
    assert (wire.status, wire.billed) == (502, Tokens())


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_broken_stream_is_cut_and_bills_the_delivered_text(wire: Wire, then: str) -> None:
    frame = script.chat_frames("their-model", ("a",), None)[1]
    arrival = asyncio.Event()

    async def behave(exchange: script.Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, SSE) + script.chunked(frame, end=False))
        await arrival.wait()
        {"close": exchange.close, "reset": exchange.reset}[then]()

    wire.upstream.plan(behave)
    caller = await wire.call(stream=True)
    await caller.until(b'"content":"a"')
    arrival.set()
    assert not (await caller.read_to_end()).endswith(b"0\r\n\r\n")
    await wire.until_logged()
    assert wire.status == 502
    assert wire.rig.meters.calls[0].cause == "upstream_cut"
    assert wire.billed.output == DELIVERED


async def test_silent_stream_ends_after_the_idle_timeout(rig: PathRig) -> None:
    frame = script.chat_frames("their-model", ("a",), None)[1]
    async with wired(rig, stream_idle_timeout_s=2) as wire:  # it bounds the head too, which must come in time
        wire.upstream.plan(script.silent(script.head(200, SSE) + script.chunked(frame, end=False)))
        caller = await wire.call(stream=True)
        await caller.until(b'"content":"a"')
        assert not (await caller.read_to_end()).endswith(b"0\r\n\r\n")
        await wire.until_logged()
        assert wire.status == 504


async def test_late_plain_answer_is_a_504(rig: PathRig) -> None:
    async with wired(rig, request_timeout_s=0.3) as wire:
        wire.upstream.plan(script.silent(script.head(200, JSON | {"content-length": "100"}) + b'{"model":'))
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["error_code"]) == (504, "UPSTREAM_TIMEOUT")
        await wire.until_logged()
        assert (wire.status, wire.billed) == (504, Tokens())


async def test_request_timeout_ends_a_stream_that_never_falls_silent(rig: PathRig) -> None:
    frame = script.chunked(script.chat_frames("their-model", ("a",), None)[1], end=False)

    async def drip(exchange: script.Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, SSE))
        while True:
            await exchange.send(frame)
            await asyncio.sleep(0.02)

    async with wired(rig, request_timeout_s=2) as wire:  # it bounds the head too, which must come in time
        wire.upstream.plan(drip)
        caller = await wire.call(stream=True)
        await caller.until(b'"content":"a"')
        assert not (await caller.read_to_end()).endswith(b"0\r\n\r\n")
        await wire.until_logged()
        assert wire.status == 504


# Errors of an upstream.

BODIES: dict[str, tuple[bytes, Callable[[bytes], bool]]] = {
    "flat": (b'{"error":"no"}', lambda got: got == b'{"error":"no"}'),
    "nested": (b'{"error": {"code": 1}}', lambda got: got == b'{"error": {"code": 1}}'),
    "text": (b"nope\n", lambda got: json.loads(got) == {"error": "nope"}),
    "empty": (b"", lambda got: set(json.loads(got)) == {"error", "error_code"}),
}


@pytest.mark.parametrize("platform_target", [False, True], ids=["vendor", "replica"])
@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("form", BODIES)
async def test_upstream_error_passes_with_its_status_and_bills_nothing(
    rig: PathRig, platform_target: bool, status: int, form: str
) -> None:
    raw, expected = BODIES[form]
    async with wired(rig) as wire:
        if platform_target:
            deploy_platform_model(rig, wire.upstream.url)
        # On every path: a replica that answers 404 is asked in another dialect.
        wire.upstream.default = script.answer(status, raw, {"x-ratelimit-limit-requests": "1", "server": "them"})
        answer_status, headers, body = await wire.answer(stream=status % 2 == 0)
        assert answer_status == status
        assert expected(body), body
        assert "server" not in headers
        assert "x-ratelimit-limit-requests" not in headers
        assert headers.get("retry-after") == ("1" if status == 529 else None)
        await wire.until_logged()
        assert (wire.status, wire.billed) == (status, Tokens())
    if platform_target and status == 500 and form == "empty":
        assert json.loads(body)["error"] == "Internal Server Error (in model/chainlet)."


async def test_compressed_upstream_error_keeps_its_status_and_gets_our_message(wire: Wire) -> None:
    raw = gzip.compress(json.dumps({"error": SECRET}).encode())
    wire.upstream.plan(script.answer(429, raw, {"content-encoding": "gzip", "retry-after": "3"}))
    status, headers, body = await wire.answer()
    assert (status, headers["retry-after"]) == (429, "3")
    assert json.loads(body) == {"error": "The upstream's rate limit is exceeded", "error_code": "UPSTREAM_ERROR"}


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_rejected_target_credential_is_a_502_without_the_vendors_message(wire: Wire, status: int) -> None:
    wire.upstream.plan(script.answer_json(status, {"error": f"Incorrect API key {SECRET}"}))
    answer_status, headers, body = await wire.answer()
    assert (answer_status, json.loads(body)["error"]) == (502, "Upstream rejected the target's credential")
    await wire.until_logged()
    wire.check_discreet(repr(headers).encode(), body)


async def test_529_keeps_the_upstreams_retry_after(wire: Wire) -> None:
    wire.upstream.plan(script.answer_json(529, {"error": "busy"}, {"retry-after": "17"}))
    status, headers, _ = await wire.answer()
    assert (status, headers["retry-after"]) == (529, "17")


async def test_interim_answer_is_skipped(wire: Wire) -> None:
    body = json.dumps(script.chat_body("their-model", ("a",), script.Usage())).encode()
    head = script.head(200, JSON | {"content-length": str(len(body))})
    wire.upstream.plan(script.raw(b"HTTP/1.1 103 Early Hints\r\n\r\n", head + body))
    assert (await wire.answer())[0] == 200


# Errors that come under a 200 (litellm#10593, new-api#7399).

FAILURE = {"error": {"message": f"Incorrect API key {SECRET}", "type": "server_error"}}


@pytest.mark.parametrize("stream", [False, True])
async def test_error_in_a_200_answer_is_a_502(wire: Wire, stream: bool) -> None:
    wire.upstream.plan(script.answer_json(200, FAILURE))
    status, headers, body = await wire.answer(stream=stream)
    assert status == 502
    assert json.loads(body)["error"] == FAILURE["error"] | {"message": "Incorrect API key [hidden]"}
    await wire.until_logged()
    assert (wire.status, wire.billed) == (502, Tokens())
    assert wire.rig.meters.calls[0].cause == "error_in_answer"
    wire.check_discreet(repr(headers).encode(), body)


@pytest.mark.parametrize("has_begun", [False, True], ids=["at once", "after some text"])
async def test_error_in_a_stream_passes_and_counts_as_a_502(wire: Wire, has_begun: bool) -> None:
    delta = script.chat_frames("their-model", ("a",), None)[1]
    error = b"data: " + json.dumps(FAILURE).encode() + b"\n\n"
    go = asyncio.Event()
    first = script.chunked(delta, end=False) if has_begun else b""
    wire.upstream.plan(script.held(go, script.head(200, SSE) + first, script.chunked(error, b"data: [DONE]\n\n")))
    caller = await wire.call(stream=True)
    raw = await caller.until(b'"a"') if has_begun else b""
    go.set()
    raw += await caller.until(b"0\r\n\r\n")
    assert b"Incorrect API key [hidden]" in raw
    assert b"data: [DONE]" in raw, "the rest passes unchanged"
    await wire.until_logged()
    assert wire.status == 502
    assert wire.rig.meters.calls[0].cause == "error_in_answer"
    assert wire.billed.output == (DELIVERED if has_begun else 0)
    wire.check_discreet(raw)


# Malformed requests.


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\nHost: us\r\nbad header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        request().replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
        request().replace(b"/v1/chat/completions", b"/" + b"a" * 9000),
    ],
    ids=["header", "TLS", "smuggled", "long"],
)
async def test_malformed_request_is_counted_and_logged(wire: Wire, message: bytes) -> None:
    head, _, body = (await wire.front.ask(message)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert json.loads(body)["error_code"] == "MALFORMED_REQUEST"
    await wire.until_logged()
    [record] = wire.rig.meters.calls
    assert (record.status, record.cause, record.labels.method, record.labels.path) == (400, "malformed", "", "")
    assert f"x-request-id: {record.request_id}".encode() in head
    assert [call.status for call in wire.rig.meters.calls] == [400]
    assert not wire.upstream.received


# Callers that disconnect.


async def test_caller_that_leaves_before_the_head_is_a_499(wire: Wire) -> None:
    wire.upstream.plan(script.silent())
    caller = await wire.call()
    await wire.upstream.until(lambda: len(wire.upstream.received) == 1)
    caller.disconnect()
    await wire.until_logged()
    assert (wire.status, wire.billed) == (499, Tokens())
    await wire.upstream.until(lambda: wire.upstream.open_connections == 0)


async def test_caller_that_leaves_during_admission_is_a_499(rig: PathRig) -> None:
    arrival = asyncio.Event()

    class Stalled(FakeCounters):
        async def take(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken | LimitHit:
            arrival.set()
            await asyncio.Event().wait()
            raise AssertionError

    rig.counters = Stalled(now_ms)
    async with wired(rig) as wire:
        caller = await wire.call()
        await arrival.wait()
        caller.disconnect()
        await wire.until_logged()
        assert [call.status for call in rig.meters.calls] == [499]
        assert not rig.journal.opened
        assert not wire.upstream.received


async def test_caller_that_leaves_while_parked_is_a_499(rig: PathRig) -> None:
    async with wired(rig) as wire:
        rig.directory.add_slug(SLUG, platform())
        rig.directory.deploy("SCALED_TO_ZERO")
        caller = await wire.call()
        await eventually(lambda: rig.pipeline._capacity.parked == 1)
        caller.disconnect()
        await wire.until_logged()
        assert [call.status for call in rig.meters.calls] == [499]
        assert rig.pipeline._capacity.parked == 0


async def test_parked_call_continues_when_the_deployment_serves(rig: PathRig) -> None:
    async with wired(rig) as wire:
        rig.directory.add_slug(SLUG, platform())
        rig.directory.deploy("WAKING_UP")
        caller = await wire.call()
        await eventually(lambda: rig.pipeline._capacity.parked == 1)
        rig.directory.deploy("ACTIVE", wire.upstream.url)
        assert (await caller.answer())[0] == 200
        await wire.until_logged()
        assert (wire.status, wire.billed) == (200, USED)


async def test_sse_comment_passes_before_the_first_event(wire: Wire) -> None:
    go = asyncio.Event()
    wire.upstream.plan(script.held(go, script.head(200, SSE) + script.chunked(b": ping\n\n", end=False), b"0\r\n\r\n"))
    caller = await wire.call(stream=True)
    await caller.until(b": ping\n\n")
    go.set()
    await caller.until(b"0\r\n\r\n")


async def test_caller_that_leaves_in_a_stream_is_billed_the_delivered_text(wire: Wire) -> None:
    frame = script.chunked(script.chat_frames("their-model", ("a",), None)[1], end=False)
    wire.upstream.plan(script.silent(script.head(200, SSE) + frame))
    caller = await wire.call(stream=True)
    await caller.until(b'"content":"a"')
    caller.disconnect()
    await wire.until_logged()
    assert wire.status == 499
    assert wire.billed.output == DELIVERED
    await wire.upstream.until(lambda: wire.upstream.open_connections == 0)


async def test_upstream_is_read_no_faster_than_the_caller_reads(wire: Wire) -> None:
    frame = script.chat_frames("their-model", ("x" * 60_000,), None)[1]
    sent_bytes = 0

    async def flood(exchange: script.Exchange) -> None:
        nonlocal sent_bytes
        await exchange.read_body()
        await exchange.send(script.head(200, SSE))
        while True:
            await exchange.send(script.chunked(frame, end=False))
            sent_bytes += len(frame)

    wire.upstream.plan(flood)
    caller = await wire.front.caller(receive_buffer=4096)
    caller.send(request(stream=True))
    await caller.reader.readuntil(b"200 OK")
    await until_still(lambda: sent_bytes)  # upstream is blocked
    assert sent_bytes < 30_000_000
    caller.reset()
    await wire.until_logged()
    assert wire.status == 499


# Many at once, and split by TCP.


async def test_hundred_concurrent_streams_are_all_metered(wire: Wire) -> None:
    async def one() -> bytes:
        caller = await wire.call(stream=True)
        return await caller.until(b"0\r\n\r\n")

    answers = await asyncio.gather(*(one() for _ in range(100)))
    assert all(b"[DONE]" in answer for answer in answers)
    await wire.until_logged(100)
    assert {closed.tokens for closed in wire.rig.journal.closed} == {USED}


async def test_frames_pass_wherever_tcp_splits_them(wire: Wire) -> None:
    whole = b"".join(script.chat_frames("their-model", ("Hello", " there", "!"), script.Usage()))

    async def crumbs(exchange: script.Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, SSE))
        for start in range(0, len(whole), 7):
            await exchange.send(script.chunked(whole[start : start + 7], end=False))
            if start % 70 == 0:
                await asyncio.sleep(0)
        await exchange.send(b"0\r\n\r\n")

    wire.upstream.plan(crumbs)
    caller = await wire.call(stream=True)
    raw = await caller.until(b"0\r\n\r\n")
    assert b"their-model" not in raw
    assert b"prompt_tokens" not in raw
    await wire.until_logged()
    assert wire.billed == USED


async def test_customer_target_with_an_internal_address_is_refused(wire: Wire) -> None:
    inside = Target("VENDOR_B_COMPATIBLE", secret_id="s1", target_model="m", base_url="https://169.254.169.254")
    wire.rig.directory.add_slug(SLUG, inside)
    status, _, body = await wire.answer()
    assert status == 503
    assert b"169.254" not in body
