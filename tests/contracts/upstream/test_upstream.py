"""HttpUpstream against a scripted server on real sockets, on both event loops."""

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from policy.hosts import EgressRules, Reach
from proxy.edges.upstream import egress
from proxy.edges.upstream.answer import HttpAnswer
from proxy.edges.upstream.client import BURST_CONNECTIONS, CLOSED_PER_STEP, HttpUpstream, PoolLimits
from proxy.edges.upstream.egress import Egress
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from proxy.json_text.segmented_body import RequestBody, SegmentedBody
from proxy.records.messages import UpstreamCall
from proxy.records.request_fields import RequestFields
from tests import upstream as script
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.upstream import Exchange, ScriptedUpstream
from tests.waiting import until_still

BOTH_LOOPS = True
SOON_S = 20.0
OK = script.answer(200, b"fine")
Open = Callable[..., HttpUpstream]


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        yield server


@pytest.fixture
async def opened(upstream: ScriptedUpstream) -> AsyncIterator[Open]:
    """Makes clients and closes them before the server, which waits for its connections."""
    clients: list[HttpUpstream] = []

    def open_client(limits: PoolLimits | None = None, **egress: Any) -> HttpUpstream:
        rules = egress.pop("rules", EgressRules())
        burst_ends = egress.pop("on_burst_end", lambda: None)
        clients.append(HttpUpstream(Egress(rules, egress.pop("connect_timeout_s", 5.0), **egress), limits, burst_ends))
        return clients[-1]

    yield open_client
    for client in clients:
        await client.aclose()


@pytest.fixture
async def client(opened: Open) -> HttpUpstream:
    return opened()


def call(
    url: str, method: str = "POST", body: RequestBody = b"{}", within_s: float = SOON_S, idle_timeout_s: float = SOON_S
) -> UpstreamCall:
    headers = RequestFields({"authorization": "Bearer sk-very-secret", "content-type": "application/json"})
    return UpstreamCall(url, method, headers, body, time.perf_counter() + within_s, idle_timeout_s, Reach.OPERATOR)


async def read_all(answer: HttpAnswer) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
        if answer.ended:
            assert await answer.read() == b""
    return b"".join(pieces)


async def fetch(client: HttpUpstream, url: str, **kwargs: Any) -> tuple[int, bytes]:
    answer = await client.send(call(url, **kwargs))
    return answer.status, await read_all(answer)


# --- requests and answers ---------------------------------------------------------------------------------------------


