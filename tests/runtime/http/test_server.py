"""The HTTP server of control's API and of the admin port, on real sockets: slow and many callers, malformed HTTP."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from runtime.http.server import FrontLimits
from tests.fakes.aiohttp_front import listening_at
from tests.fakes.front import Caller
from tests.waiting import eventually

KEY = b"tg_quoteme.0123456789abcdef0123456789abcdef"
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
HI = HEAD + b"Content-Length: 2\r\n\r\nhi"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
QUICK = FrontLimits(head_timeout_s=0.2, body_idle_s=0.2, stall_s=0.2, idle_s=60, lingering_s=0.2, look_interval_s=0.05)
PATIENT = FrontLimits(look_interval_s=0.05)


class Served:
    """An application behind the server, and callers that write raw bytes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.port = 0
        self._stack = stack
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def caller(self) -> Caller:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        caller = Caller(reader, writer)
        self._stack.callback(hang_up, caller)
        return caller

    async def ask(self, data: bytes) -> bytes:
        caller = await self.caller()
        caller.send(data)
        return await caller.read_to_end()


def hang_up(caller: Caller) -> None:
    caller.writer.transport.abort()


def application(server: Served) -> web.Application:
    app = web.Application()

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def unread(_: web.Request) -> web.Response:
        return web.Response(status=401)

    async def held(_: web.Request) -> web.Response:
        server.entered.set()
        await server.go.wait()
        return web.Response(text="held")

    async def begun(request: web.Request) -> web.Response:
        server.entered.set()
        return web.Response(body=await request.read())

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(20_000_000))

    async def broken(request: web.Request) -> web.Response:
        raise ValueError(request.headers["Authorization"])

    app.add_routes([web.post("/echo", echo), web.post("/unread", unread), web.post("/held", held)])
    app.add_routes([web.post("/begun", begun)])
    app.add_routes([web.get("/large", large), web.get("/broken", broken)])
    return app


@asynccontextmanager
async def served(limits: FrontLimits = PATIENT) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        server = Served(stack)
        server.port = await stack.enter_async_context(listening_at(application(server), limits))
        yield server


async def test_requests_are_served_one_after_another_and_pipelined() -> None:
    async with served() as server:
        caller = await server.caller()
        for message, count in ((HI, 1), (HI * 5, 5), (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", 1)):
            caller.send(message)
            for _ in range(count):
                head = await caller.head()
                assert head.startswith(b"HTTP/1.1 200 ")
                assert await caller.reader.readexactly(2) == b"hi"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (HI, 200),
        (b"POST /unread HTTP/1.1\r\nHost: x\r\n\r\n", 401),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /broken HTTP/1.1\r\nHost: x\r\nAuthorization: k\r\n\r\n", 500),
        (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400),
        (HEAD, 408),
    ],
)
async def test_every_answer_forbids_sniffing_and_names_no_version(message: bytes, status: int) -> None:
    async with served(QUICK) as server:
        caller = await server.caller()
        caller.send(message)
        head = (await caller.head()).lower()
    assert head.startswith(b"http/1.1 %d " % status)
    fields = head.split(b"\r\n")
    assert fields.count(b"x-content-type-options: nosniff") == 1
    assert [field for field in fields if field.startswith(b"server:")] == [b"server: tollgate"]


@pytest.mark.parametrize("beginning", [b"P", HEAD, HEAD + b"X-A: b"])
async def test_unfinished_head_is_a_408(beginning: bytes) -> None:
    async with served(QUICK) as server:
        caller = await server.caller()
        caller.send(HI)
        await caller.until(b"hi")
        for one in (caller, await server.caller()):
            one.send(beginning)
            assert (await one.read_to_end()).startswith(b"HTTP/1.1 408 ")


async def test_slow_head_is_cut_off() -> None:
    async with served(QUICK) as server:
        caller = await server.caller()
        caller.send(HEAD + b"X-A: ")
        await assert_trickle_is_cut_off(caller, b"a")


