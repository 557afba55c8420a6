"""Long bodies on real sockets, on both event loops: read past the parser, they arrive byte for byte."""

import asyncio
import hashlib
import random

import pytest

from proxy.edges.http.limits import ExchangeLimits, HttpLimits
from proxy.edges.http.server import READ_BYTES
from proxy.exchange import Incoming, Outgoing
from tests.fakes.front import listening

BOTH_LOOPS = True
HI = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


def head(size: int, more: bytes = b"") -> bytes:
    return b"POST /a HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (more, size)


async def digest(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answers with the digest of the body, once it is whole."""
    parts = []
    while part := await incoming.read():
        parts.append(part)
    outgoing.start(200, [])
    await outgoing.finish(hashlib.sha256(b"".join(parts)).hexdigest().encode())


@pytest.mark.parametrize(
    "size",
    [32_000, 33_000, 400_000, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3_000_000],
)
@pytest.mark.parametrize("cut", [0, 1, 40_000, 399_999, 520_000])
async def test_a_long_body_is_what_was_sent_and_what_follows_is_another_request(size: int, cut: int) -> None:
    """`cut`: what comes of the body before a pause; whatever follows it comes at once, with the next request."""
    body = random.Random(size).randbytes(size)
    async with listening(digest) as front:
        caller = await front.caller()
        for _ in range(2):
            caller.say(head(size) + body[:cut])
            await asyncio.sleep(0.01)
            caller.say(body[cut:] + HI)
            for said in (body, b"hi"):
                status, _, answer = await caller.answer()
                assert (status, answer.decode()) == (200, hashlib.sha256(said).hexdigest())


async def test_long_bodies_one_behind_the_other_are_kept_apart() -> None:
    bodies = [
        random.Random(seed).randbytes(size) for seed, size in enumerate((400_000, 70_000, 2_000_000, 10, 400_000))
    ]
    async with listening(digest) as front:
        caller = await front.caller()
        caller.say(b"".join(head(len(body)) + body for body in bodies))
        for body in bodies:
            assert (await caller.answer())[2].decode() == hashlib.sha256(body).hexdigest()


async def test_a_long_body_that_is_awaited_is_asked_for() -> None:
    async with listening(digest) as front:
        caller = await front.caller()
        caller.say(head(400_000, b"Expect: 100-continue\r\n"))
        assert await caller.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.say(b"x" * 400_000 + HI)
        assert (await caller.answer())[2].decode() == hashlib.sha256(b"x" * 400_000).hexdigest()
        assert (await caller.answer())[0] == 200


async def test_a_long_body_that_rests_is_a_408() -> None:
    options = HttpLimits(lingering_s=0.1, exchange=ExchangeLimits(body_idle_s=0.2))
    async with listening(options=options) as front:
        caller = await front.caller()
        caller.say(head(400_000) + b"x" * 100_000)
        status, told, _ = await caller.answer()
        assert status == 408
        assert b"connection: close" in told


async def test_a_long_body_that_comes_by_drops_is_a_408() -> None:
    options = HttpLimits(lingering_s=0.1, exchange=ExchangeLimits(body_idle_s=0.3, body_bytes_per_s=1000))
    async with listening(options=options) as front:
        caller = await front.caller()
        caller.say(head(400_000))
        answer = asyncio.create_task(caller.answer())
        while not answer.done():
            caller.say(b"x")
            await asyncio.wait([answer], timeout=0.02)
        assert (await answer)[0] == 408


async def test_a_long_body_that_nobody_wants_costs_its_connection_and_no_more() -> None:
    async def refusing(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(401, [])
        await outgoing.finish(b"no")

    options = HttpLimits(lingering_s=0.2)
    async with listening(refusing, options) as front:
        caller = await front.caller()
        caller.say(head(400_000) + b"x" * 400_000 + HI)
        status, told, _ = await caller.answer()
        assert status == 401
        assert b"connection: close" in told
        assert await caller.rest() == b""
