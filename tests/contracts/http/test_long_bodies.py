"""Long bodies on real sockets, on both event loops: they bypass the parser and arrive byte for byte."""

import asyncio
import hashlib
import random

import pytest

from proxy.edges.http.connection import Handle
from proxy.edges.http.http_limits import ExchangeLimits, HttpLimits
from proxy.edges.http.server import READ_BYTES
from proxy.records.messages import Incoming, Outgoing
from proxy.refusals import SlowBodyError
from tests.fakes.front import echo, listening

BOTH_LOOPS = True
NEXT_REQUEST = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"


def head(size: int, more: bytes = b"") -> bytes:
    return b"POST /a HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (more, size)


async def digest(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answer with the digest of the complete body."""
    parts = []
    while part := await incoming.read():
        parts.append(part)
    outgoing.start(200, [])
    outgoing.finish(hashlib.sha256(b"".join(parts)).hexdigest().encode())


@pytest.mark.parametrize(
    "size",
    [32_000, 33_000, 400_000, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3_000_000],
)
@pytest.mark.parametrize("cut", [0, 1, 40_000, 399_999, 520_000])
async def test_long_body_arrives_unchanged_and_the_next_request_is_parsed(size: int, cut: int) -> None:
    """`cut`: bytes of the body sent before a pause; the rest is sent together with the next request."""
    body = random.Random(size).randbytes(size)
    async with listening(digest) as front:
        caller = await front.caller()
        for _ in range(2):
            caller.send(head(size) + body[:cut])
            await asyncio.sleep(0.01)
            caller.send(body[cut:] + NEXT_REQUEST)
            for content in (body, b"hi"):
                status, _, answer = await caller.answer()
                assert (status, answer.decode()) == (200, hashlib.sha256(content).hexdigest())


async def test_pipelined_long_bodies_are_kept_apart() -> None:
    bodies = [
        random.Random(seed).randbytes(size) for seed, size in enumerate((400_000, 70_000, 2_000_000, 10, 400_000))
    ]
    async with listening(digest) as front:
        caller = await front.caller()
        caller.send(b"".join(head(len(body)) + body for body in bodies))
        for body in bodies:
            assert (await caller.answer())[2].decode() == hashlib.sha256(body).hexdigest()


async def test_expect_100_continue_works_for_a_long_body() -> None:
    async with listening(digest) as front:
        caller = await front.caller()
        caller.send(head(400_000, b"Expect: 100-continue\r\n"))
        assert await caller.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(b"x" * 400_000 + NEXT_REQUEST)
        assert (await caller.answer())[2].decode() == hashlib.sha256(b"x" * 400_000).hexdigest()
        assert (await caller.answer())[0] == 200


async def test_stalled_long_body_is_a_408() -> None:
    options = HttpLimits(exchange=ExchangeLimits(body_idle_s=0.2))
    async with listening(options=options) as front:
        caller = await front.caller()
        caller.send(head(400_000) + b"x" * 100_000)
        status, head_bytes, _ = await caller.answer()
        assert status == 408
        assert b"connection: close" in head_bytes


async def in_large_reads(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answer with the sizes of the reads."""
    sizes = []
    status = 200
    try:
        while part := await incoming.read(60_000):
            sizes.append(len(part))
    except SlowBodyError:
        status = 408
    outgoing.start(status, [])
    outgoing.finish(repr(sizes).encode())


async def test_read_waits_for_many_pieces() -> None:
    async with listening(in_large_reads) as front:
        caller = await front.caller()
        caller.send(head(90_000))
        for _ in range(9):
            caller.send(b"x" * 10_000)
            await asyncio.sleep(0.01)
        assert (await caller.answer())[2] == b"[60000, 30000]"


@pytest.mark.parametrize("rest", [b"", b"1\r\nx\r\n1\r\nx\r\n0\r\n\r\n"], ids=["declared", "chunked"])
async def test_read_ends_with_a_shorter_body(rest: bytes) -> None:
    async with listening(in_large_reads) as front:
        caller = await front.caller()
        caller.send(head(2) if not rest else b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in rest or b"xx":
            caller.send(bytes([byte]))
            await asyncio.sleep(0.005)
        assert (await caller.answer())[2] == b"[2]"


async def test_each_byte_of_a_large_read_restarts_its_idle_time() -> None:
    options = HttpLimits(exchange=ExchangeLimits(body_idle_s=1.5, body_bytes_per_s=1))
    async with listening(in_large_reads, options) as front:
        caller = await front.caller()
        now_s = asyncio.get_running_loop().time
        first_s = last_s = now_s()
        caller.send(head(400_000))
        while last_s < first_s + 2:
            await asyncio.sleep(0.1)
            last_s = now_s()
            caller.send(b"x")
        assert (await caller.answer())[0] == 408
        assert now_s() > last_s + 1


@pytest.mark.parametrize("handle", [echo, in_large_reads])
async def test_long_body_that_trickles_in_is_a_408(handle: Handle) -> None:
    options = HttpLimits(exchange=ExchangeLimits(body_idle_s=0.3, body_bytes_per_s=1000))
    async with listening(handle, options) as front:
        caller = await front.caller()
        caller.send(head(400_000))
        answer = asyncio.create_task(caller.answer())
        while not answer.done():
            caller.send(b"x")
            await asyncio.wait([answer], timeout=0.02)
        assert (await answer)[0] == 408


async def test_refused_long_body_closes_its_connection() -> None:
    async def refuse(_: Incoming, outgoing: Outgoing) -> None:
        outgoing.start(401, [])
        outgoing.finish(b"no")

    async with listening(refuse) as front:
        caller = await front.caller()
        caller.send(head(400_000) + b"x" * 400_000 + NEXT_REQUEST)
        status, head_bytes, _ = await caller.answer()
        assert status == 401
        assert b"connection: close" in head_bytes
        assert await caller.read_to_end() == b""