async def test_request_and_answer_pass_unchanged(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    body = json.dumps({"model": "m", "messages": []}).encode()
    answer = await client.send(call(f"{upstream.url}/v1/chat/completions?x=1", body=body))
    assert answer.status == 200
    assert ("content-type", "application/json") in answer.headers
    assert json.loads(await read_all(answer))["usage"]["completion_tokens"] == 5
    received = upstream.received[0]
    assert (received.method, received.target, received.body) == ("POST", "/v1/chat/completions?x=1", body)
    assert received.header("host") == f"127.0.0.1:{upstream.port}"
    assert received.header("authorization") == "Bearer sk-very-secret"
    assert received.header("content-length") == str(len(body))


async def test_stream_arrives_frame_by_frame(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def behave(exchange: Exchange) -> None:
        await exchange.send(script.head(200, {"transfer-encoding": "chunked"}))
        for number, gate in enumerate(gates):
            await gate.wait()
            await exchange.send(script.chunked(b"data: %d\n\n" % number, end=False))
        await exchange.send(b"0\r\n\r\n")

    upstream.plan(behave)
    answer = await client.send(call(upstream.url))
    for number, gate in enumerate(gates):
        gate.set()
        assert await answer.read() == b"data: %d\n\n" % number
    assert await answer.read() == b""
    assert await answer.read() == b""


async def test_connection_is_reused(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    for number in range(5):
        upstream.plan(script.answer(200, b"%d" % number))
        assert await fetch(client, upstream.url) == (200, b"%d" % number)
    assert upstream.connections == 1
    assert len(upstream.received) == 5


async def test_concurrent_calls_have_a_connection_each(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    gate = asyncio.Event()
    upstream.default = script.held(gate, after=script.head(200, {"content-length": "0"}))
    calls = [asyncio.ensure_future(fetch(client, upstream.url)) for _ in range(4)]
    await upstream.until(lambda: len(upstream.received) == 4)
    gate.set()
    assert await asyncio.gather(*calls) == [(200, b"")] * 4
    assert upstream.connections == 4


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
async def test_request_without_body_has_no_content_length(
    upstream: ScriptedUpstream, client: HttpUpstream, method: str
) -> None:
    upstream.plan(OK)
    assert await fetch(client, upstream.url, method=method, body=b"") == (200, b"fine")
    assert upstream.received[0].header("content-length") is None


async def test_empty_post_has_content_length_zero(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(OK)
    await fetch(client, upstream.url, body=b"")
    assert upstream.received[0].header("content-length") == "0"


async def test_client_sets_all_framing_headers(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(OK)
    smuggled = call(upstream.url)
    fields = {"Host": "evil", "Content-Length": "99", "Transfer-Encoding": "chunked", "x-a": "1"}
    smuggled.headers = RequestFields(fields)
    assert await read_all(await client.send(smuggled)) == b"fine"
    names = [name for name, _ in upstream.received[0].headers]
    assert names == ["host", "content-length", "x-a"]


@pytest.mark.parametrize(
    "broken",
    [("x-a", "1\r\nx-b: 2"), ("x-a", "1\nx-b: 2"), ("x-a", "1\rx"), ("x-a", "nul\0"), ("x-a\r\nx-b", "1")],
)
async def test_header_with_a_line_break_is_refused(
    upstream: ScriptedUpstream, client: HttpUpstream, broken: tuple[str, str]
) -> None:
    bad = call(upstream.url)
    bad.headers = RequestFields([broken])
    with pytest.raises(UpstreamUnreachableError):
        await client.send(bad)
    assert upstream.connections == 0


@pytest.mark.parametrize("request_id", ["r\r\nx-b: 2", "r\n", "r\0"])
async def test_request_id_with_a_line_break_is_refused(
    upstream: ScriptedUpstream, client: HttpUpstream, request_id: str
) -> None:
    bad = call(upstream.url)
    bad.request_id = request_id
    with pytest.raises(UpstreamUnreachableError):
        await client.send(bad)
    assert upstream.connections == 0


async def test_fields_that_calls_share_are_sent_with_each(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(OK, OK)
    shared = RequestFields({"x-a": "1", "x-b": "\u00e9"})
    for request_id in ("r-1", "r-2"):
        outbound = call(upstream.url, body=b"{}")
        outbound.headers = shared
        outbound.request_id = request_id
        assert await read_all(await client.send(outbound)) == b"fine"
    first, second = (dict(received.headers) for received in upstream.received)
    assert first.pop("x-request-id") == "r-1"
    assert second.pop("x-request-id") == "r-2"
    assert first == second
    assert first["content-length"] == "2"
    assert first["x-a"] == "1"


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/a#b", "/\N{SNOWMAN}", "/\t"])
async def test_target_with_an_invalid_character_is_refused(
    upstream: ScriptedUpstream, client: HttpUpstream, path: str
) -> None:
    with pytest.raises(UpstreamUnreachableError):
        await client.send(call(upstream.url + path))
    assert upstream.connections == 0


@pytest.mark.parametrize(
    "url", ["", "ftp://x/", "http:///x", "http://user:pw@host/", "http://h:port/", "//h/", "http://h?q"]
)
async def test_malformed_url_is_unreachable(client: HttpUpstream, url: str) -> None:
    with pytest.raises(UpstreamUnreachableError):
        await client.send(call(url))


# --- bodies and their ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_body_ends_the_answer(
    upstream: ScriptedUpstream, client: HttpUpstream, status: int
) -> None:
    upstream.plan(script.raw(script.head(status)), OK)
    assert await fetch(client, upstream.url) == (status, b"")
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 1


async def test_answer_to_head_has_no_body(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.raw(script.head(200, {"content-length": "1000"})), OK)
    assert await fetch(client, upstream.url, method="HEAD", body=b"") == (200, b"")
    assert await fetch(client, upstream.url) == (200, b"fine")


async def test_body_without_length_ends_with_the_connection(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.raw(script.head(200), b"one", b"two", then="close"), OK)
    assert await fetch(client, upstream.url) == (200, b"onetwo")
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 2


async def test_http_1_0_answer_is_read(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.raw(b"HTTP/1.0 200 OK\r\n\r\nold", then="close"))
    assert await fetch(client, upstream.url) == (200, b"old")


async def test_connection_close_ends_reuse(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.answer(200, b"bye", {"connection": "close"}), OK)
    assert await fetch(client, upstream.url) == (200, b"bye")
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 2


async def test_trailers_and_chunk_extensions_are_skipped(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    body = b"3;ext=1\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n"
    upstream.plan(script.raw(script.head(200, {"transfer-encoding": "chunked"}) + body), OK)
    answer = await client.send(call(upstream.url))
    assert await read_all(answer) == b"abc"
    assert [name for name, _ in answer.headers] == ["transfer-encoding"]
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 1


async def test_answer_in_single_bytes_is_read(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    wire = script.head(200, {"transfer-encoding": "chunked", "x-long": "v" * 50}) + script.chunked(b"abc", b"de")
    upstream.plan(script.raw(*(wire[i : i + 1] for i in range(len(wire)))), OK)
    answer = await client.send(call(upstream.url))
    assert ("x-long", "v" * 50) in answer.headers
    assert await read_all(answer) == b"abcde"
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 1


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n"]
)
async def test_interim_answers_are_skipped(upstream: ScriptedUpstream, client: HttpUpstream, interim: bytes) -> None:
    fine = script.head(200, {"content-length": "4"}) + b"fine"
    upstream.plan(script.raw(interim, interim, fine), script.raw(interim + fine))
    for _ in range(2):
        answer = await client.send(call(upstream.url))
        assert answer.headers == [("content-length", "4")]
        assert await read_all(answer) == b"fine"
    assert upstream.connections == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed(upstream: ScriptedUpstream, client: HttpUpstream, status: int) -> None:
    upstream.plan(script.answer(status, b"", {"location": f"{upstream.url}/elsewhere"}))
    assert await fetch(client, upstream.url) == (status, b"")
    assert len(upstream.received) == 1


async def test_retry_after_of_a_529_is_kept(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.answer_json(529, {"error": "overloaded"}, {"retry-after": "7"}))
    answer = await client.send(call(upstream.url))
    assert answer.status == 529
    assert ("retry-after", "7") in answer.headers


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_call_without_a_descriptor_takes_that_of_the_longest_free_connection(
    upstream: ScriptedUpstream, client: HttpUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedUpstream() as other:
        assert (await fetch(client, other.url))[0] == 200
        answers = iter((0, 1_000_000))
        monkeypatch.setattr(egress, "highest_descriptor", lambda spare: next(answers))
        assert (await fetch(client, upstream.url))[0] == 200
        monkeypatch.setattr(egress, "highest_descriptor", lambda spare: 1_000_000)
        assert (await fetch(client, other.url))[0] == 200
        assert other.connections == 2


async def test_lack_of_descriptors_is_no_fault_of_the_upstream(
    upstream: ScriptedUpstream, client: HttpUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress, "highest_descriptor", lambda spare: 0)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        await client.send(call(upstream.url))
    assert upstream.connections == 0
    monkeypatch.undo()
    assert (await fetch(client, upstream.url))[0] == 200


async def test_refused_connection_is_unreachable(client: HttpUpstream) -> None:
    async with ScriptedUpstream() as stopped:
        url = stopped.url
    with pytest.raises(UpstreamUnreachableError) as failure:
        await client.send(call(url))
    assert_no_secrets(failure.value)


async def test_name_that_does_not_resolve_is_unreachable(client: HttpUpstream) -> None:
    with pytest.raises(UpstreamUnreachableError) as failure:
        await client.send(call("http://no-such-host.invalid/v1"))
    assert_no_secrets(failure.value, "no-such-host")


@pytest.mark.parametrize("then", ["reset", "close"])
async def test_close_before_the_head_is_a_reset(upstream: ScriptedUpstream, client: HttpUpstream, then: str) -> None:
    upstream.plan(script.raw(then=then))
    with pytest.raises(UpstreamResetError) as failure:
        await client.send(call(upstream.url))
    assert_no_secrets(failure.value)
    assert len(upstream.received) == 1


@pytest.mark.parametrize("then", ["reset", "close"])
async def test_close_in_the_head_is_a_reset(upstream: ScriptedUpstream, client: HttpUpstream, then: str) -> None:
    upstream.plan(script.raw(b"HTTP/1.1 200 OK\r\ncontent-le", then=then))
    with pytest.raises(UpstreamResetError):
        await client.send(call(upstream.url))
    assert len(upstream.received) == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [({"content-length": "100"}, b"short"), ({"transfer-encoding": "chunked"}, script.chunked(b"short", end=False))],
    ids=["length", "chunked"],
)
@pytest.mark.parametrize("then", ["reset", "close"])
async def test_close_in_the_body_cuts_the_answer(
    upstream: ScriptedUpstream, client: HttpUpstream, headers: dict[str, str], body: bytes, then: str
) -> None:
    go_on = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.send(script.head(200, headers) + body)
        await go_on.wait()
        {"reset": exchange.reset, "close": exchange.close}[then]()

    upstream.plan(behave)
    answer = await client.send(call(upstream.url))
    assert await answer.read() == b"short"
    go_on.set()
    with pytest.raises(UpstreamCutError) as failure:
        await answer.read()
    assert_no_secrets(failure.value)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 999 No\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3x\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nabc",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        b"HTTP/0.9 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/2.0 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/0.9 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/2.0 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"RTSP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"RTSP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"ICE/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"\r\nRTSP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"RTSP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\nRTSP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"abc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: \r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: \r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: \r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ],
)
async def test_answer_that_is_not_http_is_a_reset(
    upstream: ScriptedUpstream, client: HttpUpstream, wire: bytes
) -> None:
    for pieces in ([wire], [wire[at : at + 1] for at in range(len(wire))]):
        upstream.plan(script.raw(*pieces, then="close"))
        with pytest.raises(UpstreamResetError) as failure:
            await client.send(call(upstream.url))
        assert_no_secrets(failure.value)


async def test_broken_chunk_cuts_the_answer(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.raw(script.head(200, {"transfer-encoding": "chunked"}) + b"3\r\nabc\r\nzz\r\n"))
    answer = await client.send(call(upstream.url))
    with pytest.raises(UpstreamCutError):
        await read_all(answer)


@pytest.mark.parametrize(
    "endless",
    [
        script.endless(b"HTTP/1.1 200 OK\r\n", b"x-more: of the same\r\n" * 100),
        script.endless(b"HTTP/1.1 200 OK\r\nx-endless: ", b"v" * 4096),
        script.endless(b"HTTP/1.1 200 ", b"reason " * 600),
        script.endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    ],
    ids=["fields", "value", "reason", "interim"],
)
async def test_endless_head_is_a_reset(
    upstream: ScriptedUpstream, client: HttpUpstream, endless: script.Behaviour
) -> None:
    upstream.plan(endless)
    with pytest.raises(UpstreamResetError):
        await client.send(call(upstream.url))


@pytest.mark.parametrize("start", [b"0\r\nx-trailer: ", b"3;ext="], ids=["trailer", "extension"])
async def test_endless_trailers_cut_the_answer(upstream: ScriptedUpstream, client: HttpUpstream, start: bytes) -> None:
    upstream.plan(script.endless(script.head(200, {"transfer-encoding": "chunked"}) + start, b"v" * 4096))
    answer = await client.send(call(upstream.url))
    with pytest.raises(UpstreamCutError):
        await read_all(answer)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond", b"rubbish", b"HT"])
async def test_bytes_after_the_answer_close_the_connection(
    upstream: ScriptedUpstream, client: HttpUpstream, extra: bytes
) -> None:
    upstream.plan(script.raw(script.head(200, {"content-length": "5"}) + b"first" + extra), OK)
    assert await fetch(client, upstream.url) == (200, b"first")
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 2


async def test_bytes_between_calls_close_the_connection(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    go_on = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, {"content-length": "0"}))
        await go_on.wait()
        await exchange.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await exchange.client_closed()
        exchange.keep = False

    upstream.plan(behave, OK)
    assert await fetch(client, upstream.url) == (200, b"")
    go_on.set()
    await upstream.until(lambda: upstream.open_connections == 0)
    assert await fetch(client, upstream.url) == (200, b"fine")


# --- time -------------------------------------------------------------------------------------------------------------


async def test_deadline_before_the_head_is_a_timeout(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.silent())
    with pytest.raises(UpstreamTimeoutError):
        await client.send(call(upstream.url, within_s=0.05))
    await upstream.until(lambda: upstream.open_connections == 0)


async def test_deadline_in_the_body_is_a_timeout(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.silent(script.head(200, {"content-length": "10"}) + b"12345"))
    answer = await client.send(call(upstream.url, within_s=2))  # the head must come in time
    assert await answer.read() == b"12345"
    with pytest.raises(UpstreamTimeoutError):
        await answer.read()
    await upstream.until(lambda: upstream.open_connections == 0)


async def test_idle_timeout_does_not_apply_before_the_head(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    gate = asyncio.Event()
    upstream.plan(script.held(gate, after=script.head(200, {"content-length": "0"})))
    asyncio.get_running_loop().call_later(0.15, gate.set)
    assert await fetch(client, upstream.url, idle_timeout_s=0.02) == (200, b"")


async def test_silent_stream_is_a_timeout(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.silent(script.head(200, {"transfer-encoding": "chunked"}) + script.chunked(b"a", end=False)))
    answer = await client.send(call(upstream.url, idle_timeout_s=0.05))
    assert await answer.read() == b"a"
    with pytest.raises(UpstreamTimeoutError):
        await answer.read()


async def test_timer_of_one_call_does_not_end_the_next(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(OK)
    await fetch(client, upstream.url, within_s=2)
    gate = asyncio.Event()
    upstream.plan(script.held(gate, after=script.head(200, {"content-length": "0"})))
    asyncio.get_running_loop().call_later(2.2, gate.set)
    assert await fetch(client, upstream.url) == (200, b"")
    upstream.plan(script.silent())
    with pytest.raises(UpstreamTimeoutError):
        await fetch(client, upstream.url, within_s=0.1)
    assert upstream.connections == 1


# --- reuse of connections ---------------------------------------------------------------------------------------------


async def test_closed_connection_is_not_reused(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.raw(script.head(200, {"content-length": "0"}), then="close"), OK)
    assert await fetch(client, upstream.url) == (200, b"")
    await upstream.until(lambda: upstream.open_connections == 0)
    await asyncio.sleep(0.01)  # the FIN has to pass the kernel, and no event shows when it has
    assert await fetch(client, upstream.url) == (200, b"fine")


async def test_post_that_crossed_the_close_is_sent_again(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    """The FIN has arrived but is unread when the request is written: the upstream received none of it."""

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, {"content-length": "0"}))
        exchange.keep = False

    upstream.plan(behave, OK)
    answer = await client.send(call(upstream.url))
    assert answer.status == 200
    time.sleep(0.01)  # noqa: ASYNC251  the loop must not see the FIN before the next call is written
    await upstream.until(lambda: upstream.open_connections == 0)
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert len(upstream.received) == 2


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_received_post_is_never_sent_again(upstream: ScriptedUpstream, client: HttpUpstream, then: str) -> None:
    upstream.plan(OK, script.raw(then=then), OK)
    await fetch(client, upstream.url)
    with pytest.raises(UpstreamResetError):
        await fetch(client, upstream.url)
    assert len(upstream.received) == 2


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_get_on_a_stale_connection_is_sent_again_once(
    upstream: ScriptedUpstream, client: HttpUpstream, then: str
) -> None:
    upstream.plan(OK, script.raw(then=then), OK)
    await fetch(client, upstream.url)
    assert await fetch(client, upstream.url, method="GET", body=b"") == (200, b"fine")
    upstream.plan(script.raw(then=then), script.raw(then=then), OK)
    with pytest.raises(UpstreamResetError):
        await fetch(client, upstream.url, method="GET", body=b"")
    assert len(upstream.received) == 5


async def test_idle_connection_expires(upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened(PoolLimits(idle_s=0.05))
    upstream.plan(OK)
    await fetch(client, upstream.url)
    await upstream.until(lambda: upstream.open_connections == 0)


@pytest.mark.parametrize(
    ("count", "is_burst"), [(BURST_CONNECTIONS + CLOSED_PER_STEP, True), (BURST_CONNECTIONS // 2, False)]
)
async def test_end_of_a_burst_is_reported_once(
    upstream: ScriptedUpstream, opened: Open, count: int, is_burst: bool
) -> None:
    """Memory is returned then. Connections close in steps; all are closed when the end is reported."""
    burst_ends: list[str] = []
    client = opened(PoolLimits(idle_s=1), on_burst_end=lambda: burst_ends.append("gone"))
    gate = asyncio.Event()
    upstream.default = script.held(gate, after=script.head(200, {"content-length": "0"}))
    calls = [asyncio.ensure_future(fetch(client, upstream.url)) for _ in range(count)]
    await upstream.until(lambda: len(upstream.received) == count)
    gate.set()
    await asyncio.gather(*calls)
    async with asyncio.timeout(SOON_S):
        while not client.is_idle:
            await asyncio.sleep(0.005)
    assert len(burst_ends) == is_burst
    assert upstream.connections == count


async def test_calls_above_the_cap_wait(upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened(PoolLimits(per_origin=2))
    gate = asyncio.Event()
    upstream.default = script.held(gate, after=script.head(200, {"content-length": "0"}))
    calls = [asyncio.ensure_future(fetch(client, upstream.url)) for _ in range(7)]
    await upstream.until(lambda: len(upstream.received) == 2)
    gate.set()
    assert await asyncio.gather(*calls) == [(200, b"")] * 7
    assert upstream.connections == 2


async def test_deadline_applies_while_waiting_at_the_cap(upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened(PoolLimits(per_origin=1))
    upstream.plan(script.silent(), OK)
    first = asyncio.ensure_future(fetch(client, upstream.url))
    await upstream.until(lambda: len(upstream.received) == 1)
    with pytest.raises(UpstreamTimeoutError):
        await fetch(client, upstream.url, within_s=0.05)
    fetch_task = asyncio.ensure_future(fetch(client, upstream.url))
    await asyncio.sleep(0)
    first.cancel()
    assert await fetch_task == (200, b"fine")


async def test_slot_is_released_when_connecting_fails(opened: Open) -> None:
    client = opened(PoolLimits(per_origin=1))
    async with ScriptedUpstream() as stopped:
        url = stopped.url
    results = await asyncio.gather(*(fetch(client, url) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [UpstreamUnreachableError] * 3


async def test_cancelled_wait_at_the_cap_passes_its_slot_on(upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened(PoolLimits(per_origin=1))
    gate = asyncio.Event()
    upstream.default = script.held(gate, after=script.head(200, {"content-length": "0"}))
    calls = [asyncio.ensure_future(fetch(client, upstream.url)) for _ in range(4)]
    await upstream.until(lambda: len(upstream.received) == 1)
    calls[1].cancel()
    gate.set()
    await calls[0]
    calls[2].cancel()
    assert await calls[3] == (200, b"")
    assert await fetch(client, upstream.url) == (200, b"")


# --- cancellation -----------------------------------------------------------------------------------------------------


async def test_cancelling_before_the_head_closes_the_connection(
    upstream: ScriptedUpstream, client: HttpUpstream
) -> None:
    upstream.plan(script.silent())
    fetch_task = asyncio.ensure_future(fetch(client, upstream.url))
    await upstream.until(lambda: len(upstream.received) == 1)
    fetch_task.cancel()
    await upstream.until(lambda: upstream.open_connections == 0)
    with pytest.raises(asyncio.CancelledError):
        await fetch_task


async def test_cancelling_a_read_closes_the_connection(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.silent(script.head(200, {"content-length": "9"})))
    answer = await client.send(call(upstream.url))
    reading = asyncio.ensure_future(answer.read())
    await asyncio.sleep(0)
    reading.cancel()
    await upstream.until(lambda: upstream.open_connections == 0)
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_closing_an_answer_closes_the_connection(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.endless(script.head(200), b"more and more"), OK)
    answer = await client.send(call(upstream.url))
    await answer.read()
    answer.close()
    answer.close()
    await upstream.until(lambda: upstream.open_connections == 0)
    assert await fetch(client, upstream.url) == (200, b"fine")


async def test_connecting_can_be_cancelled(opened: Open) -> None:
    resolving = asyncio.Event()

    async def never(_: str) -> Any:
        resolving.set()
        await asyncio.Event().wait()

    client = opened(resolve=never)
    fetch_task = asyncio.ensure_future(fetch(client, "http://name.example/"))
    await resolving.wait()
    fetch_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch_task


async def test_closing_the_client_ends_its_calls(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.silent())
    fetch_task = asyncio.ensure_future(fetch(client, upstream.url))
    await upstream.until(lambda: len(upstream.received) == 1)
    await client.aclose()
    with pytest.raises(UpstreamResetError):
        await fetch_task


# --- large bodies and slow ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [65_000, 66_000, 400_000, 8_000_000])
async def test_large_body_is_sent_whole(upstream: ScriptedUpstream, client: HttpUpstream, size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    upstream.plan(OK, OK)
    for _ in range(2):
        assert await fetch(client, upstream.url, body=body) == (200, b"fine")
        assert upstream.received[-1].body == body
    assert upstream.connections == 1


@pytest.mark.parametrize("size", [70_000, 400_000, 8_000_000])
async def test_segmented_body_is_sent_as_one(upstream: ScriptedUpstream, client: HttpUpstream, size: int) -> None:
    text = memoryview(bytes(range(256)) * (size // 256))
    body = SegmentedBody(text[:100], b"a change", text[200:-7], b"another", text[-7:])
    upstream.plan(OK, OK)
    for _ in range(2):
        assert await fetch(client, upstream.url, body=body) == (200, b"fine")
        assert upstream.received[-1].body == bytes(body)
    assert upstream.connections == 1


async def test_large_body_waits_for_a_slow_upstream(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    gate = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.read_body()
        await exchange.send(script.head(200, {"content-length": "0"}))

    upstream.plan(behave)
    body = b"x" * 20_000_000
    fetch_task = asyncio.ensure_future(fetch(client, upstream.url, body=body))
    await upstream.until(lambda: len(upstream.received) == 1)
    gate.set()
    assert await fetch_task == (200, b"")
    assert upstream.received[0].body == body


async def test_early_refusal_of_a_large_body_is_returned(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    refusal = script.head(413, {"content-length": "7"}) + b"too big"
    upstream.plan(script.early(refusal), OK)
    assert await fetch(client, upstream.url, body=b"x" * 50_000_000) == (413, b"too big")
    assert await fetch(client, upstream.url) == (200, b"fine")
    assert upstream.connections == 2


async def test_slow_reader_pauses_the_upstream(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    sent_bytes = 0

    async def behave(exchange: Exchange) -> None:
        nonlocal sent_bytes
        await exchange.send(script.head(200))
        for _ in range(2000):
            await exchange.send(b"x" * 65_536)
            sent_bytes += 65_536
        exchange.close()

    upstream.plan(behave)
    answer = await client.send(call(upstream.url))
    await until_still(lambda: sent_bytes)  # the kernel's buffers are full
    assert sent_bytes < 2000 * 65_536
    assert answer.held_bytes <= 2 * 65_536
    assert len(await read_all(answer)) == 2000 * 65_536


async def test_paused_reading_does_not_count_as_silence(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.plan(script.raw(script.head(200), *[b"x" * 65_536] * 64, then="close"))
    answer = await client.send(call(upstream.url, idle_timeout_s=0.5))
    await asyncio.sleep(0.7)
    assert len(await read_all(answer)) == 64 * 65_536


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def tls_upstream(authority: ThrowawayCa) -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tls=authority.server_context("model.example")) as server:
        yield server


def linked(server: ScriptedUpstream, name: str = "model.example") -> EgressRules:
    return EgressRules.parse(f"{name}=127.0.0.1:{server.port}")


async def test_tls_through_a_link(tls_upstream: ScriptedUpstream, opened: Open, authority: ThrowawayCa) -> None:
    client = opened(rules=linked(tls_upstream), ca_file=str(authority.ca_file))
    for body in (b"{}", b"x" * 1_000_000):
        tls_upstream.plan(OK)
        upstream_call = call("https://model.example/v1", body=body)
        upstream_call.reach = Reach.CUSTOMER
        answer = await client.send(upstream_call)
        assert (answer.status, await read_all(answer)) == (200, b"fine")
        assert tls_upstream.received[-1].header("host") == "model.example"
        assert tls_upstream.received[-1].body == body
    assert tls_upstream.connections == 1
    await client.aclose()


async def test_tls_connection_cut_in_the_body_cuts_the_answer(
    tls_upstream: ScriptedUpstream, opened: Open, authority: ThrowawayCa
) -> None:
    client = opened(rules=linked(tls_upstream), ca_file=str(authority.ca_file))
    tls_upstream.plan(script.raw(script.head(200, {"content-length": "9"}) + b"abc", then="reset"))
    answer = await client.send(call("https://model.example/v1"))
    with pytest.raises(UpstreamCutError):
        await read_all(answer)


async def test_untrusted_authority_is_unreachable(tls_upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened(rules=linked(tls_upstream))
    with pytest.raises(UpstreamUnreachableError) as failure:
        await client.send(call("https://model.example/v1"))
    assert_no_secrets(failure.value, "model.example")
    assert not tls_upstream.received


async def test_certificate_for_another_name_is_unreachable(
    tls_upstream: ScriptedUpstream, opened: Open, authority: ThrowawayCa
) -> None:
    client = opened(rules=linked(tls_upstream, "other.example"), ca_file=str(authority.ca_file))
    with pytest.raises(UpstreamUnreachableError) as failure:
        await client.send(call("https://other.example/v1"))
    assert_no_secrets(failure.value, "other.example")


async def test_plain_server_behind_an_https_url_is_unreachable(upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened(rules=linked(upstream), connect_timeout_s=0.2)
    with pytest.raises(UpstreamUnreachableError):
        await client.send(call("https://model.example/v1"))


async def test_tls_server_behind_an_http_url_is_a_reset(tls_upstream: ScriptedUpstream, opened: Open) -> None:
    client = opened()
    with pytest.raises(UpstreamResetError):
        await client.send(call(tls_upstream.url.replace("https", "http")))


# --- what egress refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [Reach.CUSTOMER, Reach.REPLICA])
async def test_loopback_address_is_not_dialled(upstream: ScriptedUpstream, client: HttpUpstream, reach: Reach) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"):
        upstream_call = call(f"http://{host}:{upstream.port}/")
        upstream_call.reach = reach
        with pytest.raises(UpstreamUnreachableError):
            await client.send(upstream_call)
    assert upstream.connections == 0


async def test_proxy_variables_are_ignored(
    upstream: ScriptedUpstream, client: HttpUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    upstream.plan(OK)
    assert await fetch(client, upstream.url) == (200, b"fine")


def assert_no_secrets(error: BaseException, *more: str) -> None:
    """Neither the error nor its causes name the upstream or its credential."""
    cause: BaseException | None = error
    while cause is not None and not cause.__suppress_context__:
        for name in ("127.0.0.1", "sk-very-secret", *more):
            assert name not in str(cause)
        cause = cause.__cause__ or cause.__context__
    for name in ("127.0.0.1", "sk-very-secret", *more):
        assert name not in str(error)
