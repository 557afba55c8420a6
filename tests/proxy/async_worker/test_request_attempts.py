"""One attempt: what the replica gets, what is stored of its answer, and what each way to fail leads to."""

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest

from proxy.async_requests.queues import LEASE_S
from proxy.async_requests.requests import Succeeded
from proxy.async_requests.states import ErrorCode, Phase, Status
from proxy.async_worker import answer_reading
from proxy.async_worker.answer_reading import CHUNK_BYTES, MAX_ERROR_BYTES
from proxy.errors import UpstreamCutError, UpstreamResetError, UpstreamTimeoutError, UpstreamUnreachableError
from tests.fakes.upstream_client import Piece, answer
from tests.proxy.async_worker.rig import D1, HOOK, A, B, Rig, turns

OK = b'{"ok":true}'


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.runner.drain(0)
    await turns(5)
    rig.check_nothing_is_held()


async def failed(rig: Rig, attempts: int = 1, webhook: str | None = None) -> tuple[ErrorCode, str]:
    """The error of a request that fails."""
    state = await rig.until(Status.FAILED, await rig.submit(attempts=attempts, webhook=webhook))
    (error,) = state.errors
    return error.code, error.message


def headers(rig: Rig) -> list[tuple[str, str]]:
    return [(call.url, call.headers["x-async-attempt"]) for call in rig.upstream.calls]


# What the replica gets.


async def test_replica_gets_the_payload_as_it_was_written(rig: Rig) -> None:
    rig.upstream.will(answer(OK))
    payload = b'{"a": 1.10, "\\u00e9": null}' + b" " * (CHUNK_BYTES + 5)
    id = await rig.submit(model_input=payload)
    await rig.until(Status.SUCCEEDED, id)
    (call,) = rig.upstream.calls
    assert rig.upstream.uploaded == [payload]
    assert dict(call.headers) == {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-request-id": id,
        "x-async-attempt": "1",
    }


async def test_payload_is_released_when_it_is_written(rig: Rig) -> None:
    """The model may take an hour to answer."""
    rig.upstream.will(asyncio.Event())
    await rig.submit(model_input=b"x" * 1000)
    await rig.sweep()
    await rig.eventually(rig.upstream.wait_start.is_set)
    assert (rig.places.taken, rig.places.unsent_bytes) == (1, 0)


async def test_attempt_that_reached_no_replica_is_put_to_another_one(rig: Rig) -> None:
    rig.deploy(D1, A, B)
    rig.upstream.will(UpstreamUnreachableError("x"), answer(OK))
    await rig.until(Status.SUCCEEDED, await rig.submit())
    assert sorted(headers(rig)) == [(f"{A}/predict", "1"), (f"{B}/predict", "1")]


# What each way to fail leads to.


async def test_attempt_that_reached_none_of_the_replicas_counts(rig: Rig) -> None:
    rig.deploy(D1, A, B)
    rig.upstream.will(*(UpstreamUnreachableError("x") for _ in range(4)))
    assert (await failed(rig, attempts=2))[0] is ErrorCode.MODEL_UNAVAILABLE
    assert [number for _, number in headers(rig)] == ["1", "1", "2", "2"]


async def test_attempt_without_a_descriptor_is_made_again_at_any_replica(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.upstream.will(*(OSError(errno.EMFILE, "too many open files") for _ in range(6)), answer(OK))
    await rig.until(Status.SUCCEEDED, await rig.submit(attempts=7))
    assert [number for _, number in headers(rig)] == [str(number) for number in range(1, 8)]
    assert "Please report" not in caplog.text


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (UpstreamResetError("x"), ErrorCode.MODEL_PREDICT_ERROR),
        (answer(pieces=[b"{", UpstreamCutError("x")]), ErrorCode.MODEL_PREDICT_ERROR),
        (answer(pieces=[b"{", UpstreamTimeoutError("x")]), ErrorCode.MODEL_PREDICT_ERROR),
        (answer(b'{"error": "busy"}', 503), ErrorCode.MODEL_PREDICT_ERROR),
    ],
)
async def test_trouble_that_may_pass_is_tried_again(rig: Rig, first: object, code: ErrorCode) -> None:
    rig.upstream.will(first, answer(OK), UpstreamResetError("x"))  # type: ignore[arg-type]
    await rig.until(Status.SUCCEEDED, await rig.submit())
    assert [number for _, number in headers(rig)] == ["1", "2"]
    assert (await failed(rig))[0] is code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ErrorCode.MODEL_INVALID_INPUT),
        (404, ErrorCode.MODEL_DOES_NOT_EXIST),
        (307, ErrorCode.MODEL_PREDICT_ERROR),
        (501, ErrorCode.MODEL_PREDICT_ERROR),
    ],
)
async def test_other_errors_are_final(rig: Rig, status: int, code: ErrorCode) -> None:
    rig.upstream.will(answer(b'{"error": "no"}', status))
    assert (await failed(rig, attempts=3))[0] is code
    assert len(rig.upstream.calls) == 1


