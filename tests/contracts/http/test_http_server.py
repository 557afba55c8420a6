"""The HTTP server on real sockets, on both event loops: framing rules, slow callers, disconnects and drain."""

import asyncio
import ctypes
import errno
import json
import select
import socket
import struct
import sys
from collections.abc import AsyncIterator
from time import gmtime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.edges.http import http_exchange
from proxy.edges.http.http_exchange import HttpExchange
from proxy.edges.http.http_limits import ExchangeLimits, HttpLimits
from proxy.errors import CallerGoneError
from proxy.records.messages import Incoming, Outgoing
from tests.fakes.front import Front, echo, listening
from tests.fakes.path import PathRig
from tests.waiting import PATIENCE_S, eventually

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SHORT_TIMEOUTS = HttpLimits(
    lingering_s=0.2, head_timeout_s=0.2, watch_interval_s=0.05, exchange=ExchangeLimits(body_idle_s=0.2)
)
FREQUENT_CHECKS = HttpLimits(watch_interval_s=0.05)


SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs socket filters")

BOTH_LOOPS = True


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with listening(options=FREQUENT_CHECKS) as front:
        yield front


@pytest.fixture
async def impatient_front() -> AsyncIterator[Front]:
    """A front for requests that come too slowly: with a stalled machine, any request does."""
    async with listening(options=SHORT_TIMEOUTS) as front:
        yield front


