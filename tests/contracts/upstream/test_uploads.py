"""Bodies that still arrive while they are sent: at the upstream's pace, cut where the caller's end fails."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from policy.hosts import EgressRules, Reach
from proxy.edges.upstream.client import HttpUpstream, PoolLimits
from proxy.edges.upstream.egress import Egress
from proxy.errors import UpstreamResetError
from proxy.records.messages import UpstreamCall
from proxy.records.request_fields import RequestFields
from proxy.refusals import MalformedRequestError
from tests import upstream as script
from tests.upstream import Exchange, ScriptedUpstream
from tests.waiting import eventually

BOTH_LOOPS = True
PIECE = b"x" * 100_000
OK = script.head(200, {"content-length": "4"}) + b"fine"


@dataclass
class FakeUpload:
    """`pieces`: what arrives. An event delays the read, an exception is raised."""

    pieces: list[bytes | Exception | asyncio.Event]
    length: int | None = None
    content_type: str = "multipart/form-data"
    received_bytes: int = 0
    reads: int = 0
    cancelled: bool = False
    wait_start: asyncio.Event = field(default_factory=asyncio.Event)

    def rename(self, model: str) -> None:
        """Do nothing: the client does not call this."""

    async def read(self) -> bytes:
        self.reads += 1
        while self.pieces:
            piece = self.pieces.pop(0)
            await asyncio.sleep(0)
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, bytes):
                return piece
            self.wait_start.set()
            try:
                await piece.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        return b""


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        yield server


@pytest.fixture
async def client(upstream: ScriptedUpstream) -> AsyncIterator[HttpUpstream]:
    client = HttpUpstream(Egress(EgressRules(), 5.0), PoolLimits(per_origin=2))
    yield client
    await client.aclose()


def call(upstream: ScriptedUpstream, upload: FakeUpload | None) -> UpstreamCall:
    return UpstreamCall(
        upstream.url, "POST", RequestFields(), b"", time.perf_counter() + 20, 20, Reach.OPERATOR, upload=upload
    )


async def fetch(client: HttpUpstream, call: UpstreamCall) -> tuple[int, bytes]:
    answer = await client.send(call)
    body = b""
    while piece := await answer.read():
        body += piece
    answer.close()
    return answer.status, body


async def read_chunked(exchange: Exchange) -> bytes:
    body = b""
    while size := int((await exchange.reader.readline()).strip(), 16):
        body += await exchange.reader.readexactly(size)
        assert await exchange.reader.readline() == b"\r\n"
    assert await exchange.reader.readline() == b"\r\n"
    return body


async def test_upload_of_known_length_is_sent_as_it_arrives(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    later = asyncio.Event()
    pieces: list[bytes] = []

    async def behave(exchange: Exchange) -> None:
        pieces.append(await exchange.reader.readexactly(2))
        later.set()
        pieces.append(await exchange.reader.readexactly(4))
        await exchange.send(OK)

    upstream.plan(behave)
    exchange = call(upstream, FakeUpload([b"ab", later, b"cd", b"ef"], length=6))
    assert await asyncio.wait_for(fetch(client, exchange), 20) == (200, b"fine")
    assert pieces == [b"ab", b"cdef"]
    assert exchange.has_begun
    assert upstream.received[0].header("content-length") == "6"
    assert upstream.received[0].header("transfer-encoding") is None


async def test_upload_of_unknown_length_is_chunked(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    bodies: list[bytes] = []

    async def behave(exchange: Exchange) -> None:
        bodies.append(await read_chunked(exchange))
        await exchange.send(OK)

    upstream.plan(behave, behave)
    for _ in range(2):
        assert await fetch(client, call(upstream, FakeUpload([b"ab", PIECE]))) == (200, b"fine")
    assert bodies == [b"ab" + PIECE] * 2
    assert upstream.received[0].header("content-length") is None


async def test_slow_upstream_slows_the_upload(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    opened = asyncio.Event()
    at_rest = asyncio.Event()
    upload = FakeUpload([PIECE] * 500, length=500 * len(PIECE))

    async def behave(exchange: Exchange) -> None:
        at_rest.set()
        await opened.wait()
        await exchange.read_body()
        await exchange.send(OK)

    upstream.plan(behave)
    task = asyncio.ensure_future(fetch(client, call(upstream, upload)))
    await at_rest.wait()
    reads = -1
    while reads != upload.reads:  # until it stands still
        reads = upload.reads
        await asyncio.sleep(0.2)
    assert reads < 200, "what is not read is bounded by the sockets' buffers"
    opened.set()
    assert await task == (200, b"fine")
    assert len(upstream.received[0].body) == 500 * len(PIECE)


@pytest.mark.parametrize("length", [None, 300_000])
async def test_wrong_upload_is_cut_and_raises_what_is_wrong(
    upstream: ScriptedUpstream, client: HttpUpstream, length: int | None
) -> None:
    ended = asyncio.Event()
    received: list[bytes] = []

    async def behave(exchange: Exchange) -> None:
        with contextlib.suppress(ConnectionError):
            received.append(await exchange.reader.read(-1))
        ended.set()

    upstream.plan(behave)
    upload = FakeUpload([PIECE, PIECE, MalformedRequestError("twice"), PIECE], length)
    with pytest.raises(MalformedRequestError, match="twice"):
        await client.send(call(upstream, upload))
    await asyncio.wait_for(ended.wait(), 20)
    assert not any(body.endswith(b"0\r\n\r\n") or len(body) >= 300_000 for body in received)
    await upstream.until(lambda: not upstream.open_connections)


async def test_upload_that_fails_after_the_answers_head_fails_the_answer(
    upstream: ScriptedUpstream, client: HttpUpstream
) -> None:
    wrong = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.send(script.head(200, {"content-length": "9"}) + b"some")
        await exchange.client_closed()

    upstream.plan(behave)
    answer = await client.send(call(upstream, FakeUpload([b"a", wrong, MalformedRequestError("twice")], 9)))
    assert await answer.read() == b"some"
    wrong.set()
    with pytest.raises(MalformedRequestError, match="twice"):
        await answer.read()


async def test_early_refusal_stops_the_upload(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upload = FakeUpload([b"ab", asyncio.Event()], length=10**9)

    async def behave(exchange: Exchange) -> None:
        await upload.wait_start.wait()
        await exchange.send(script.head(413, {"content-length": "2"}) + b"no")
        await exchange.client_closed()

    upstream.plan(behave)
    assert await asyncio.wait_for(fetch(client, call(upstream, upload)), 20) == (413, b"no")
    await upstream.until(lambda: not upstream.open_connections)
    assert upload.cancelled


async def test_upload_stops_at_the_head_of_a_refusal(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upload = FakeUpload([b"ab", asyncio.Event()], length=10**9)
    stopped = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await upload.wait_start.wait()
        await exchange.send(script.head(413, {"content-length": "2"}) + b"n")
        await stopped.wait()
        await exchange.send(b"o")
        await exchange.client_closed()

    upstream.plan(behave)
    answer = await client.send(call(upstream, upload))
    await asyncio.sleep(0)
    assert upload.cancelled
    stopped.set()
    assert await answer.read() == b"n"
    assert await answer.read() == b"o"


async def test_early_answer_lets_the_upload_go_on(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    rest = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.send(script.head(200, {"transfer-encoding": "chunked"}) + script.chunked(b"one", end=False))
        await exchange.read_body()
        await exchange.send(script.chunked(b"two"))

    upstream.plan(behave)
    answer = await client.send(call(upstream, FakeUpload([b"ab", rest, b"cd"], length=4)))
    assert await answer.read() == b"one"
    rest.set()
    assert await answer.read() == b"two"
    assert upstream.received[0].body == b"abcd"


async def test_whole_answer_before_the_uploads_end_closes_the_connection(
    upstream: ScriptedUpstream, client: HttpUpstream
) -> None:
    upload = FakeUpload([b"ab", asyncio.Event()], length=4)

    async def behave(exchange: Exchange) -> None:
        await upload.wait_start.wait()
        await exchange.send(OK)
        await exchange.client_closed()

    upstream.plan(behave)
    assert await fetch(client, call(upstream, upload)) == (200, b"fine")
    await upstream.until(lambda: not upstream.open_connections)
    assert upload.cancelled


async def test_cancelled_call_stops_its_upload(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upload = FakeUpload([b"ab", asyncio.Event()], length=4)
    task = asyncio.ensure_future(client.send(call(upstream, upload)))
    await upload.wait_start.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await upstream.until(lambda: bool(upstream.received) and not upstream.open_connections)
    assert upload.cancelled


async def test_lost_connection_stops_the_upload(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upload = FakeUpload([b"ab", asyncio.Event()], length=4)

    async def behave(exchange: Exchange) -> None:
        await upload.wait_start.wait()
        exchange.reset()

    upstream.plan(behave)
    with pytest.raises(UpstreamResetError):
        await client.send(call(upstream, upload))
    await eventually(lambda: upload.cancelled)


async def test_upload_replaces_a_free_connection_by_a_new_one(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    upstream.default = script.answer(200, b"fine")
    for connection_count, upload in ((1, None), (2, FakeUpload([b"ab"], 2)), (2, None), (3, FakeUpload([b"ab"], 2))):
        assert await fetch(client, call(upstream, upload)) == (200, b"fine")
        assert upstream.connections == connection_count
    await upstream.until(lambda: upstream.open_connections == 1)


async def test_upload_above_the_cap_waits_for_a_connection(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    opened = asyncio.Event()
    upstream.default = script.held(opened, after=OK)
    calls = [asyncio.ensure_future(fetch(client, call(upstream, FakeUpload([b"ab"], 2)))) for _ in range(3)]
    await upstream.until(lambda: len(upstream.received) == 2)
    opened.set()
    assert await asyncio.gather(*calls) == [(200, b"fine")] * 3
    assert upstream.connections == 2
