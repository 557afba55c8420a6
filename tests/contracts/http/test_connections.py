"""Connections of the HTTP server on real sockets, on both event loops: what is held back, kept open and let go."""

import asyncio
import gc
import logging

import pytest

from proxy.edges.http.connection import Connection
from proxy.edges.http.limits import HttpLimits
from proxy.exchange import Incoming, Outgoing
from tests.fakes.front import echo, listening
from tests.waiting import eventually

BOTH_LOOPS = True
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
HI = HEAD + b"Content-Length: 2\r\n\r\nhi"
QUICK = HttpLimits(lingering_s=0.2, head_timeout_s=0.2, watch_interval_s=0.05)


async def refuse_once_it_is_here(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answers without a look at the body, but after all of it had time to come."""
    await asyncio.sleep(0.1)
    outgoing.start(401, [])
    await outgoing.finish(b"no")


@pytest.mark.parametrize("size", [150_000, 500_000])
async def test_a_connection_serves_on_after_a_whole_body_that_nobody_read(size: int) -> None:
    async with listening(refuse_once_it_is_here, QUICK) as front:
        caller = await front.caller()
        for _ in range(3):
            caller.say(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size)
            status, head, _ = await caller.answer()
            assert status == 401
            if b"connection: close" in head:  # not all of it was here
                return
        caller.say(HI)
        assert (await caller.answer())[0] == 401


async def test_thousands_of_requests_at_once_are_all_answered_and_few_wait_in_memory() -> None:
    async with listening(echo, QUICK) as front:
        caller = await front.caller()
        caller.say(b"".join(HEAD + b"Content-Length: 4\r\n\r\n%04d" % number for number in range(3000)))
        caller.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n0\r\n\r\n")
        for number in range(3000):
            assert (await caller.answer())[2] == b"POST /a %04d" % number
        assert (await caller.answer())[2] == b"POST /a last"


async def test_a_caller_that_sends_on_after_a_refusal_gets_the_refusal_not_a_reset() -> None:
    async def refuse(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(413, [])
        await outgoing.finish(b"no")

    async with listening(refuse) as front:
        caller = await front.caller()
        caller.say(HEAD + b"Content-Length: 9000000\r\n\r\n")
        for _ in range(30):
            caller.say(b"x" * 100_000)
            await caller.writer.drain()
        status, head, _ = await caller.answer()
        assert status == 413
        assert b"connection: close" in head
        assert await caller.rest() == b""


async def test_a_connection_that_says_nothing_is_closed_in_the_end() -> None:
    async with listening(echo, HttpLimits(keepalive_timeout_s=0.1, watch_interval_s=0.05)) as front:
        silent, spoke = await front.caller(), await front.caller()
        spoke.say(HI)
        assert (await spoke.answer())[0] == 200
        assert await silent.rest() == b""
        assert await spoke.rest() == b""


async def test_a_head_that_began_behind_another_request_is_cut_when_it_stays_incomplete() -> None:
    async with listening(echo, QUICK) as front:
        caller = await front.caller()
        caller.say(HI + HEAD + b"X-A:")
        assert (await caller.answer())[0] == 200
        assert (await caller.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_connect_is_answered_and_ends_the_connection() -> None:
    async with listening(echo, QUICK) as front:
        raw = await front.ask(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\nwhatever follows")
        assert raw.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in raw
        assert raw.count(b"HTTP/1.1 ") == 1


async def test_a_long_body_behind_a_request_to_upgrade_arrives() -> None:
    async with listening(echo, QUICK) as front:
        caller = await front.caller()
        upgrade = b"Connection: upgrade\r\nUpgrade: h2c\r\n"
        caller.say(HEAD + upgrade + b"Content-Length: 400000\r\n\r\n" + b"x" * 400_000 + HI)
        assert b"x-length: 400000" in (await caller.answer())[1]
        assert (await caller.answer())[2] == b"POST /a hi"


async def test_no_100_is_sent_to_an_http_1_0_caller() -> None:
    async with listening(echo, QUICK) as front:
        caller = await front.caller()
        caller.say(b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        await asyncio.sleep(0.05)
        caller.say(b"hi")
        assert (await caller.rest()).startswith(b"HTTP/1.1 200 ")


async def test_a_bug_outside_of_the_pipeline_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: Incoming, outgoing: Outgoing) -> None:
        raise ZeroDivisionError

    async with listening(broken, QUICK) as front:
        assert await front.ask(HI) == b""
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_closed_connection_leaves_nothing_for_the_cycle_collector() -> None:
    async with listening(echo, QUICK) as front:
        gc.collect()
        gc.disable()
        try:
            caller = await front.caller()
            caller.say(HI)
            assert (await caller.answer())[0] == 200
            assert len(connections_alive()) == 1
            caller.leave()
            await eventually(lambda: not front.server.connections)
            await asyncio.sleep(0.01)
            assert connections_alive() == []
        finally:
            gc.enable()


def connections_alive() -> list[str]:
    return [repr(one) for one in gc.get_objects() if isinstance(one, Connection)]
