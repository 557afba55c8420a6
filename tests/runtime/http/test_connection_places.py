"""The connections of control and of the admin port that are kept when all are taken: real sockets, hostile callers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from runtime.http.server import FrontLimits, keep
from runtime.shares.places import NoPlaceError
from tests.fakes.aiohttp_front import listening_at
from tests.fakes.front import Caller, connect
from tests.waiting import eventually

ASK = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
STRANGERS = {
    "silent": b"",
    "request line": b"P",
    "head": HEAD,
    "second head": ASK.replace(b"Connection: close\r\n", b"") + HEAD,
    "body": HEAD + b"Content-Length: 9\r\n\r\nhi",
    "chunked body": CHUNKED + b"2\r\nhi\r\n",
    "unread body": HEAD.replace(b"/echo", b"/unread") + b"Content-Length: 9\r\n\r\nhi",
    "unread answer": b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
}
"""Data that callers whom nobody knows send to hold a connection."""


class Served:
    """An application on a few connections, and callers that write raw bytes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.port = 0
        self._stack = stack
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.workspaces: list[str] = []
        """The workspaces with a request under way."""

    async def caller(self, data: bytes = b"", *, reads: bool = True) -> Caller:
        caller = await connect(self.port, data, reads=reads)
        self._stack.callback(hang_up, caller)
        return caller

    async def ask(self, data: bytes) -> bytes:
        return await (await self.caller(data)).read_to_end()

    async def busy(self) -> Caller:
        """A caller whose request is under way until `go`."""
        self.entered.clear()
        caller = await self.caller(ASK.replace(b"/echo", b"/held"))
        await self.entered.wait()
        return caller


def hang_up(caller: Caller) -> None:
    caller.writer.transport.abort()


def application(server: Served) -> web.Application:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def held(_: web.Request) -> web.Response:
        server.entered.set()
        await server.go.wait()
        return web.Response(text="held")

    async def unread(_: web.Request) -> web.Response:
        return web.Response(status=401)

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(20_000_000))

    async def known(request: web.Request) -> web.Response:
        workspace = request.headers["Workspace"]
        try:
            keep(request, workspace or None)
        except NoPlaceError:
            return web.Response(status=429)
        server.workspaces.append(workspace)
        try:
            return web.Response(body=await request.read())
        finally:
            server.workspaces.remove(workspace)

    app = web.Application()
    posts = {"/echo": echo, "/held": held, "/unread": unread, "/known": known}
    app.add_routes([web.get("/large", large), *(web.post(path, handler) for path, handler in posts.items())])
    return app


@asynccontextmanager
async def served(max_connections: int) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        server = Served(stack)
        limits = FrontLimits(max_connections=max_connections, look_interval_s=0.05)
        server.port = await stack.enter_async_context(listening_at(application(server), limits))
        yield server


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_newcomer_is_served_while_strangers_hold_every_connection(data: bytes) -> None:
    """Strangers come back as often as they are closed, so no timeout helps."""
    async with served(8) as server:
        for _ in range(20):
            for _ in range(8):
                await server.caller(data, reads=False)
            assert (await server.ask(ASK)).endswith(b"hi")


async def test_connection_that_waited_longest_for_its_caller_is_closed_first() -> None:
    async with served(3) as server:
        busy = await server.busy()
        head = await server.caller(HEAD)
        idle = await server.caller()
        idle.send(ASK.replace(b"Connection: close\r\n", b""))
        await idle.until(b"hi")
        assert (await server.ask(ASK)).endswith(b"hi")
        assert_too_many(await head.read_to_end())
        again = await server.caller(HEAD)
        assert (await server.ask(ASK)).endswith(b"hi")
        assert await idle.read_to_end() == b""
        await server.caller(HEAD)
        assert (await server.ask(ASK)).endswith(b"hi")
        assert_too_many(await again.read_to_end())
        server.go.set()
        assert (await busy.head()).startswith(b"HTTP/1.1 200 ")


