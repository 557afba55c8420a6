"""An answer whose last bytes wait for the call's close record: the journal's write sends them, after the handler ended.

Only then may the connection serve its next request, close, or count as idle.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from proxy.accounting.journaled_call import JournaledCall
from proxy.edges.http.http_exchange import MAX_LATER_BYTES
from proxy.edges.http.http_limits import ExchangeLimits, HttpLimits
from proxy.errors import CallerGoneError
from proxy.records.messages import Incoming, Outgoing
from tests.fakes.front import Caller, Front, listening
from tests.waiting import eventually

BOTH_LOOPS = True
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
REQUEST = HEAD + b"Content-Length: 2\r\n\r\nhi"
LIMITS = HttpLimits(
    drain_handshake_s=0.0, drain_idle_s=0.05, drain_linger_s=0.05, exchange=ExchangeLimits(body_idle_s=5.0)
)
REFUSED = OSError("No space left on device")


@dataclass
class JournalingHandler:
    """Answers with the request's target, as the pipeline does: the last bytes leave when a test has told the record."""

    records: list[JournaledCall] = field(default_factory=list)
    begun: int = 0
    ended: list[str] = field(default_factory=list)
    streams: bool = False
    reads: bool = True
    first: bytes = b"first "
    final: bytes = b"whole"
    bug: Exception | None = None
    waited: list[bool] = field(default_factory=list)

    async def __call__(self, incoming: Incoming, outgoing: Outgoing) -> None:
        self.begun += 1
        while self.reads and await incoming.read():
            pass
        if self.streams:
            outgoing.start(200, [])
            outgoing.write(self.first)
        record = JournaledCall()
        self.records.append(record)

        def finish(error: Exception | None) -> None:
            if self.bug is not None:
                raise self.bug
            try:
                if error is not None and outgoing.has_started:
                    outgoing.abort()
                elif outgoing.has_started:
                    outgoing.finish(self.final)
                else:
                    outgoing.start(500 if error is not None else 200, [], whole=self.final)
                self.ended.append(f"{incoming.request_target} {outgoing.sent_bytes}")
            except CallerGoneError:
                self.ended.append(f"{incoming.request_target} gone")

        self.waited.append(not outgoing.finish_later(record, finish, len(self.final)))

    async def called(self, count: int = 1) -> None:
        """Wait until that many calls can only wait for their records."""
        await eventually(lambda: len(self.records) == count)
        await asyncio.sleep(0.02)


@pytest.fixture
def handler() -> JournalingHandler:
    return JournalingHandler()


@pytest.fixture
async def front(handler: JournalingHandler) -> AsyncIterator[Front]:
    async with listening(handler, LIMITS) as front:
        yield front


async def asking(front: Front, request: bytes = REQUEST) -> Caller:
    caller = await front.caller()
    caller.send(request)
    return caller


async def nothing_came(caller: Caller) -> bool:
    try:
        async with asyncio.timeout(0.05):
            return not await caller.reader.read(1)
    except TimeoutError:
        return True


async def test_whole_answer_leaves_with_its_record(front: Front, handler: JournalingHandler) -> None:
    caller = await asking(front)
    for number in range(3):  # the third one's head was seen before
        await handler.called(number + 1)
        assert await nothing_came(caller)
        handler.records[number].tell()
        assert (await caller.answer())[::2] == (200, b"whole")
        caller.send(REQUEST)
    assert handler.ended == ["/a 5"] * 3


async def test_end_of_a_stream_leaves_with_its_record(front: Front, handler: JournalingHandler) -> None:
    handler.streams = True
    caller = await asking(front)
    for number in range(3):
        await caller.until(b"first \r\n")
        await handler.called(number + 1)
        assert await nothing_came(caller)
        handler.records[number].tell()
        assert await caller.until(b"0\r\n\r\n") == b"5\r\nwhole\r\n0\r\n\r\n"
        caller.send(REQUEST)


@pytest.mark.parametrize("more", [1, 3, 30])  # thirty are more than may wait: reading pauses
async def test_pipelined_request_waits_for_the_answer_before(
    front: Front, handler: JournalingHandler, more: int
) -> None:
    caller = await asking(front)
    await handler.called()
    for number in range(more):
        caller.send(REQUEST.replace(b"/a", b"/%d" % number))
    await asyncio.sleep(0.05)
    assert handler.begun == 1
    for number in range(more + 1):
        await handler.called(number + 1)
        assert handler.begun == number + 1
        handler.records[number].tell()
        assert (await caller.answer())[0] == 200
    assert handler.ended == ["/a 5", *(f"/{number} 5" for number in range(more))]
    caller.send(REQUEST)
    await handler.called(more + 2)
    handler.records[-1].tell()
    assert (await caller.answer())[0] == 200