@pytest.mark.parametrize("path", [b"/echo", b"/unread"])
@pytest.mark.parametrize("message", [HEAD + b"Content-Length: 20\r\n\r\nhi", CHUNKED + b"2\r\nhi"])
async def test_a_missing_body_ends_the_connection(message: bytes, path: bytes) -> None:
    async with served(QUICK) as server:
        raw = await server.ask(message.replace(b"/echo", path))
        assert raw.startswith(b"HTTP/1.1 408 " if path == b"/echo" else b"HTTP/1.1 401 ")
        assert raw.count(b"HTTP/1.1 ") == 1


async def test_a_body_below_the_minimum_rate_is_408() -> None:
    async with served(replace(QUICK, body_idle_s=0.4, body_bytes_per_s=1e6)) as server:
        caller = await server.caller()
        caller.send(HEAD + b"Content-Length: 200000\r\n\r\n")
        await assert_trickle_is_cut_off(caller, b"x")


async def test_a_slow_handler_does_not_time_out_the_caller() -> None:
    async with served(QUICK) as server:
        caller = await server.caller()
        caller.send(HI.replace(b"/echo", b"/held"))
        await server.entered.wait()
        await asyncio.sleep(0.5)  # more than twice any limit
        server.go.set()
        assert (await caller.head()).startswith(b"HTTP/1.1 200 ")


async def test_a_caller_that_does_not_read_is_disconnected() -> None:
    async with served(QUICK) as server:
        caller = await server.caller()
        caller.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined] # typeshed has it for reading transports
        await eventually(lambda: _is_reset(caller))


def _is_reset(caller: Caller) -> bool:
    caller.send(b"x")
    return caller.writer.transport.is_closing()


async def test_an_idle_connection_is_closed_without_a_response() -> None:
    async with served(replace(PATIENT, idle_s=1)) as server:
        fresh = await server.caller()
        idle = await server.caller()
        idle.send(HI)
        await idle.until(b"hi")
        assert [await one.read_to_end() for one in (fresh, idle)] == [b"", b""]


async def test_above_the_cap_the_longest_idle_connection_is_closed() -> None:
    async with served(replace(PATIENT, max_connections=3)) as server:
        callers = [await server.caller() for _ in range(3)]
        for caller in (callers[1], callers[0], callers[2]):
            caller.send(HI)
            await caller.until(b"hi")
        newcomer = await server.caller()
        newcomer.send(HI)
        await newcomer.until(b"hi")
        assert await callers[1].read_to_end() == b""
        for caller in (callers[0], callers[2]):
            caller.send(HI)
            await caller.until(b"hi")


# Malformed HTTP is refused with a flat 400. Neither the response nor the log quotes it.