async def test_text_of_an_error_is_read_within_a_bound(rig: Rig) -> None:
    endless: list[Piece] = [b"x" * 10_000] * 100
    reply = answer(status=422, pieces=endless)
    rig.upstream.will(reply)
    message = (await failed(rig))[1]
    assert len(message) < 1100
    assert len(reply.pieces) >= 100 - MAX_ERROR_BYTES // 10_000 - 1, "the rest was not read"
    assert reply.closed


async def test_prediction_that_exceeds_its_time_fails() -> None:
    rig = Rig(timeout_s=0.2)
    rig.upstream.will(asyncio.Event())
    assert (await failed(rig, attempts=3))[0] is ErrorCode.MODEL_PREDICT_TIMEOUT
    await rig.eventually(lambda: not rig.places.taken, "its place is free, just after its end is written")
    rig.check_nothing_is_held()


# What is stored of the answer.


async def test_answer_is_stored_in_chunks_as_it_arrives(rig: Rig) -> None:
    arrives = asyncio.Event()
    pieces: list[Piece] = [b'["', b"x" * (2 * CHUNK_BYTES), arrives, b'"]']
    rig.upstream.will(answer(pieces=pieces))
    id = await rig.submit(webhook=HOOK)
    await rig.sweep()
    await rig.eventually(lambda: len(rig.queue.entries[id].chunks) == 2)
    arrives.set()
    await rig.eventually(lambda: rig.phase(id) is Phase.DELIVERING)
    entry = rig.queue.entries[id]
    assert entry.answer == Succeeded(2 * CHUNK_BYTES + 4, 3, is_json=True)
    assert [len(entry.chunks[number]) for number in range(3)] == [CHUNK_BYTES, CHUNK_BYTES, 4]
    assert b"".join(entry.chunks[number] for number in range(3)) == b'["' + b"x" * (2 * CHUNK_BYTES) + b'"]'


@pytest.mark.parametrize(("body", "is_json"), [(b'{"a": 1}', True), (b"hello", False), (b"", False)])
async def test_answer_is_told_from_text(rig: Rig, body: bytes, is_json: bool) -> None:
    rig.upstream.will(answer(body))
    id = await rig.submit(webhook=HOOK)
    await rig.sweep()
    await rig.eventually(lambda: rig.phase(id) is Phase.DELIVERING)
    assert rig.queue.entries[id].answer == Succeeded(len(body), 1 if body else 0, is_json)


async def test_answer_that_nobody_waits_for_is_discarded(rig: Rig) -> None:
    rig.upstream.will(answer(pieces=[b"\xff" * 1000, b"no JSON"]))
    id = await rig.submit()
    await rig.until(Status.SUCCEEDED, id)
    assert rig.queue.entries[id].answer == Succeeded()


async def test_answer_that_no_webhook_can_be_told_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_reading, "MAX_ANSWER_BYTES", 1000)
    rig.upstream.will(answer(b"\xff"), answer(b"1" * 1001))
    for _ in range(2):
        id = await rig.submit(webhook=HOOK)
        await rig.sweep()
        await rig.eventually(lambda: rig.phase(id) is Phase.DELIVERING)  # noqa: B023 (called in this round)
        entry = rig.queue.entries[id]
        assert (entry.outcome, entry.chunks) == (Status.FAILED, {})
        assert entry.error is not None
        assert entry.error.code is ErrorCode.MODEL_PREDICT_ERROR


# Leases, and a queue that is away.


