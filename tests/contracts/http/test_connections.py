"""Connections of the HTTP server on real sockets, on both event loops: backpressure, keep-alive and closing."""

import asyncio
import contextlib
import gc
import logging
import socket
from typing import cast

import pytest

from proxy.edges.http.connection import Connection
from proxy.edges.http.http_limits import ExchangeLimits, HttpLimits
from proxy.errors import CallerGoneError
from proxy.records.messages import Incoming, Outgoing
from tests.fakes.front import echo, listening
from tests.waiting import eventually

BOTH_LOOPS = True
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\nhi"
SHORT_TIMEOUTS = HttpLimits(head_timeout_s=0.2, watch_interval_s=0.05)


async def refuse_without_reading(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answer without reading the body, after all of it had time to arrive."""
    await asyncio.sleep(0.1)
    outgoing.start(401, [])
    outgoing.finish(b"no")


@pytest.mark.parametrize("size", [150_000, 500_000])
async def test_connection_is_kept_after_a_complete_unread_body(size: int) -> None:
    async with listening(refuse_without_reading) as front:
        caller = await front.caller()
        for _ in range(3):
            caller.send(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
            status, head, _ = await caller.answer()
            assert status == 401
            if b"connection: close" in head:  # the body had not arrived completely
                return
        caller.send(REQUEST)
        assert (await caller.answer())[0] == 401


async def test_thousands_of_pipelined_requests_are_all_answered() -> None:
    async with listening() as front:
        caller = await front.caller()
        caller.send(b"".join(HEAD + b"Content-Length: 4\r\n\r\n%04d" % number for number in range(3000)))
        caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n0\r\n\r\n")
        for number in range(3000):
            assert (await caller.answer())[2] == b"POST /a %04d" % number
        assert (await caller.answer())[2] == b"POST /a last"


async def test_caller_that_keeps_sending_gets_the_refusal_and_no_reset() -> None:
    async def refuse(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(413, [])
        outgoing.finish(b"no")

    async with listening(refuse) as front:
        caller = await front.caller()
        caller.send(HEAD + b"Content-Length: 9000000\r\n\r\n")
        for _ in range(30):
            caller.send(b"x" * 100_000)
            await caller.writer.drain()
        status, head, _ = await caller.answer()
        assert status == 413
        assert b"connection: close" in head
        assert await caller.read_to_end() == b""


async def test_idle_connection_is_closed() -> None:
    async with listening(echo, HttpLimits(keepalive_timeout_s=1.0, watch_interval_s=0.05)) as front:
        unused = await front.caller()
        active = await front.caller()
        active.send(REQUEST)
        assert (await active.answer())[0] == 200
        assert await unused.read_to_end() == b""
        assert await active.read_to_end() == b""


async def test_empty_line_on_an_idle_connection_starts_no_head() -> None:
    """RFC 9112 2.2: some callers send one more CRLF after a body."""
    async with listening(echo, SHORT_TIMEOUTS) as front:
        caller = await front.caller()
        caller.send(REQUEST)
        assert (await caller.answer())[0] == 200
        caller.send(b"\r\n")
        await asyncio.sleep(0.5)  # longer than a head may take
        caller.send(REQUEST)
        assert (await caller.answer())[0] == 200


@pytest.mark.parametrize("field", [b"", b"Connection: close\r\n"])
async def test_closed_connection_is_aborted_if_the_caller_does_not_read(field: bytes) -> None:
    async def large(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(200, [])
        outgoing.finish(b"x" * 50_000)  # less than what makes a writer wait

    # The request must come before its connection counts as idle.
    limits = HttpLimits(keepalive_timeout_s=1.0, watch_interval_s=0.05, exchange=ExchangeLimits(stall_s=0.2))
    async with listening(large, limits) as front:
        caller = await front.caller(receive_buffer=4096)
        await eventually(lambda: front.server.connections)
        [connection] = front.server.connections
        transport = connection.transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        cast(asyncio.ReadTransport, caller.writer.transport).pause_reading()
        caller.send(b"GET /a HTTP/1.1\r\nHost: x\r\n" + field + b"\r\n")
        await eventually(transport.is_closing)
        assert transport.get_write_buffer_size() > 0
        await eventually(lambda: not front.server.connections)


async def test_request_behind_an_answer_that_nobody_reads_is_not_served() -> None:
    targets: list[str] = []

    async def endless(incoming: Incoming, outgoing: Outgoing) -> None:
        targets.append(incoming.request_target)
        outgoing.start(200, [])
        with contextlib.suppress(CallerGoneError):  # as the pipeline does
            while True:
                outgoing.write(b"x" * 65_536)
                await outgoing.room()

    async with listening(endless, HttpLimits(exchange=ExchangeLimits(stall_s=0.2))) as front:
        caller = await front.caller(receive_buffer=4096)
        caller.send(REQUEST + REQUEST.replace(b"/a", b"/b"))
        await eventually(lambda: targets)
        await eventually(lambda: not front.server.connections)
    assert targets == ["/a"]


async def test_unfinished_pipelined_head_is_a_408() -> None:
    async with listening(echo, SHORT_TIMEOUTS) as front:
        caller = await front.caller()
        caller.send(REQUEST + HEAD + b"X-A:")
        assert (await caller.answer())[0] == 200
        assert (await caller.read_to_end()).startswith(b"HTTP/1.1 408 ")


async def test_connect_request_is_answered_and_closes_the_connection() -> None:
    async with listening() as front:
        raw = await front.ask(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nwhatever follows")
        assert raw.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in raw
        assert raw.count(b"HTTP/1.1 ") == 1


async def test_long_body_of_an_upgrade_request_arrives() -> None:
    async with listening() as front:
        caller = await front.caller()
        upgrade = b"Connection: upgrade\r\nUpgrade: h2c\r\n"
        caller.send(HEAD + upgrade + b"Content-Length: 400000\r\n\r\n" + b"x" * 400_000 + REQUEST)
        assert b"x-length: 400000" in (await caller.answer())[1]
        assert (await caller.answer())[2] == b"POST /a hi"


async def test_http_1_0_caller_gets_no_100_continue() -> None:
    async with listening() as front:
        caller = await front.caller()
        caller.send(b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(0.05)
        caller.send(b"hi")
        assert (await caller.read_to_end()).startswith(b"HTTP/1.1 200 ")


async def test_exception_outside_the_pipeline_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: Incoming, outgoing: Outgoing) -> None:
        raise ZeroDivisionError

    async with listening(broken) as front:
        assert await front.ask(REQUEST) == b""
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_closed_connection_is_freed_without_the_cycle_collector() -> None:
    async with listening() as front:
        gc.collect()
        gc.disable()
        of_other_tests = connections_alive()
        try:
            caller = await front.caller()
            caller.send(REQUEST)
            assert (await caller.answer())[0] == 200
            assert len(connections_alive() - of_other_tests) == 1
            caller.disconnect()
            await eventually(lambda: not connections_alive() - of_other_tests)
            assert not front.server.connections
        finally:
            gc.enable()


def connections_alive() -> set[Connection]:
    return {one for one in gc.get_objects() if isinstance(one, Connection)}