BROKEN = {
    "request line": b"GET /%b HTTP/1.1 oops\r\nHost: x\r\n\r\n" % KEY,
    "method": b"%b / HTTP/1.1\r\nHost: x\r\n\r\n" % KEY,
    "key alone": KEY + b"\r\n\r\n",
    "long target": b"GET /" + KEY * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "version": b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % KEY,
    "header without a colon": HEAD + b"Authorization Bearer %b\r\n\r\n" % KEY,
    "header name": HEAD + b"Authorization Bearer %b: x\r\n\r\n" % KEY,
    "NUL in a header": HEAD + b"Authorization: Bearer %b\0\r\n\r\n" % KEY,
    "bare LF in a header": HEAD + b"Authorization: Bearer %b\nX: \x01\r\n\r\n" % KEY,
    "long header": HEAD + b"Authorization: Bearer " + KEY * 2000 + b"\r\n\r\n",
    "length": HEAD + b"Content-Length: %b\r\n\r\n" % KEY,
    "coding": HEAD + b"Transfer-Encoding: %b\r\n\r\n" % KEY,
    "chunk size": CHUNKED + b"%b\r\nhi\r\n0\r\n\r\n" % KEY,
    "chunk end": CHUNKED + b"2\r\nhi%b\r\n0\r\n\r\n" % KEY,
    "no version": b"GET /%b\r\nHost: x\r\n\r\n" % KEY,
    "HTTP/0.9": b"GET /%b HTTP/0.9\r\nHost: x\r\n\r\n" % KEY,
    "HTTP/2.0": b"GET /%b HTTP/2.0\r\nHost: x\r\n\r\n" % KEY,
    "RTSP/1.0": b"GET /%b RTSP/1.0\r\nHost: x\r\n\r\n" % KEY,
    "RTSP/1.1": b"GET /%b RTSP/1.1\r\nHost: x\r\n\r\n" % KEY,
    "RTSP's own method": b"PLAY /%b RTSP/1.0\r\nHost: x\r\n\r\n" % KEY,
    "RTSP/1.0, spaced": b"\r\nGET  /%b  RTSP/1.0\r\nHost: x\r\n\r\n" % KEY,
    "ICE/1.0": b"SOURCE /%b ICE/1.0\r\nHost: x\r\n\r\n" % KEY,
    "empty coding": HEAD + b"Authorization: Bearer %b\r\nTransfer-Encoding: \r\n\r\n" % KEY,
    "chunked twice": HEAD + b"X: %b\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" % KEY,
    "empty list member": HEAD + b"X: %b\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n" % KEY,
    "chunked in HTTP/1.0": b"POST /echo HTTP/1.0\r\nHost: %b\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % KEY,
}


@pytest.mark.parametrize("message", BROKEN.values(), ids=BROKEN)
async def test_malformed_http_is_a_flat_400_and_is_not_quoted(message: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served() as server:
        raw = await server.ask(message)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["code"] == "INVALID_REQUEST"
    assert_not_quoted(raw, caplog)


async def test_a_malformed_chunk_of_an_unread_body_is_not_quoted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(replace(PATIENT, lingering_s=1)) as server:
        caller = await server.caller()
        caller.send(CHUNKED.replace(b"/echo", b"/unread") + b"2\r\nhi\r\n")
        head = await caller.head()
        assert head.startswith(b"HTTP/1.1 401 ")
        caller.send(KEY + b"\r\n")
        raw = await caller.read_to_end()
    assert_not_quoted(head + raw, caplog)


@pytest.mark.parametrize("byte_by_byte", [False, True])
async def test_another_protocol_on_a_reused_connection_is_400(byte_by_byte: bool) -> None:
    async with served() as server:
        caller = await server.caller()
        caller.send(HI)
        await caller.until(b"hi")
        for piece in _pieces(b"GET /echo RTSP/1.0\r\nHost: x\r\n\r\n", byte_by_byte):
            caller.send(piece)
            await asyncio.sleep(0)
        assert (await caller.read_to_end()).startswith(b"HTTP/1.1 400 ")


async def test_another_protocols_name_in_header_and_body_is_served() -> None:
    text = b"POST /echo RTSP/1.0\r\n"
    request = HEAD + b"X: %b\r\nContent-Length: %d\r\n\r\n%b" % (text.strip(), len(text), text)
    async with served() as server:
        caller = await server.caller()
        for byte_by_byte in (False, True):
            for piece in _pieces(request + request, byte_by_byte):
                caller.send(piece)
                await asyncio.sleep(0)
            for _ in range(2):
                assert (await caller.head()).startswith(b"HTTP/1.1 200 ")
                assert await caller.reader.readexactly(len(text)) == text


def _pieces(data: bytes, byte_by_byte: bool) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))] if byte_by_byte else [data]


BROKEN_BODIES = {
    "chunk size": KEY + b"\r\n",
    "chunk end": b"2\r\nhi" + KEY,
    "chunk extension": b"2;\0" + KEY + b"\r\nhi\r\n",
    "bare LF": b"2\nhi\n" + KEY,
    "trailer": b"0\r\n" + KEY + b" x: y\r\n\r\n",
}