async def test_lost_attempt_closes_its_connection_and_changes_nothing(rig: Rig) -> None:
    reply = answer(pieces=[asyncio.Event()])
    rig.upstream.will(reply)
    id = await rig.submit(attempts=2)
    await rig.sweep()
    await rig.eventually(reply.wait_start.is_set)
    rig.skew_ms = int(LEASE_S * 1000) + 1
    await rig.queue.sweep("w1")  # another process takes it back
    assert rig.phase(id) is Phase.PAUSED
    assert await rig.leases.renew()
    await rig.eventually(lambda: reply.closed)
    await rig.eventually(lambda: rig.figures()[0] == 0)
    assert rig.phase(id) is Phase.PAUSED
    assert rig.counts.drain()["attempts"] == {"lost": 1}


async def test_end_of_an_attempt_is_recorded_when_the_queue_is_back(rig: Rig) -> None:
    end = asyncio.Event()
    rig.upstream.will(answer(pieces=[end, OK]))
    id = await rig.submit()
    await rig.sweep()
    await rig.eventually(lambda: rig.phase(id) is Phase.RUNNING)
    rig.queue.unavailable = True
    end.set()
    await rig.eventually(lambda: rig.figures() == (0, 0, 0), "the replica is free meanwhile")
    assert rig.places.taken == 1
    rig.queue.unavailable = False
    rig.skew_ms = int(LEASE_S * 1000) - 5000
    assert await rig.leases.renew(), "its lease is renewed until then"
    rig.skew_ms += 10_000
    await rig.until(Status.SUCCEEDED, id)
    await rig.eventually(lambda: not rig.places.taken)
    rig.check_nothing_is_held()


async def test_chunk_is_stored_when_the_queue_is_back(rig: Rig) -> None:
    end = asyncio.Event()
    rig.upstream.will(answer(pieces=[end, OK]))
    id = await rig.submit(webhook=HOOK)
    await rig.sweep()
    await rig.eventually(lambda: rig.phase(id) is Phase.RUNNING)
    rig.queue.unavailable = True
    end.set()
    await turns(20)
    rig.queue.unavailable = False
    await rig.eventually(lambda: rig.phase(id) is Phase.DELIVERING)
    assert rig.queue.entries[id].chunks == {0: OK}


async def test_answer_waits_while_its_workspaces_answers_have_reached_their_bound(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_reading, "FULL_RETRY_S", 0.01)
    large = b"x" * (8 * CHUNK_BYTES)  # the bound is 1 000 000
    end = asyncio.Event()
    later = asyncio.Event()
    rig.upstream.will(answer(pieces=[large, end]), answer(pieces=[later, OK]))
    first = await rig.submit(webhook=HOOK)
    second = await rig.submit(webhook=HOOK)
    await rig.sweep()
    await rig.eventually(lambda: rig.queue.entries[first].stored_bytes == len(large))
    later.set()
    await turns(20)
    assert rig.phase(second) is Phase.RUNNING
    assert rig.queue.entries[second].chunks == {}
    end.set()
    await rig.eventually(lambda: rig.phase(first) is Phase.DELIVERING)
    delivery = await rig.queue.next_delivery("w1", "a")
    assert delivery is not None
    assert await rig.queue.delivered(delivery)
    await rig.eventually(lambda: rig.phase(second) is Phase.DELIVERING)
    assert rig.queue.entries[second].chunks == {0: OK}


async def test_attempts_and_ends_are_counted_once(rig: Rig) -> None:
    rig.upstream.will(answer(status=503), answer(OK), answer(OK), answer(status=400))
    await rig.until(Status.SUCCEEDED, await rig.submit())
    hooked = await rig.submit(webhook=HOOK)
    await rig.sweep()
    await rig.eventually(lambda: rig.phase(hooked) is Phase.DELIVERING)
    await rig.until(Status.FAILED, await rig.submit())
    await turns(5)
    counts = rig.counts.drain()
    assert counts["attempts"] == {"again": 1, "succeeded": 2, "failed": 1}
    assert sum(counts["histograms"]["queued"][0]) == 3, "at the first attempt of each"
    assert sorted(row[-2:] for row in counts["requests"]) == [("FAILED", 1), ("SUCCEEDED", 1)]


async def test_log_of_the_deployment_gets_a_line_per_attempt(rig: Rig) -> None:
    rig.upstream.will(answer(status=503), UpstreamResetError("x"), answer(OK))
    await rig.until(Status.SUCCEEDED, await rig.submit())
    await turns(5)
    ends = [message["call"] for message in rig.replicas.messages if message["is"] == "ended" and message["call"]]
    assert [(end["path"], end["status"]) for end in ends] == [("/predict", 503), ("/predict", 502), ("/predict", 200)]
