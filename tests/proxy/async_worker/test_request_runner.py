"""Conversations of an async worker with the queue, the switchboard and replicas: what begins when."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from policy.deployments import SCALED_TO_ZERO
from proxy.async_requests.requests import AttemptRef, DeploymentRef, Outcome, RequestAttempt
from proxy.async_requests.states import ErrorCode, Phase, Status
from proxy.async_worker.request_runner import MAX_ASKS, STARTS_OF_ONE_WORKSPACE
from tests.fakes.upstream_client import Piece, answer
from tests.proxy.async_worker.rig import D1, D2, A, B, Rig, turns

OK = b'{"ok":true}'


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.runner.drain(0)
    await turns(5)


async def test_request_is_taken_from_the_queue_when_it_has_a_replica(rig: Rig) -> None:
    rig.upstream.will(answer(OK))
    id = await rig.submit()
    await rig.until(Status.SUCCEEDED, id)
    (call,) = rig.upstream.calls
    assert (call.method, call.url, call.headers["x-request-id"]) == ("POST", f"{A}/predict", id)
    assert rig.upstream.uploaded == [b"{}"]
    await turns(5)
    rig.check_nothing_is_held()


async def test_request_without_a_replica_is_queued_parked_and_may_be_canceled(rig: Rig) -> None:
    rig.deploy(D1, status=SCALED_TO_ZERO)
    id = await rig.submit()
    await rig.sweep()
    await rig.eventually(lambda: rig.figures() == (0, 0, 1))
    assert rig.phase(id) is Phase.QUEUED
    # The switchboard counts it as parked before it tells the runner so.
    await rig.eventually(lambda: rig.places.taken == 0, "it takes no place from those that can run")
    assert (await rig.queue.cancel("w1", id)) is not None
    await rig.sweep()
    await rig.eventually(lambda: rig.figures() == (0, 0, 0), "the ask is withdrawn, so nothing is woken for it")
    assert rig.upstream.calls == []


async def test_asks_are_bounded_and_parked_ones_start_with_the_first_replica(rig: Rig) -> None:
    rig.deploy(D1, status=SCALED_TO_ZERO)
    ids = [await rig.submit() for _ in range(3 * MAX_ASKS)]
    rig.upstream.will(*(answer(OK) for _ in ids))
    await rig.sweep()
    await rig.eventually(lambda: rig.figures() == (0, 0, MAX_ASKS))
    rig.deploy(D1, A)
    for id in ids:
        await rig.until(Status.SUCCEEDED, id)
    assert len(rig.upstream.calls) == len(ids)


async def test_places_bound_what_runs(rig: Rig) -> None:
    small = rig.runner = Rig.process(rig, "small")
    rig.places._capacity.limits = replace(rig.places._capacity.limits, max_in_flight=2)
    open_gate = asyncio.Event()
    ids = [await rig.submit() for _ in range(6)]
    rig.upstream.will(*(step for _ in ids for step in (open_gate, answer(OK))))
    await rig.sweep(small)
    await rig.eventually(lambda: rig.figures()[0] >= 1)
    await turns(50)
    assert 1 <= rig.figures()[0] <= 2
    open_gate.set()
    for id in ids:
        await rig.until(Status.SUCCEEDED, id)


async def test_workspace_that_fills_its_share_leaves_places_to_others() -> None:
    rig = Rig(most=8)
    never = asyncio.Event()
    for _ in range(20):
        await rig.submit(D1)
    rig.upstream.will(*[never] * 8)
    await rig.sweep()
    await rig.eventually(lambda: rig.figures("d1")[0] >= 4)
    await turns(50)
    assert rig.figures("d1")[0] < 8
    other = await rig.submit(D2)
    await rig.sweep()
    await rig.eventually(lambda: rig.phase(other) is Phase.RUNNING)
    await rig.runner.drain(0)
    await turns(5)
    rig.check_nothing_is_held()


async def test_busy_replica_holds_up_no_other_deployment() -> None:
    """Requests that wait for their turn take no place of the runner."""
    rig = Rig(most=2)
    never = asyncio.Event()
    rig.deploy(D1, A, most=1)
    for _ in range(10):
        await rig.submit(D1)
    rig.upstream.will(never)
    await rig.sweep()
    await rig.eventually(lambda: rig.figures("d1")[0] == 1)
    await turns(20)
    assert rig.figures("d1")[1] > 0
    rig.upstream.will(answer(OK))
    other = await rig.submit(D2)
    await rig.until(Status.SUCCEEDED, other, "w2")
    await rig.runner.drain(0)
    await turns(5)
    rig.check_nothing_is_held()


async def test_each_request_is_attempted_once_however_many_processes_ask(rig: Rig) -> None:
    other = rig.process("two")
    ids = [await rig.submit() for _ in range(50)]
    rig.upstream.will(*(answer(OK) for _ in ids))
    while [id for id in ids if rig.phase(id) is not Phase.ENDED]:
        await rig.sweep(rig.runner, other)
        await turns(10)
    assert sorted(call.headers["x-request-id"] for call in rig.upstream.calls) == sorted(ids)
    await other.drain(0)


async def test_queue_that_is_away_when_a_replica_is_free_frees_the_replica(rig: Rig) -> None:
    id = await rig.submit()
    await rig.sweep()
    rig.queue.unavailable = True
    await turns(50)
    assert rig.figures() == (0, 0, 0)
    rig.queue.unavailable = False
    rig.upstream.will(answer(OK))
    await rig.until(Status.SUCCEEDED, id)


async def test_bug_fails_its_attempt_and_nothing_else(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.upstream.will(KeyError("bug"), answer(OK))
    broken = await rig.submit(attempts=1)
    state = await rig.until(Status.FAILED, broken)
    assert [error.code for error in state.errors] == [ErrorCode.INTERNAL_SERVER_ERROR]
    (record,) = [record for record in caplog.records if record.exc_info]
    assert broken in record.getMessage()
    await rig.until(Status.SUCCEEDED, await rig.submit())


async def test_deleted_deployment_fails_what_waits_for_it(rig: Rig) -> None:
    del rig.directory.models["m1"]
    state = await rig.until(Status.FAILED, await rig.submit())
    assert [error.code for error in state.errors] == [ErrorCode.MODEL_DOES_NOT_EXIST]


async def test_requests_that_end_without_an_attempt_are_counted_once(rig: Rig) -> None:
    rig.deploy(D1)
    ids = [await rig.submit() for _ in range(3)]
    rig.skew_ms = 600_000
    for id in ids:
        await rig.until(Status.EXPIRED, id)
    await rig.sweep()
    del rig.directory.models["m1"]
    await rig.until(Status.FAILED, await rig.submit())
    await rig.sweep()
    where = ("w1", "m1", "d1")
    assert sorted(map(tuple, rig.counts.drain()["requests"])) == [(*where, "EXPIRED", 3), (*where, "FAILED", 1)]


async def test_deployment_that_control_cannot_confirm_as_deleted_is_not_given_up(rig: Rig) -> None:
    model = rig.directory.models.pop("m1")
    rig.directory.unconfirmable = True
    id = await rig.submit()
    for _ in range(20):
        await rig.sweep()
        await turns(20)
    assert rig.directory.confirmations > 1
    assert rig.phase(id) is Phase.QUEUED
    rig.directory.models["m1"] = model
    rig.upstream.will(answer(OK))
    await rig.until(Status.SUCCEEDED, id)


async def test_queue_learns_whether_requests_are_parked_or_a_replica_is_ready(rig: Rig) -> None:
    reporting = asyncio.create_task(rig.runner.standings.run())
    rig.deploy(D1, status=SCALED_TO_ZERO)
    await rig.submit()
    await rig.sweep()
    await rig.eventually(lambda: D1 in rig.queue._parked_ms)
    assert D1 not in rig.queue._ready_ms
    rig.upstream.will(answer(OK))
    rig.deploy(D1, A)
    await rig.eventually(lambda: D1 in rig.queue._ready_ms)
    reporting.cancel()


async def test_drain_begins_nothing_and_hands_back_what_does_not_end(rig: Rig) -> None:
    gate = asyncio.Event()
    never = asyncio.Event()
    rig.upstream.will(answer(pieces=[gate, OK]), answer(pieces=[never]), answer(pieces=[never]))
    ends, lasts, last_try = [await rig.submit(attempts=attempts) for attempts in (3, 3, 1)]
    await rig.sweep()
    await rig.eventually(lambda: len(rig.upstream.calls) == 3)
    draining = asyncio.create_task(rig.runner.drain(0.1))
    waits = await rig.submit()
    await rig.sweep()
    gate.set()
    await draining
    assert [rig.phase(id) for id in (ends, lasts, last_try, waits)] == [
        Phase.ENDED, Phase.PAUSED, Phase.ENDED, Phase.QUEUED,
    ]  # fmt: skip
    assert (await rig.state(ends)).status is Status.SUCCEEDED
    assert [error.code for error in (await rig.state(last_try)).errors] == [ErrorCode.INTERNAL_SERVER_ERROR]
    await turns(5)
    rig.check_nothing_is_held()


async def test_drain_waits_until_the_queue_has_heard_of_what_was_handed_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = rig.queue.finish

    async def slow_finish(ref: AttemptRef, outcome: Outcome) -> bool:
        await asyncio.sleep(0.05)
        return await finish(ref, outcome)

    monkeypatch.setattr(rig.queue, "finish", slow_finish)
    rig.upstream.will(answer(pieces=[asyncio.Event()]))
    id = await rig.submit()
    await rig.sweep()
    await rig.eventually(lambda: rig.phase(id) is Phase.RUNNING)
    await rig.runner.drain(0)
    assert rig.phase(id) is Phase.PAUSED


def hold_starts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> tuple[list[DeploymentRef], asyncio.Event]:
    """Make requests of D1 wait for the event when they are taken from the queue. Also returns which have come there."""
    start = rig.queue.start
    go_on = asyncio.Event()
    starts: list[DeploymentRef] = []

    async def slow_start(deployment: DeploymentRef, holder: str) -> RequestAttempt | None:
        starts.append(deployment)
        if deployment == D1:
            await go_on.wait()
        return await start(deployment, holder)

    monkeypatch.setattr(rig.queue, "start", slow_start)
    return starts, go_on


async def test_drain_begins_nothing_of_what_waits_to_be_taken_from_the_queue(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests have a replica already, but payloads are fetched a few at a time."""
    starts, go_on = hold_starts(rig, monkeypatch)
    rig.upstream.will(*(answer(OK) for _ in range(20)))
    ids = [await rig.submit() for _ in range(20)]
    await rig.sweep()
    await rig.eventually(lambda: len(starts) == STARTS_OF_ONE_WORKSPACE)
    draining = asyncio.create_task(rig.runner.drain(1))
    await turns(5)
    go_on.set()
    await draining
    phases = [rig.phase(id) for id in ids]
    begun_count = STARTS_OF_ONE_WORKSPACE
    assert (phases.count(Phase.ENDED), phases.count(Phase.QUEUED)) == (begun_count, 20 - begun_count)