class HeldHandler:
    """A handler that waits for `go` and records how its calls ended."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, incoming: Incoming, outgoing: Outgoing) -> None:
        self.entered.set()
        try:
            await self.go.wait()
            await echo(incoming, outgoing)
            self.ended.append("answered")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise


# Messages that two parsers could read differently are refused, and no byte of them is quoted.

AMBIGUOUS = {
    "length and chunked": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "two equal lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "list of lengths": HEAD + b"Content-Length: 2, 2\r\n\r\nhi",
    "signed length": HEAD + b"Content-Length: +2\r\n\r\nhi",
    "negative length": HEAD + b"Content-Length: -2\r\n\r\nhi",
    "hex length": HEAD + b"Content-Length: 0x2\r\n\r\nhi",
    "empty length": HEAD + b"Content-Length: \r\n\r\nhi",
    "endless length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\nhi",
    "space before colon": HEAD + b"Content-Length : 2\r\n\r\nhi",
    "folded field": HEAD + b"X-A: b\r\n c\r\nContent-Length: 2\r\n\r\nhi",
    "folded coding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare LF everywhere": REQUEST.replace(b"\r\n", b"\n"),
    "bare LF once": HEAD + b"X-A: b\nContent-Length: 2\r\n\r\nhi",
    "bare LF at the end": HEAD + b"Content-Length: 2\r\n\nhi",
    "bare CR": HEAD + b"X-A: b\rX-B: c\r\nContent-Length: 2\r\n\r\nhi",
    "NUL in a value": HEAD + b"X-A: b\0c\r\nContent-Length: 2\r\n\r\nhi",
    "NUL in a name": HEAD + b"X\0A: b\r\nContent-Length: 2\r\n\r\nhi",
    "no name": HEAD + b": b\r\nContent-Length: 2\r\n\r\nhi",
    "other coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked not last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked with a tab": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no hex in a chunk": CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
    "signed chunk": CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n",
    "prefixed chunk": CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n",
    "endless chunk": CHUNKED + b"FFFFFFFFFFFFFFFFF\r\nhi\r\n0\r\n\r\n",
    "longer chunk": CHUNKED + b"2\r\nhix\r\n0\r\n\r\n",
    "bare LF in chunks": CHUNKED + b"2\nhi\n0\n\n",
    "no host": b"POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two hosts": HEAD + b"Host: y\r\nContent-Length: 0\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "no method": b"/a HTTP/1.1\r\nHost: x\r\n\r\n",
    "target of raw bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "long target": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "long field": HEAD + b"X-A: " + b"a" * 20_000 + b"\r\n\r\n",
    "many fields": HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(200)) + b"\r\n",
    "empty coding": HEAD + b"Transfer-Encoding: \r\n\r\n",
    "empty coding of a GET": b"GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n",
    "empty coding and length": HEAD + b"Transfer-Encoding: \r\nContent-Length: 2\r\n\r\nhi",
    "length and empty coding": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: \r\n\r\nhi",
    "chunked and empty coding": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n",
    "empty coding and chunked": HEAD + b"Transfer-Encoding:\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice in one field": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "empty list member": HEAD + b"Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("message", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_ambiguous_request_is_a_400_and_closes_the_connection(front: Front, message: bytes) -> None:
    raw = await front.ask(
        message.replace(b"Host: x\r\n", b"Host: x\r\nAuthorization: Bearer tg_quote.me\r\n") + REQUEST
    )
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert set(json.loads(body)) == {"error", "error_code"}, "one answer only"
    assert b"quote" not in raw


ODD_VERSIONS = {
    "no version": b"GET /a\r\nHost: x\r\n\r\n",
    "no version, with a body": b"POST /a\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    "HTTP/0.9": b"GET /a HTTP/0.9\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2": b"GET /a HTTP/2\r\nHost: x\r\n\r\n",
    "RTSP/1.0": b"GET /a RTSP/1.0\r\nHost: x\r\n\r\n",
    "RTSP/1.1": b"GET /a RTSP/1.1\r\nHost: x\r\n\r\n",
    "RTSP/1.0, with a body": b"POST /a RTSP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    "RTSP/1.0, with a long body": b"POST /a RTSP/1.0\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + bytes(50_000),
    "RTSP/1.0, spaced": b"\r\nGET  /a  RTSP/1.0\r\nHost: x\r\n\r\n",
    "RTSP's own method": b"PLAY /a RTSP/1.0\r\nHost: x\r\n\r\n",
    "ICE/1.0": b"SOURCE /a ICE/1.0\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("message", ODD_VERSIONS.values(), ids=ODD_VERSIONS)
async def test_unsupported_version_is_refused_at_once(front: Front, message: bytes) -> None:
    """httptools accepts these requests and raises only at the next bytes of the connection."""
    caller = await front.caller()
    caller.send(message)
    raw = await caller.read_to_end()
    assert raw.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in raw
    assert raw.count(b"HTTP/1.1 ") == 1


async def test_rtsp_sent_byte_by_byte_on_a_kept_connection_is_refused(front: Front) -> None:
    caller = await front.caller()
    caller.send(REQUEST)
    assert (await caller.answer())[0] == 200
    for byte in b"\r\nGET /a RTSP/1.0\r\nHost: x\r\n\r\n":
        caller.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await caller.read_to_end()).startswith(b"HTTP/1.1 400 ")


async def test_invalid_framing_closes_the_connection_even_if_the_body_is_not_read() -> None:
    async def unread(incoming: Incoming, outgoing: Outgoing) -> None:
        assert incoming.fault is not None
        outgoing.start(400, [])
        outgoing.finish()

    async with listening(unread) as front:
        for coding in (b"", b"gzip, chunked", b",chunked"):
            caller = await front.caller()
            caller.send(HEAD + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n")
            assert b"connection: close" in await caller.read_to_end()


async def test_broken_chunk_is_a_400_at_once(front: Front) -> None:
    caller = await front.caller()
    caller.send(CHUNKED + b"2\r\nhi\r\n")
    await asyncio.sleep(0.01)
    caller.send(b"zz\r\n")
    assert (await caller.read_to_end()).startswith(b"HTTP/1.1 400 ")


# Requests that must be accepted.


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (REQUEST, b"POST /a hi"),
        (b"\r\n" + REQUEST, b"POST /a hi"),
        (CHUNKED + b"1\r\nh\r\n1;x=y\r\ni\r\n0\r\nX-Trailer: 1\r\n\r\n", b"POST /a hi"),
        (b"GET http://elsewhere/b?c=d HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /b?c=d "),
        (
            HEAD + b"X: POST /a RTSP/1.0\r\nContent-Length: 18\r\n\r\nPOST /a RTSP/1.0\r\n",
            b"POST /a POST /a RTSP/1.0\r\n",
        ),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi", b"POST /a hi"),
        (HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi", b"POST /a hi"),
    ],
)
async def test_valid_but_unusual_requests_are_served(front: Front, message: bytes, body: bytes) -> None:
    caller = await front.caller()
    caller.send(message)
    assert (await caller.answer())[::2] == (200, body)
    caller.send(REQUEST)
    assert (await caller.answer())[0] == 200, "the connection is kept"


async def test_pipelined_requests_are_answered_in_order(front: Front) -> None:
    requests = b"".join(HEAD + b"Content-Length: 2\r\n\r\n%02d" % number for number in range(60))
    for cut in (1, 7, len(requests)):
        caller = await front.caller()
        for start in range(0, len(requests), cut):
            caller.send(requests[start : start + cut])
            if cut == 1 and start % 64 == 0:
                await asyncio.sleep(0)
        bodies = [(await caller.answer())[2] for _ in range(60)]
        assert bodies == [b"POST /a %02d" % number for number in range(60)]


async def test_pipelined_requests_do_not_block_the_event_loop() -> None:
    turns = 0
    turn_counts = list[int]()
    running = True

    def turn() -> None:
        nonlocal turns
        turns += 1
        if running:
            asyncio.get_running_loop().call_soon(turn)

    turn()

    async def note_turn(incoming: Incoming, outgoing: Outgoing) -> None:
        turn_counts.append(turns)
        await echo(incoming, outgoing)

    async with listening(note_turn) as front:
        caller = await front.caller()
        caller.send(REQUEST * 20)
        for _ in range(20):
            assert (await caller.answer())[0] == 200
    running = False
    assert len(set(turn_counts)) > 10, "far fewer would mean that pipelined requests block the other connections"


async def test_calls_of_one_connection_run_in_one_task() -> None:
    tasks: list[asyncio.Task[None] | None] = []

    async def note_task(incoming: Incoming, outgoing: Outgoing) -> None:
        tasks.append(asyncio.current_task())
        await echo(incoming, outgoing)

    async with listening(note_task) as front:
        caller = await front.caller()
        for _ in range(2):
            caller.send(REQUEST)
            assert (await caller.answer())[0] == 200
    assert tasks[0] is tasks[1] is not None


async def test_connection_is_kept_alive_until_the_caller_closes_it(front: Front) -> None:
    caller = await front.caller()
    for _ in range(3):
        caller.send(REQUEST)
        assert b"connection:" not in (await caller.answer())[1]
    caller.send(HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi")
    assert b"connection: close" in (await caller.answer())[1]
    assert await caller.read_to_end() == b""


async def test_http_1_0_answer_ends_with_the_connection(front: Front) -> None:
    raw = await front.ask(b"POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
    assert raw.endswith(b"\r\n\r\nPOST /a hi")
    assert b"transfer-encoding" not in raw


@pytest.mark.parametrize("status", [204, 304])
async def test_204_and_304_answers_have_no_body(status: int) -> None:
    async def bodiless(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(status, [])
        outgoing.finish(b"not to be seen")

    async with listening(bodiless) as front:
        caller = await front.caller()
        caller.send(REQUEST)
        head = await caller.head()
        assert b"content-length" not in head
        assert b"transfer-encoding" not in head
        caller.send(REQUEST)
        assert (await caller.head()).startswith(b"HTTP/1.1 %d" % status)


async def test_head_answer_has_no_body(front: Front) -> None:
    caller = await front.caller()
    caller.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
    await caller.head()
    caller.send(REQUEST)
    assert (await caller.head()).startswith(b"HTTP/1.1 200")


# Bodies: large ones, Expect, memory.


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_of_several_mebibytes_is_read(front: Front, chunked: bool) -> None:
    piece = b"x" * 65_536
    count = 100
    caller = await front.caller()
    caller.send(CHUNKED if chunked else HEAD + b"Content-Length: %d\r\n\r\n" % (len(piece) * count))
    for _ in range(count):
        caller.send(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
        await caller.writer.drain()
    if chunked:
        caller.send(b"0\r\n\r\n")
    status, head, _ = await caller.answer()
    assert status == 200
    assert b"x-length: 6553600" in head


async def test_expect_100_continue_is_answered_when_the_body_is_read(front: Front) -> None:
    caller = await front.caller()
    caller.send(HEAD + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    assert await caller.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    caller.send(b"hi")
    assert (await caller.answer())[2] == b"POST /a hi"


async def test_unauthorized_caller_gets_no_100_continue() -> None:
    rig = PathRig()
    async with listening(rig.pipeline.handle) as front:
        caller = await front.caller()
        caller.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n"
        )
        head = await caller.head()
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in head


async def test_unread_body_is_not_buffered() -> None:
    handler = HeldHandler()
    async with listening(handler, FREQUENT_CHECKS) as front:
        caller = await front.caller()
        caller.send(HEAD + b"Content-Length: 100000000\r\n\r\n")
        sent_bytes = 0

        async def send() -> None:
            nonlocal sent_bytes
            while sent_bytes < 100_000_000:
                caller.send(b"x" * 65_536)
                sent_bytes += 65_536
                await caller.writer.drain()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send(), 0.5)
        assert sent_bytes < 20_000_000
        assert handler.ended == []


# Slow callers.


@pytest.mark.parametrize("beginning", [b"P", HEAD, HEAD + b"X-A: b"])
async def test_unfinished_head_is_a_408(impatient_front: Front, beginning: bytes) -> None:
    caller = await impatient_front.caller()
    caller.send(beginning)
    answer = await caller.read_to_end()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.split(b"\r\n").count(b"x-content-type-options: nosniff") == 1


async def test_slow_head_is_cut_off(impatient_front: Front) -> None:
    caller = await impatient_front.caller()
    for byte in HEAD + b"X-A: " + b"a" * 300:
        caller.send(bytes([byte]))
        await asyncio.sleep(0.01)
        if caller.reader.at_eof() or caller.writer.is_closing():
            break
    else:
        pytest.fail("was never cut off")


async def test_stalled_body_is_a_408(impatient_front: Front) -> None:
    for message in (HEAD + b"Content-Length: 20\r\n\r\nhi", CHUNKED + b"2\r\nhi"):
        caller = await impatient_front.caller()
        caller.send(message)
        status, head, _ = await caller.answer()
        assert status == 408
        assert b"connection: close" in head


async def test_slow_body_is_a_408() -> None:
    options = HttpLimits(lingering_s=0.1, exchange=ExchangeLimits(body_idle_s=0.3, body_bytes_per_s=1000))
    async with listening(options=options) as front:
        caller = await front.caller()
        caller.send(HEAD + b"Content-Length: 2000\r\n\r\n")
        answer = asyncio.create_task(caller.answer())
        for _ in range(100):
            caller.send(b"x")
            await asyncio.wait([answer], timeout=0.02)
            if answer.done():
                break
        assert (await answer)[0] == 408


async def test_caller_that_stops_reading_pauses_the_writer_and_is_disconnected() -> None:
    written_bytes = 0
    outcome = asyncio.Event()

    async def endless(_: Incoming, outgoing: Outgoing) -> None:
        nonlocal written_bytes
        outgoing.start(200, [])
        try:
            while True:
                outgoing.write(b"x" * 65_536)
                await outgoing.room()
                written_bytes += 65_536
        except CallerGoneError:
            outcome.set()

    async with listening(endless, HttpLimits(exchange=ExchangeLimits(stall_s=0.3))) as front:
        caller = await front.caller(receive_buffer=4096)
        caller.send(REQUEST)
        async with asyncio.timeout(PATIENCE_S):
            await outcome.wait()
        assert written_bytes < 16_000_000


async def test_slow_reader_gets_the_whole_answer() -> None:
    async def large(incoming: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        for _ in range(100):
            outgoing.write(b"x" * 65_536)
            await outgoing.room()
        outgoing.finish(b"end")

    async with listening(large) as front:
        caller = await front.caller(receive_buffer=8192)
        caller.send(REQUEST)
        tail = await caller.head()
        while not tail.endswith(b"3\r\nend\r\n0\r\n\r\n"):
            tail = tail[-100:] + await caller.reader.read(65_536)


# Callers that disconnect.


@pytest.mark.parametrize("how", ["disconnect", "reset"])
async def test_caller_that_leaves_cancels_its_call(how: str) -> None:
    handler = HeldHandler()
    async with listening(handler, FREQUENT_CHECKS) as front:
        caller = await front.caller()
        caller.send(REQUEST)
        await handler.entered.wait()
        getattr(caller, how)()
        await eventually(lambda: handler.ended == ["cancelled"])


@pytest.mark.parametrize(
    ("how", "pipelined"),
    [("disconnect", REQUEST * 200), ("reset", HEAD + b"Content-Length: 9000000\r\n\r\n" + b"x" * 8_000_000)],
)
async def test_caller_that_leaves_is_noticed_while_reading_is_paused(how: str, pipelined: bytes) -> None:
    """More bytes follow the call than the server reads: reading is paused, and a paused transport sees no disconnect.

    A FIN behind bytes that the receive window has no room for cannot be noticed; a reset can.
    """
    handler = HeldHandler()
    async with listening(handler, FREQUENT_CHECKS) as front:
        caller = await front.caller()
        caller.send(REQUEST + pipelined)
        await handler.entered.wait()
        connection = next(iter(front.server.connections))
        await eventually(lambda: connection.transport is None or not connection.transport.is_reading())
        getattr(caller, how)()
        await eventually(lambda: handler.ended == ["cancelled"])


@pytest.mark.parametrize(("declared", "beginning"), [(20, b"hi"), (400_000, b"x" * 200_000)])
async def test_caller_that_leaves_within_a_body_cancels_its_call(declared: int, beginning: bytes) -> None:
    entered = asyncio.Event()
    ended = asyncio.Event()

    async def reading(incoming: Incoming, outgoing: Outgoing) -> None:
        entered.set()
        try:
            await echo(incoming, outgoing)
        except asyncio.CancelledError:
            ended.set()
            raise

    async with listening(reading) as front:
        caller = await front.caller()
        caller.send(HEAD + b"Content-Length: %d\r\n\r\n" % declared + beginning)
        await eventually(entered.is_set)
        caller.disconnect()
        await eventually(ended.is_set)


# Answers.


async def test_every_answer_forbids_sniffing() -> None:
    async with listening() as front:
        for message in (REQUEST, b"GET / HTTP/1.1\r\nHost us\r\n\r\n"):
            caller = await front.caller()
            caller.send(message)
            _, head, _ = await caller.answer()
            assert head.lower().split(b"\r\n").count(b"x-content-type-options: nosniff") == 1


async def test_date_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(options=FREQUENT_CHECKS) as front:
        monkeypatch.setattr(http_exchange, "gmtime", lambda: gmtime(0))

        async def date() -> bytes:
            caller = await front.caller()
            caller.send(REQUEST)
            _, head, _ = await caller.answer()
            return next(line for line in head.split(b"\r\n") if line.startswith(b"date: "))

        assert await date() != b"date: Thu, 01 Jan 1970 00:00:00 GMT"
        await asyncio.sleep(0.2)
        assert await date() == b"date: Thu, 01 Jan 1970 00:00:00 GMT"


async def test_head_and_each_piece_of_a_stream_are_sent_at_once() -> None:
    go = asyncio.Event()

    async def pieces(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [("content-type", "text/event-stream")])
        outgoing.write(b"")
        await go.wait()
        outgoing.write(b"one")
        outgoing.finish(b"two")

    async with listening(pieces) as front:
        caller = await front.caller()
        caller.send(REQUEST)
        assert b"transfer-encoding: chunked" in await caller.head()
        go.set()
        assert await caller.until(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_abort_delivers_what_was_written_and_omits_the_last_chunk() -> None:
    async def cut(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        outgoing.write(b"x" * 300_000)
        await outgoing.room()
        outgoing.abort()

    async with listening(cut) as front:
        raw = await front.ask(REQUEST)
        assert raw.partition(b"\r\n\r\n")[2].count(b"x") == 300_000
        assert not raw.endswith(b"0\r\n\r\n")


async def test_abort_resets_an_http_1_0_connection() -> None:
    go = asyncio.Event()

    async def cut(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        outgoing.write(b"some")
        await go.wait()
        outgoing.abort()

    async with listening(cut) as front:
        caller = await front.caller()
        caller.send(b"POST /a HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
        await caller.until(b"some")
        go.set()
        with pytest.raises(ConnectionResetError):
            await caller.read_to_end()


async def test_callers_sockets_have_tcp_nodelay() -> None:
    options: list[int] = []

    async def look(incoming: Incoming, outgoing: Outgoing) -> None:
        assert isinstance(incoming, HttpExchange)
        transport = incoming._connection.transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await echo(incoming, outgoing)

    async with listening(look) as front:
        caller = await front.caller()
        caller.send(REQUEST)
        await caller.answer()
    assert options[0] != 0


# Drain.


async def test_drain_finishes_calls_in_flight_and_refuses_connections() -> None:
    handler = HeldHandler()
    async with listening(handler, FREQUENT_CHECKS) as front:
        idle = await front.caller()
        busy = await front.caller()
        busy.send(REQUEST)
        await handler.entered.wait()
        drain = asyncio.create_task(front.server.drain(5))
        assert await idle.read_to_end() == b""
        with pytest.raises(ConnectionError):
            await front.caller()
        handler.go.set()
        status, head, _ = await busy.answer()
        assert status == 200
        assert b"connection: close" in head
        assert await busy.read_to_end() == b""
        await drain
        assert handler.ended == ["answered"]


async def test_drain_cancels_calls_at_its_timeout() -> None:
    handler = HeldHandler()
    async with listening(handler, FREQUENT_CHECKS) as front:
        busy = await front.caller()
        busy.send(REQUEST)
        await handler.entered.wait()
        async with asyncio.timeout(PATIENCE_S):
            await front.server.drain(0.05)
        assert handler.ended == ["cancelled"]
        assert await busy.read_to_end() == b""


async def test_drain_waits_for_a_call_whose_caller_left() -> None:
    entered = asyncio.Event()
    settled: list[bool] = []

    async def settling(_: Incoming, __: Outgoing) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            settled.append(True)

    async with listening(settling, FREQUENT_CHECKS) as front:
        caller = await front.caller()
        caller.send(REQUEST)
        await entered.wait()
        caller.reset()
        await eventually(lambda: not front.server.connections)
        await front.server.drain(0.05)
        assert settled


PART = HEAD + b"Content-Length: 400000\r\n\r\n" + b"x" * 100_000
PARTS = {
    "known length": (HEAD + b"Content-Length: 4\r\n\r\nhi", b"ho"),
    "chunked": (CHUNKED + b"2\r\nhi\r\n", b"2\r\nho\r\n0\r\n\r\n"),
    "long": (PART, b"x" * 300_000),
    "unfinished head": (HEAD + b"Content-", b"Length: 4\r\n\r\nhiho"),
}


@pytest.mark.parametrize(("beginning", "rest"), PARTS.values(), ids=PARTS)
async def test_drain_serves_a_request_that_is_still_arriving(beginning: bytes, rest: bytes) -> None:
    async with listening() as front:
        caller = await front.caller()
        caller.send(beginning)
        await eventually(lambda: any(not connection.is_idle for connection in connections_of(front)))
        drain = asyncio.create_task(front.server.drain(5))
        await eventually(lambda: front.server.accepting is None)
        caller.send(rest)
        status, head, _ = await caller.answer()
        assert status == 200
        assert b"connection: close" in head
        assert await caller.read_to_end() == b""
        await drain


async def test_drain_serves_a_connection_in_the_accept_queue() -> None:
    """The listener is closed at once here, as on a kernel that cannot drop SYNs."""
    async with listening(options=HttpLimits(drain_handshake_s=0)) as front:
        with socket.create_connection(("127.0.0.1", front.port)) as sock:  # blocking: the loop cannot accept meanwhile
            sock.sendall(REQUEST)
            sock.setblocking(False)
            drain = asyncio.create_task(front.server.drain(5))
            async with asyncio.timeout(PATIENCE_S):
                answer = await asyncio.get_running_loop().sock_recv(sock, 65_536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer
            await drain


@on_linux
async def test_drain_refuses_a_late_connection_without_a_reset() -> None:
    """A load balancer may retry a refused connection on another machine, but not a reset one."""
    async with listening() as front:
        with connecting() as late:
            server = cast(Any, front.server.accepting)

            def close() -> None:
                assert late.connect_ex(("127.0.0.1", front.port)) == errno.EINPROGRESS
                server.close()

            front.server.accepting = cast(Any, SimpleNamespace(close=close))
            await front.server.drain(5)
            assert await outcome(late) == errno.ECONNREFUSED


@on_linux
async def test_drain_serves_a_connection_whose_handshake_has_begun() -> None:
    async with listening(options=HttpLimits(drain_handshake_s=2.5)) as front:
        with connecting() as slow:
            drop_packets(slow)  # the server's SYN-ACK is lost; it sends another one after a second
            assert slow.connect_ex(("127.0.0.1", front.port)) == errno.EINPROGRESS
            drain = asyncio.create_task(front.server.drain(10))
            await eventually(lambda: front.server.accepting is None)
            slow.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            assert await outcome(slow) == 0
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(slow, REQUEST)
            async with asyncio.timeout(PATIENCE_S):
                assert (await loop.sock_recv(slow, 65_536)).startswith(b"HTTP/1.1 200 ")
        await drain


async def test_drain_serves_one_more_request_on_an_idle_connection() -> None:
    async with listening() as front:
        caller = await front.caller()
        silent = await front.caller()
        for one in (caller, silent):
            one.send(REQUEST)
            assert b"connection:" not in (await one.answer())[1]
        drain = asyncio.create_task(front.server.drain(5))
        await eventually(lambda: front.server.accepting is None)
        caller.send(REQUEST)
        status, head, _ = await caller.answer()
        assert status == 200
        assert b"connection: close" in head
        assert await caller.read_to_end() == b""
        assert await silent.read_to_end() == b"", "an idle connection is closed before the drain timeout"
        silent.disconnect()
        await drain


async def test_drain_closes_a_streams_connection_after_at_most_one_more_request() -> None:
    go = asyncio.Event()

    async def stream(incoming: Incoming, outgoing: Outgoing) -> None:
        if incoming.request_target == "/once-more":
            await echo(incoming, outgoing)
            return
        outgoing.start(200, [])
        outgoing.write(b"one")
        await go.wait()
        outgoing.finish(b"two")

    once_more = REQUEST.replace(b"/a", b"/once-more")
    async with listening(stream) as front:
        caller = await front.caller()
        silent = await front.caller()
        for one in (caller, silent):
            one.send(REQUEST)
            assert b"connection:" not in await one.head(), "the drain had not begun"
        drain = asyncio.create_task(front.server.drain(10))
        await eventually(lambda: front.server.accepting is None)
        go.set()
        for one in (caller, silent):
            await one.until(b"two\r\n0\r\n\r\n")
        caller.send(once_more)
        status, head, _ = await caller.answer()
        assert status == 200
        assert b"connection: close" in head
        assert await silent.read_to_end() == b""
        silent.disconnect()
        await drain


async def test_drain_does_not_reset_a_request_that_crosses_its_fin() -> None:
    async with listening(options=HttpLimits(drain_idle_s=0.0, drain_linger_s=5.0)) as front:
        with socket.create_connection(("127.0.0.1", front.port)) as sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await eventually(lambda: connections_of(front))
            drain = asyncio.create_task(front.server.drain(5))
            async with asyncio.timeout(PATIENCE_S):
                assert await loop.sock_recv(sock, 1) == b"", "closed by a FIN"
            for _ in range(3):  # a reset would make the second one fail
                await loop.sock_sendall(sock, REQUEST)
                await asyncio.sleep(0)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        await drain


async def test_announced_drain_adds_connection_close_to_answers() -> None:
    """New connections are still served, until the load balancer stops sending them."""
    async with listening() as front:
        reused = await front.caller()
        reused.send(REQUEST)
        assert b"connection:" not in (await reused.answer())[1]
        front.server.announce_close()
        for caller in (reused, await front.caller()):
            caller.send(REQUEST)
            status, head, _ = await caller.answer()
            assert status == 200
            assert b"connection: close" in head
            assert await caller.read_to_end() == b""


def connecting() -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    return sock


def drop_packets(sock: socket.socket) -> None:
    """Attach a BPF program that drops every incoming packet, until it is detached."""
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    filters = struct.pack("@HP", 1, ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filters)


async def outcome(sock: socket.socket) -> int:
    """The error number of its connect; 0 once connected."""
    _, writable, _ = await asyncio.to_thread(select.select, [], [sock], [], 5)
    assert writable, "still connecting"
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def connections_of(front: Front) -> list[Any]:
    return list(front.server.connections)


async def test_unhandled_exception_closes_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(incoming: Incoming, outgoing: Outgoing) -> None:
        raise ZeroDivisionError

    async with listening(broken) as front:
        assert await front.ask(REQUEST) == b""
        assert await front.ask(REQUEST) == b""
