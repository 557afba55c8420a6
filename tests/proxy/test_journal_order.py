"""What waits for the journal: nothing of a request leaves before its open is written, no last byte before its close."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import pytest

from policy.limits.limit import Limit, LimitType, Unit
from proxy.edges.journal.waiting_record import WaitingOpen
from proxy.exchange import JournalUnavailableError
from tests.fakes.journal import FakeJournal
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import SSE, answer
from tests.fakes.wire import FakeOutgoing, asking
from tests.waiting import eventually

ANSWER = b'{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}'
FRAMES = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"


@dataclass
class HeldJournal(FakeJournal):
    """Its records are written when a test says so."""

    opening: list[WaitingOpen] = field(default_factory=list)
    closing: list[asyncio.Future[None]] = field(default_factory=list)

    def open(self, event_key: str, record: bytes) -> WaitingOpen:
        super().open(event_key, record)
        self.opening.append(WaitingOpen(event_key, record))
        return self.opening[-1]

    def close(self, event_key: str, record: bytes) -> Awaitable[None]:
        super().close(event_key, record)
        self.closing.append(asyncio.get_running_loop().create_future())
        return self.closing[-1]


@pytest.fixture
def journal() -> HeldJournal:
    return HeldJournal()


@pytest.fixture
def rig(journal: HeldJournal) -> PathRig:
    made = PathRig(journal=journal)
    made.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 10))
    return made


def requests_used(rig: PathRig) -> int:
    [counts] = [counts for book in rig.counters.books.values() for counts in book.groups.values()]
    return counts.day_requests


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
    await asyncio.sleep(0.01)
    assert b"[DONE]" not in outgoing.body if streaming else not outgoing.started
    assert not serving.done()
    journal.closing[0].set_result(None)
    await serving
    assert outgoing.body.endswith(b"[DONE]\n\n") if streaming else outgoing.status == 200


async def test_call_whose_open_is_refused_late_is_503_and_takes_nothing(rig: PathRig, journal: HeldJournal) -> None:
    outgoing = FakeOutgoing()
    serving = asyncio.create_task(rig.pipeline.handle(asking(), outgoing))
    await eventually(lambda: journal.opening)
    journal.opening[0].tell(JournalUnavailableError("the disk is full"))
    await eventually(lambda: journal.closing)
    journal.closing[0].set_result(None)
    await serving
    assert outgoing.status == 503
    assert not rig.upstream.calls
    assert requests_used(rig) == 0
    assert journal.closed[0].numbers == ()


async def test_wait_for_the_journal_is_not_the_upstreams(rig: PathRig, journal: HeldJournal) -> None:
    rig.upstream.will(answer(ANSWER))
    serving = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    await eventually(lambda: journal.opening)
    await asyncio.sleep(0.05)
    journal.opening[0].tell()
    await eventually(lambda: journal.closing)
    journal.closing[0].set_result(None)
    await serving
    [report] = rig.meters.calls
    assert report.upstream_s < 0.05 <= report.ours_s


@pytest.mark.parametrize("waits_for", ["opening", "closing"])
async def test_caller_that_leaves_while_the_journal_writes_is_closed_once(
    rig: PathRig, journal: HeldJournal, waits_for: str
) -> None:
    rig.upstream.will(answer(ANSWER))
    serving = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    await eventually(lambda: journal.opening)
    if waits_for == "closing":
        journal.opening[0].tell()
        await eventually(lambda: journal.closing)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    rig.check_settled()
    assert len(journal.closed) == 1
    assert requests_used(rig) == (1 if waits_for == "closing" else 0)
    assert journal.closed[0].tokens.total == (5 if waits_for == "closing" else 0)