async def test_closed_strangers_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async with served(2) as server:
        for _ in range(50):
            await server.caller(HEAD)
        assert (await server.ask(ASK)).endswith(b"hi")
    assert 1 <= caplog.text.count("Closed the connection that waited longest for its caller, as 2 are open") < 25


async def test_newcomer_is_503_if_no_connection_waits_for_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    async with served(2) as server:
        busy = [await server.busy() for _ in range(2)]
        for _ in range(20):
            assert_too_many(await server.ask(b""))
        server.go.set()
        for caller in busy:
            assert (await caller.head()).startswith(b"HTTP/1.1 200 ")
    assert 1 <= caplog.text.count("Refused a connection with a 503: 2 are open") < 20


async def test_requests_of_known_callers_are_kept_and_strangers_closed() -> None:
    async with served(8) as server:
        callers = [await server.caller(unfinished("w1")) for _ in range(4)]
        await eventually(lambda: len(server.workspaces) == 4)
        for _ in range(20):
            await server.caller(HEAD)
        for caller in callers:
            caller.send(b"i")
            await caller.until(b"hi")


async def test_idle_connection_of_a_known_caller_outlives_strangers_who_come_and_go() -> None:
    async with served(8) as server:
        caller = await server.caller()
        for _ in range(3):
            caller.send(unfinished("w1").replace(b"Connection: close\r\n", b"") + b"i")
            await caller.until(b"hi")
            for _ in range(30):
                await server.caller(HEAD)
            assert (await server.ask(ASK)).endswith(b"hi")


async def test_newcomer_is_served_while_known_callers_hold_every_connection_idle() -> None:
    async with served(8) as server:
        for _ in range(3):
            for _ in range(12):
                caller = await server.caller(unfinished("w1").replace(b"Connection: close\r\n", b"") + b"i")
                await caller.until(b"hi")
            for data in (ASK, unfinished("w2") + b"i"):
                assert (await server.ask(data)).endswith(b"hi")


async def test_workspace_with_its_share_of_connections_is_refused_and_others_are_served() -> None:
    async with served(8) as server:
        for _ in range(20):
            await server.caller(unfinished("hostile"))
        await eventually(lambda: len(server.workspaces) == 4)  # of six: two are for others, two more for the product
        assert (await server.ask(unfinished("hostile") + b"i")).startswith(b"HTTP/1.1 429 ")
        for workspace in ("other", "other", ""):  # "": another part of the product
            assert (await server.ask(unfinished(workspace) + b"i")).endswith(b"hi")


async def test_product_is_served_while_workspaces_hold_all_that_they_may() -> None:
    async with served(8) as server:
        for workspace in ("first", "second", "third"):
            for _ in range(8):
                await server.caller(unfinished(workspace))
        await eventually(lambda: len(server.workspaces) == 6)
        for _ in range(8):
            await server.caller(HEAD)
        assert (await server.ask(unfinished("") + b"i")).endswith(b"hi")


@pytest.mark.parametrize("leaves", [False, True], ids=["answered", "caller left"])
async def test_share_of_connections_is_given_back(leaves: bool) -> None:
    async with served(3) as server:
        for _ in range(5):
            callers = [await server.caller(unfinished("w1"))]
            await eventually(lambda: len(server.workspaces) == 1)
            if leaves:
                hang_up(callers[0])
                await eventually(lambda: not server.workspaces)
            else:
                callers[0].send(b"i")
                await callers[0].until(b"hi")


def unfinished(workspace: str) -> bytes:
    """A request of a known caller, without its last byte."""
    head = b"POST /known HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    return head + b"Workspace: %b\r\nContent-Length: 2\r\n\r\nh" % workspace.encode()


def assert_too_many(raw: bytes) -> None:
    assert raw.startswith(b"HTTP/1.1 503 ")
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["code"] == "TOO_MANY_CONNECTIONS"
