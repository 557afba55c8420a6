"""A request that waits for its open record: nothing of it leaves before, and the record's writing sends it."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from policy.hosts import EgressRules, Reach
from proxy.accounting.journaled_call import JournaledCall
from proxy.edges.upstream.answer import HttpAnswer
from proxy.edges.upstream.client import HttpUpstream, PoolLimits
from proxy.edges.upstream.egress import Egress
from proxy.errors import JournalUnavailableError
from proxy.records.messages import UpstreamCall
from proxy.records.request_fields import RequestFields
from tests import upstream as script
from tests.contracts.upstream.test_uploads import FakeUpload
from tests.fakes.directory import SLUG, platform
from tests.fakes.path import PathRig
from tests.fakes.wire import FakeOutgoing, asking
from tests.proxy.test_journal_order import HeldJournal
from tests.upstream import Exchange, ScriptedUpstream
from tests.waiting import eventually

BOTH_LOOPS = True
OK = script.answer(200, b"fine")
REFUSED = JournalUnavailableError("the disk is full")


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        server.default = OK
        yield server


@pytest.fixture
async def client(upstream: ScriptedUpstream) -> AsyncIterator[HttpUpstream]:
    """A client with a free connection."""
    client = HttpUpstream(Egress(EgressRules(), 5.0), PoolLimits(per_origin=2))
    assert await read(await client.send(call(upstream, None))) == b"fine"
    yield client
    await client.aclose()


def call(upstream: ScriptedUpstream, record: JournaledCall | None, upload: FakeUpload | None = None) -> UpstreamCall:
    deadline = time.perf_counter() + 20
    return UpstreamCall(
        upstream.url, "POST", RequestFields(), b"{}", deadline, 20, Reach.OPERATOR, upload, record, time.perf_counter()
    )


async def read(answer: HttpAnswer) -> bytes:
    body = b""
    while piece := await answer.read():
        body += piece
    return body


async def sending(client: HttpUpstream, upstream_call: UpstreamCall) -> asyncio.Task[HttpAnswer]:
    """The call, once it can only wait for its record."""
    task = asyncio.create_task(client.send(upstream_call))
    await asyncio.sleep(0.05)
    assert not task.done()
    assert not upstream_call.has_begun
    return task


async def test_request_leaves_when_its_record_is_written(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    record = JournaledCall()
    upstream_call = call(upstream, record)
    task = await sending(client, upstream_call)
    assert len(upstream.received) == 1
    now = time.perf_counter()
    record.tell()
    assert upstream_call.has_begun  # with the record, not a turn of the loop later
    assert upstream_call.waiting_since >= now
    assert await read(await task) == b"fine"
    assert (upstream.connections, len(upstream.received)) == (1, 2)


async def test_written_record_delays_nothing(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    record = JournaledCall()
    record.tell()
    upstream_call = call(upstream, record)
    began = upstream_call.waiting_since
    assert await read(await client.send(upstream_call)) == b"fine"
    assert upstream_call.waiting_since == began


async def test_refused_record_sends_nothing_and_frees_the_connection(
    upstream: ScriptedUpstream, client: HttpUpstream
) -> None:
    record = JournaledCall()
    upstream_call = call(upstream, record)
    task = await sending(client, upstream_call)
    record.tell(REFUSED)
    with pytest.raises(JournalUnavailableError):
        await task
    assert not upstream_call.has_begun
    assert await read(await client.send(call(upstream, None))) == b"fine"
    assert (upstream.connections, len(upstream.received)) == (1, 2)


async def test_record_that_was_refused_before_sends_nothing(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    record = JournaledCall()
    record.tell(REFUSED)
    with pytest.raises(JournalUnavailableError):
        await client.send(call(upstream, record))
    assert await read(await client.send(call(upstream, None))) == b"fine"
    assert (upstream.connections, len(upstream.received)) == (1, 2)


async def test_caller_that_leaves_sends_nothing_and_frees_the_connection(
    upstream: ScriptedUpstream, client: HttpUpstream
) -> None:
    record = JournaledCall()
    upstream_call = call(upstream, record)
    task = await sending(client, upstream_call)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other = await client.send(call(upstream, None))  # on the same connection
    record.tell()
    assert await read(other) == b"fine"
    assert not upstream_call.has_begun
    assert (upstream.connections, len(upstream.received)) == (1, 2)


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_connection_that_is_lost_meanwhile_is_replaced(upstream: ScriptedUpstream, then: str) -> None:
    close = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.send(script.head(200, {"content-length": "0"}))
        await close.wait()
        exchange.reset() if then == "reset" else exchange.close()

    upstream.plan(behave, OK)
    client = HttpUpstream(Egress(EgressRules(), 5.0))
    await client.send(call(upstream, None))
    record = JournaledCall()
    upstream_call = call(upstream, record)
    task = await sending(client, upstream_call)
    close.set()
    await upstream.until(lambda: upstream.open_connections == 0)
    await asyncio.sleep(0.01)  # the end has to pass the kernel, and no event shows when it has
    assert not task.done()
    record.tell()
    assert await read(await task) == b"fine"
    assert (upstream.connections, len(upstream.received)) == (2, 2)
    await client.aclose()


async def test_upload_leaves_when_its_record_is_written(upstream: ScriptedUpstream, client: HttpUpstream) -> None:
    record = JournaledCall()
    upload = FakeUpload([b"some", b"more"], length=8)
    task = await sending(client, call(upstream, record, upload))
    assert not upload.reads
    record.tell()
    assert await read(await task) == b"fine"
    assert upstream.received[-1].body == b"somemore"


@pytest.mark.parametrize("is_refused", [False, True])
async def test_second_replica_waits_for_the_same_record(
    upstream: ScriptedUpstream, unused_tcp_port: int, is_refused: bool
) -> None:
    """The first ones cannot be connected to, and the journal is slower than that."""
    journal = HeldJournal()
    rig = PathRig(journal=journal)
    rig.directory.add_slug(SLUG, platform())
    rig.directory.deploy("ACTIVE", f"http://127.0.0.1:{unused_tcp_port}", upstream.url)
    client = HttpUpstream(Egress(EgressRules.parse("127.0.0.0/8"), 5.0))
    rig.over(client)
    outgoing = FakeOutgoing()
    serving = asyncio.create_task(rig.pipeline.handle(asking(), outgoing))
    await eventually(lambda: upstream.connections == 1)
    await asyncio.sleep(0.05)
    assert not upstream.received
    [opened] = journal.opening
    opened.tell(REFUSED if is_refused else None)
    if not is_refused:
        await eventually(lambda: journal.closing)
        journal.closing[0].tell()
    await serving
    assert outgoing.status == (503 if is_refused else 200)
    assert len(upstream.received) == (0 if is_refused else 1)
    await client.aclose()


async def test_request_that_cannot_be_sent_fails_in_its_own_task(
    upstream: ScriptedUpstream, client: HttpUpstream
) -> None:
    """The journal goes on to the other calls."""
    record = JournaledCall()
    upstream_call = call(upstream, record)
    task = await sending(client, upstream_call)
    upstream_call.body = None  # type: ignore[assignment]
    record.tell()
    with pytest.raises(TypeError):
        await task
    assert len(upstream.received) == 1
    assert await read(await client.send(call(upstream, None))) == b"fine"
