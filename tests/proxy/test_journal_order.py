"""A request leaves only after its open is written, and the last byte of an answer only after its close."""

import asyncio
from dataclasses import dataclass, field
from time import perf_counter

import pytest

from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from proxy.accounting.journaled_call import JournaledCall
from proxy.errors import JournalUnavailableError, UpstreamResetError
from tests.fakes.journal import FakeJournal
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import SSE, answer
from tests.fakes.wire import FakeOutgoing, asking
from tests.waiting import eventually

ANSWER = b'{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}'
FRAMES = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"


@dataclass
class HeldJournal(FakeJournal):
    """A journal that writes its records when a test says so."""

    opening: list[JournaledCall] = field(default_factory=list)
    closing: list[JournaledCall] = field(default_factory=list)

    def open(self, record: bytes) -> JournaledCall:
        call = super().open(record)
        call.is_written = False
        self.opening.append(call)
        return call

    def close(self, call: JournaledCall, record: bytes) -> JournaledCall | None:
        super().close(call, record)
        if call.refused is not None:
            return None
        call.is_written = False
        self.closing.append(call)
        return call


@pytest.fixture
def journal() -> HeldJournal:
    return HeldJournal()


@pytest.fixture
def rig(journal: HeldJournal) -> PathRig:
    path_rig = PathRig(journal=journal)
    path_rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 10))
    return path_rig


def requests_used(rig: PathRig) -> int:
    [counts] = [counts for book in rig.counters.books.values() for counts in book.groups.values()]
    return counts.count((LimitType.REQUEST, Unit.DAY))


@pytest.mark.parametrize("streaming", [False, True])
async def test_request_waits_for_its_open_and_last_bytes_for_the_close(
    rig: PathRig, journal: HeldJournal, streaming: bool
) -> None:
    rig.upstream.will(answer(headers=SSE, pieces=FRAMES) if streaming else answer(ANSWER))
    outgoing = FakeOutgoing()
    serving = asyncio.create_task(rig.pipeline.handle(asking(stream=streaming), outgoing))
    await eventually(lambda: journal.opening)
    await asyncio.sleep(0.01)
    assert not rig.upstream.calls
    journal.opening[0].tell()
    await eventually(lambda: journal.closing)
    await serving  # the write of the record does the rest
    assert b"[DONE]" not in outgoing.body if streaming else not outgoing.has_started
    assert not rig.meters.calls
    assert rig.pipeline._capacity.in_flight == 1
    journal.closing[0].tell()
    assert outgoing.body.endswith(b"[DONE]\n\n") if streaming else outgoing.status == 200
    [report] = rig.meters.calls
    assert (report.status, report.response_bytes) == (200, len(outgoing.body))
    assert rig.pipeline._capacity.in_flight == 0


async def test_call_whose_open_is_refused_late_is_503_and_takes_nothing(rig: PathRig, journal: HeldJournal) -> None:
    outgoing = FakeOutgoing()
    serving = asyncio.create_task(rig.pipeline.handle(asking(), outgoing))
    await eventually(lambda: journal.opening)
    journal.opening[0].tell(JournalUnavailableError("the disk is full"))
    await serving
    assert outgoing.status == 503
    assert not rig.upstream.calls
    assert requests_used(rig) == 0
    assert journal.closed[0].numbers == ()


async def test_wait_for_the_journal_is_not_the_upstreams(rig: PathRig, journal: HeldJournal) -> None:
    rig.upstream.will(answer(ANSWER))
    serving = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    await eventually(lambda: journal.opening)
    opening_s = perf_counter()
    await asyncio.sleep(0.05)
    waited_s = perf_counter() - opening_s
    journal.opening[0].tell()
    await eventually(lambda: journal.closing)
    journal.closing[0].tell()
    await serving
    [report] = rig.meters.calls
    assert report.ours_s >= waited_s
    assert report.upstream_s <= report.duration_s - waited_s