@pytest.mark.parametrize("rest", BROKEN_BODIES.values(), ids=BROKEN_BODIES)
async def test_a_body_that_becomes_malformed_while_awaited_is_400_at_once(
    rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """aiohttp reports the error only to the next request on the connection, so the handler would wait for ever."""
    caplog.set_level(logging.DEBUG)
    async with served() as server:
        caller = await server.caller()
        caller.send(HI)
        await caller.until(b"hi")
        caller.send(CHUNKED.replace(b"/echo", b"/begun") + b"2\r\nhi\r\n")
        await server.entered.wait()
        caller.send(rest)
        raw = await caller.read_to_end()
    assert raw.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in raw.lower()
    assert raw.count(b"HTTP/1.1 ") == 1
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["code"] == "INVALID_REQUEST"
    assert_not_quoted(raw, caplog)


async def test_a_request_is_answered_though_the_next_body_is_malformed() -> None:
    async with served() as server:
        caller = await server.caller()
        caller.send(HI.replace(b"/echo", b"/held"))
        await server.entered.wait()
        caller.send(CHUNKED)
        await asyncio.sleep(0.05)  # otherwise both arrive in one read, and aiohttp reports only the error
        caller.send(b"zz\r\n")
        await asyncio.sleep(0.05)
        server.go.set()
        raw = await caller.read_to_end()
    assert [part[:3] for part in raw.split(b"HTTP/1.1 ")] == [b"", b"200", b"400"]


TRAILERS = {
    "repeated": b"Host: y\r\n",
    "too long": b"X: " + b"a" * 9000 + b"\r\n",
    "too many": b"".join(b"X-%d: a\r\n" % n for n in range(200)),
}


@pytest.mark.parametrize("trailers", TRAILERS.values(), ids=TRAILERS)
async def test_trailers_that_only_aiohttp_refuses_end_the_connection(trailers: bytes) -> None:
    """The second parser (httptools) accepts them, so the body counts as missing."""
    async with served(QUICK) as server:
        caller = await server.caller()
        caller.send(CHUNKED)
        await asyncio.sleep(0.05)
        caller.send(b"0\r\n" + trailers + b"X: y\r\n\r\n")
        assert (await caller.read_to_end()).startswith(b"HTTP/1.1 408 ")


async def test_a_malformed_body_after_a_declined_upgrade_ends_the_connection() -> None:
    """The second parser (httptools) does not run after an upgrade, so the body counts as missing."""
    upgrade = HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi"
    async with served(QUICK) as server:
        caller = await server.caller()
        for _ in range(2):
            caller.send(upgrade)
            await caller.until(b"hi")
        caller.send(CHUNKED)
        await asyncio.sleep(0.05)
        caller.send(b"zz\r\n")
        assert (await caller.read_to_end()).startswith(b"HTTP/1.1 408 ")


async def test_a_bug_is_a_flat_500_logged_by_place_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async with served(replace(QUICK, code_member="error_code")) as server:
        raw = await server.ask(b"GET /broken HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % KEY)
    assert raw.startswith(b"HTTP/1.1 500 ")
    assert json.loads(raw.partition(b"\r\n\r\n")[2]) == {
        "error": "Internal Server Error",
        "message": "Internal Server Error",
        "error_code": "INTERNAL_ERROR",
    }
    assert "ValueError" in caplog.text
    assert "in broken" in caplog.text
    assert KEY.decode() not in caplog.text


async def assert_trickle_is_cut_off(caller: Caller, piece: bytes) -> None:
    """Send pieces until the connection ends. Who sends while we close may be reset before it reads the 408."""
    rest = asyncio.create_task(caller.read_to_end())
    while not rest.done():
        caller.send(piece)
        await asyncio.wait([rest], timeout=0.02)
    if not isinstance(rest.exception(), ConnectionResetError):
        assert rest.result().startswith(b"HTTP/1.1 408 ")


def assert_not_quoted(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert b"quoteme" not in raw
    assert "quoteme" not in caplog.text
    assert "Traceback" not in caplog.text