async def test_request_that_is_cut_while_the_answer_waits_is_read_to_its_end(
    front: Front, handler: JournalingHandler
) -> None:
    caller = await asking(front)
    await handler.called()
    caller.send(REQUEST[:20])
    await asyncio.sleep(0.02)
    handler.records[0].tell()
    await caller.answer()
    caller.send(REQUEST[20:])
    await handler.called(2)
    handler.records[1].tell()
    assert (await caller.answer())[0] == 200


@pytest.mark.parametrize("how", ["disconnect", "reset"])
@pytest.mark.parametrize("streams", [False, True])
async def test_caller_that_leaves_meanwhile_gets_no_last_bytes(
    front: Front, handler: JournalingHandler, how: str, streams: bool
) -> None:
    handler.streams = streams
    caller = await asking(front, REQUEST + REQUEST)
    await handler.called()
    getattr(caller, how)()
    await eventually(lambda: not front.server.connections)
    await eventually(lambda: not front.server._tasks, "the connection's task ends")
    assert handler.ended == []
    handler.records[0].tell()
    assert handler.ended == ["/a gone"]
    await asyncio.sleep(0.02)
    assert handler.begun == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_drain_waits_for_the_last_bytes(front: Front, handler: JournalingHandler, streams: bool) -> None:
    handler.streams = streams
    caller = await asking(front)
    await handler.called()
    draining = asyncio.create_task(front.server.drain(10))
    await asyncio.sleep(0.3)
    assert not draining.done()
    [connection] = front.server.connections
    assert not connection.is_idle
    handler.records[0].tell()
    raw = await caller.read_to_end()
    assert raw.endswith(
        b"5\r\nwhole\r\n0\r\n\r\n" if streams else b"connection: close\r\ncontent-length: 5\r\n\r\nwhole"
    )
    await draining
    assert not front.server.connections


async def test_drain_that_gives_up_ends_the_call(front: Front, handler: JournalingHandler) -> None:
    caller = await asking(front)
    await handler.called()
    await front.server.drain(0.1)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await caller.answer()
    handler.records[0].tell()
    assert handler.ended == ["/a gone"]


@pytest.mark.parametrize(
    "request_", [HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"POST /a HTTP/1.0\r\nHost: x\r\n\r\n"]
)
async def test_connection_that_is_not_kept_closes_after_the_last_bytes(
    front: Front, handler: JournalingHandler, request_: bytes
) -> None:
    caller = await asking(front, request_)
    await handler.called()
    handler.records[0].tell()
    assert (await caller.read_to_end()).endswith(b"\r\n\r\nwhole")
    await eventually(lambda: not front.server._tasks)


async def test_unread_body_closes_after_the_last_bytes(front: Front, handler: JournalingHandler) -> None:
    handler.reads = False
    caller = await asking(front, HEAD + b"Content-Length: 4\r\n\r\nhi")
    await handler.called()
    handler.records[0].tell()
    raw = await caller.read_to_end()
    assert b"connection: close" in raw
    assert raw.endswith(b"whole")


async def test_refused_record_is_told_to_the_call(front: Front, handler: JournalingHandler) -> None:
    caller = await asking(front)
    await handler.called()
    handler.records[0].tell(REFUSED)
    assert (await caller.answer())[0] == 500
    handler.streams = True
    caller.send(REQUEST)
    await handler.called(2)
    handler.records[1].tell(REFUSED)
    assert b"0\r\n\r\n" not in await caller.read_to_end()


async def test_one_calls_bug_is_logged_and_closes_only_its_connection(
    front: Front, handler: JournalingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    handler.bug = RuntimeError("a bug")
    caller = await asking(front)
    await handler.called()
    with caplog.at_level(logging.ERROR):
        handler.records[0].tell()  # the journal goes on to the other calls
    assert "Request failed outside the pipeline" in caplog.text
    assert await caller.read_to_end() == b""
    handler.bug = None
    other = await asking(front)
    await handler.called(2)
    handler.records[1].tell()
    assert (await other.answer())[0] == 200


async def test_task_waits_for_a_long_end_and_a_slow_caller(front: Front, handler: JournalingHandler) -> None:
    handler.final = bytes(MAX_LATER_BYTES + 1)
    await asking(front)
    await handler.called()
    handler.final = b"end"
    handler.streams = True
    handler.first = bytes(8 << 20)
    slow = await front.caller(receive_buffer=4096)
    slow.send(REQUEST)
    await handler.called(2)
    assert handler.waited == [True, True]
