"""Calls without an accepted usage report bill an estimate of the delivered text, never the expected output.

Calls go over the whole path, on in-memory parts.
"""

import asyncio
import json
import logging
from typing import Any

import pytest

from policy.billing import Tokens
from proxy import progress_clock
from proxy.errors import UpstreamCutError, UpstreamTimeoutError
from proxy.stages import settle
from proxy.stages.admit import BYTES_PER_TOKEN
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import SSE, FakeAnswer, answer
from tests.fakes.wire import FakeOutgoing, asking
from tests.waiting import PATIENCE_S

TEN_WORDS = "one two three four five six seven eight nine ten "
CAP = 32_000


@pytest.fixture
def rig() -> PathRig:
    return PathRig()


def chunk(text: str, **more: Any) -> bytes:
    body = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage(figures: str) -> bytes:
    return b'data: {"id":"c","model":"m","choices":[],"usage":%b}\n\n' % figures.encode()


def streamed(*pieces: Any) -> FakeAnswer:
    return answer(headers=SSE, pieces=pieces)


def reported(output: int) -> bytes:
    return json.dumps(
        {"model": "m", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": output}}
    ).encode()


async def billed_after_disconnect(rig: PathRig, *pieces: bytes) -> Tokens:
    """Return the tokens that are billed to a caller that disconnects after these pieces."""
    upstream = streamed(*pieces, asyncio.Event())
    rig.upstream.will(upstream)
    call = asyncio.create_task(rig.pipeline.handle(asking(stream=True, max_tokens=CAP), FakeOutgoing()))
    await asyncio.wait_for(upstream.wait_start.wait(), PATIENCE_S)
    call.cancel()
    await asyncio.wait([call])
    return rig.journal.closed[-1].tokens


async def test_long_answer_is_billed_by_its_text_not_by_the_mean(rig: PathRig) -> None:
    """The mean output is 1 by then; it serves only reservations."""
    for _ in range(20):
        rig.upstream.will(answer(reported(1)))
        await rig.serve(asking())
    billed = await billed_after_disconnect(rig, *[chunk(TEN_WORDS)] * 500)
    assert 0.6 <= billed.output / 5000 <= 1.7


async def test_first_words_of_a_new_group_do_not_cost_the_cap(rig: PathRig) -> None:
    assert await billed_after_disconnect(rig, chunk("Hello"), chunk(" there")) == Tokens(input=1, output=2)


@pytest.mark.parametrize("end", [UpstreamCutError(), UpstreamTimeoutError()])
async def test_stream_cut_by_upstream_bills_the_delivered_text(rig: PathRig, end: Exception) -> None:
    rig.upstream.will(streamed(*[chunk(TEN_WORDS)] * 20, end))
    await rig.serve(asking(stream=True, max_tokens=CAP))
    assert 0.6 <= rig.journal.closed[0].tokens.output / 200 <= 1.7
    assert rig.meters.unreported == ["missing"]


@pytest.mark.parametrize(
    "figures",
    [
        '{"prompt_tokens": 3, "completion_tokens": 28000000000000}',
        '{"prompt_tokens": 3, "completion_tokens": 1e3}',
        '{"prompt_tokens": 3, "completion_tokens": -100}',
        '{"prompt_tokens": 3, "completion_tokens": 9007199254740992}',
        '{"prompt_tokens": 3, "completion_tokens": "12"}',
        '{"prompt_tokens": 3, "completion_tokens": true}',
        '{"prompt_tokens": 3}',
        '{"completion_tokens": 3}',
        '{"prompt_tokens": -3, "completion_tokens": 3}',
        "[1]",
        '"many"',
    ],
)
async def test_rejected_usage_report_is_estimated_and_not_in_the_mean(
    rig: PathRig, figures: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(16):
        rig.upstream.will(answer(reported(7)))
        await rig.serve(asking())
    rig.upstream.will(streamed(chunk("Hello there"), usage(figures), b"data: [DONE]\n\n"))
    await rig.serve(asking(stream=True, stream_options={"include_usage": True}))
    assert rig.journal.closed[-1].tokens == Tokens(input=1, output=2)
    assert rig.meters.unreported == ["rejected"]
    (line,) = (record.getMessage() for record in caplog.records if "Usage report rejected" in record.getMessage())
    assert "TOLLGATE_MAX_REPORTED_TOKENS" in line
    rig.upstream.will(answer(reported(7)))
    request = asking()
    await rig.serve(request)
    assert request.declared_bytes is not None
    assert rig.journal.opened[-1].estimate.expected == -(-request.declared_bytes // BYTES_PER_TOKEN) + 7


async def test_rejected_usage_reports_are_logged_at_most_once_per_interval(
    rig: PathRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    for seconds in (3600.0, 0.0):
        monkeypatch.setattr(settle, "LOG_INTERVAL_S", seconds)
        for _ in range(50):
            rig.upstream.will(answer(reported(-1)))
            await rig.serve(asking())
        if seconds:
            assert len(caplog.records) == 1
    assert rig.meters.unreported == ["rejected"] * 100


async def test_largest_accepted_usage_is_a_setting(rig: PathRig) -> None:
    rig.upstream.will(answer(reported(4_000_000)), answer(reported(4_000_001)))
    await rig.serve(asking())
    await rig.serve(asking())
    assert [closed.tokens.output for closed in rig.journal.closed] == [4_000_000, 0]


async def test_progress_of_a_stream_is_journaled_at_intervals(rig: PathRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is journaled at the first bytes, and after each interval in which more arrived."""
    monkeypatch.setattr(progress_clock, "PROGRESS_INTERVAL_S", 0.01)
    pause = asyncio.Event()
    end = asyncio.Event()
    rig.upstream.will(streamed(chunk(TEN_WORDS), pause, chunk(TEN_WORDS * 2), end, b"data: [DONE]\n\n"))
    call = asyncio.create_task(rig.serve(asking(stream=True)))
    progressed = rig.journal.progressed
    async with asyncio.timeout(PATIENCE_S):
        while len(progressed) < 1:
            await asyncio.sleep(0.001)
        pause.set()
        while len(progressed) < 2:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)  # several intervals without new text write nothing
    end.set()
    await call
    assert rig.journal.entries == ["open", "answered", "progress", "close"]
    first, second = (tokens for _, tokens in progressed)
    assert 0.6 <= first.output / 10 <= 1.7
    assert 0.6 <= second.output / 30 <= 1.7
    assert {tokens.input for tokens in (first, second)} == {1}
    assert rig.journal.closed[0].tokens == second


async def test_no_progress_is_journaled_after_the_end(rig: PathRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_clock, "PROGRESS_INTERVAL_S", 0.001)
    await billed_after_disconnect(rig, chunk("a"))
    count = len(rig.journal.entries)
    await asyncio.sleep(0.02)
    assert len(rig.journal.entries) == count


async def test_plain_answer_journals_no_progress(rig: PathRig) -> None:
    rig.upstream.will(answer(reported(7)))
    await rig.serve(asking())
    assert rig.journal.entries == ["open", "close"]