async def call_that_waits_for_its_end(
    rig: PathRig, journal: HeldJournal, outgoing: FakeOutgoing, streaming: bool = False, body: bytes = ANSWER
) -> asyncio.Task[None]:
    """The task of a call whose close record is the last thing that it waits for, besides the caller."""
    rig.upstream.will(answer(headers=SSE, pieces=FRAMES) if streaming else answer(body))
    serving = asyncio.create_task(rig.pipeline.handle(asking(stream=streaming), outgoing))
    await eventually(lambda: journal.opening)
    journal.opening[0].tell()
    await eventually(lambda: journal.closing)
    await asyncio.sleep(0.01)
    return serving


async def test_caller_that_leaves_before_the_open_is_written_is_closed_once(rig: PathRig, journal: HeldJournal) -> None:
    serving = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    await eventually(lambda: journal.opening)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    rig.check_settled()
    [closed] = journal.closed
    assert (closed.tokens.total, requests_used(rig)) == (0, 0)


@pytest.mark.parametrize("streaming", [False, True])
async def test_caller_that_leaves_before_the_close_is_written_is_billed_and_logged_as_gone(
    rig: PathRig, journal: HeldJournal, streaming: bool
) -> None:
    outgoing = FakeOutgoing()
    await (await call_that_waits_for_its_end(rig, journal, outgoing, streaming))
    byte_count = outgoing.sent_bytes
    outgoing.is_gone = True
    journal.closing[0].tell()
    rig.check_settled()
    [closed] = journal.closed
    [report] = rig.meters.calls
    assert (closed.status, report.status, report.response_bytes) == (200, 499, byte_count)
    assert requests_used(rig) == 1
    assert closed.tokens.total == (5 if not streaming else 2)
    assert rig.pipeline._capacity.in_flight == 0


@pytest.mark.parametrize("streaming", [False, True])
async def test_refused_close_is_a_502_or_cuts_the_stream(
    rig: PathRig, journal: HeldJournal, streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    outgoing = FakeOutgoing()
    await (await call_that_waits_for_its_end(rig, journal, outgoing, streaming))
    journal.closing[0].tell(OSError("No space left on device"))
    assert outgoing.aborted if streaming else outgoing.status == 502
    assert outgoing.finished is not streaming
    assert b"[DONE]" not in outgoing.body
    [report] = rig.meters.calls
    assert report.status == 502
    assert len(journal.closed) == 1
    assert requests_used(rig) == 1
    assert rig.pipeline._capacity.in_flight == 0
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("is_refused", [False, True])
async def test_task_waits_for_the_close_if_the_caller_is_slow(
    rig: PathRig, journal: HeldJournal, is_refused: bool
) -> None:
    outgoing = FakeOutgoing()
    outgoing.room_left.clear()
    serving = await call_that_waits_for_its_end(rig, journal, outgoing)
    assert not outgoing.has_started
    journal.closing[0].tell(OSError("No space left on device") if is_refused else None)
    await outgoing.wait_start.wait()
    assert outgoing.status == (502 if is_refused else 200)
    assert not rig.meters.calls
    outgoing.room_left.set()
    await serving
    assert [report.status for report in rig.meters.calls] == [502 if is_refused else 200]


@pytest.mark.parametrize("is_noticed", [False, True])
async def test_slow_caller_that_leaves_is_closed_once(rig: PathRig, journal: HeldJournal, is_noticed: bool) -> None:
    outgoing = FakeOutgoing()
    outgoing.room_left.clear()
    serving = await call_that_waits_for_its_end(rig, journal, outgoing)
    if is_noticed:
        journal.closing[0].tell()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    if not is_noticed:
        journal.closing[0].tell()
    rig.check_settled()
    assert not outgoing.has_started
    assert [report.status for report in rig.meters.calls] == [499]


async def test_error_response_waits_for_the_close(rig: PathRig, journal: HeldJournal) -> None:
    rig.upstream.will(UpstreamResetError("reset"))
    outgoing = FakeOutgoing()
    serving = asyncio.create_task(rig.pipeline.handle(asking(), outgoing))
    await eventually(lambda: journal.opening)
    journal.opening[0].tell()
    await eventually(lambda: journal.closing)
    await asyncio.sleep(0.01)
    assert not outgoing.has_started
    journal.closing[0].tell()
    await serving
    assert outgoing.status == journal.closed[0].status == 502