async def test_large_payloads_of_a_workspace_do_not_keep_another_one_from_beginning(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, go_on = hold_starts(rig, monkeypatch)
    rig.upstream.will(*(answer(OK) for _ in range(11)))
    ids = [await rig.submit() for _ in range(10)]
    await rig.sweep()
    await turns(20)
    await rig.until(Status.SUCCEEDED, await rig.submit(D2), "w2")
    go_on.set()
    for id in ids:
        await rig.until(Status.SUCCEEDED, id)


@pytest.mark.parametrize("after", range(40))
async def test_stopping_at_any_moment_leaves_nothing_held(after: int) -> None:
    """The stop may come while the worker asks, starts, sends, reads, stores or finishes."""
    rig = Rig()
    pieces: list[Piece] = [b"[1,", b"2]", asyncio.Event()]
    for n in range(3):
        await rig.submit(D1, webhook="https://hooks.example.com" if n else None)
        await rig.submit(D2)
    rig.upstream.will(*(answer(OK, pieces=pieces if n % 2 else ()) for n in range(6)))
    rig.deploy(D2, B, most=1)
    await rig.sweep()
    await turns(after)
    await rig.runner.drain(0)
    await turns(10)
    rig.check_nothing_is_held()
    running = [entry for entry in rig.queue.entries.values() if entry.phase is Phase.RUNNING]
    assert not running, "handed back at once"
