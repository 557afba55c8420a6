"""The queue of asynchronous requests: the one in Redis and the one in memory pass the same suite."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from proxy.async_requests.endings import ANSWER_LOST, DEPLOYMENT_GONE, NEVER_FREE, NEVER_READY, OUT_OF_TIME, WORKER_LOST
from proxy.async_requests.queues import KEPT_S, ParkedRequestError, QueueFullError
from proxy.async_requests.requests import (
    Cancellation,
    DeploymentFigures,
    DeploymentRef,
    Failed,
    QueueFigures,
    RetryRules,
    Submission,
    Succeeded,
)
from proxy.async_requests.states import Status, WebhookStatus
from tests.contracts.async_queue.queue_world import (
    DEP,
    ERROR,
    HOOK,
    LEASE_MS,
    START_MS,
    TIMEOUT_S,
    WS,
    World,
    again,
    fake_world,
    leftovers,
    redis_world,
)
from tests.redis_server import REDIS_BINARIES
from tests.redis_topologies import Admin, running_redis
from tests.waiting import PATIENCE_S

BOTH_LOOPS = True
OTHER = DeploymentRef(WS, "mdl2", "dep2")


SENTINELS = pytest.param("sentinels", marks=pytest.mark.soak)
"""One server, but for what happens to it: tests/contracts/redis/test_fail_over.py."""


@pytest.fixture(scope="module", params=["memory", *REDIS_BINARIES, "cluster", SENTINELS])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[str, Admin] | None]:
    if request.param == "memory":
        yield None
        return
    with running_redis(request.param) as instance:
        yield instance


@pytest.fixture
async def world(running: tuple[str, Admin] | None) -> AsyncIterator[World]:
    if running is None:
        yield fake_world()
        return
    url, own = running
    world = redis_world(url, own)
    yield world
    await world.close()


# --- submit and look up ---


async def test_new_request_is_queued(world: World) -> None:
    id = await world.submit()
    state = await world.state(id)
    assert (state.status, state.webhook_status, state.errors) == (Status.QUEUED, WebhookStatus.PENDING, ())
    assert (state.deployment, state.created_at_ms, state.status_at_ms) == (DEP, START_MS, START_MS)
    assert await world.queue.workspaces() == [WS]


async def test_request_is_unknown_in_another_workspace(world: World) -> None:
    id = await world.submit()
    assert await world.queue.state("ws2", id) is None
    assert await world.queue.cancel("ws2", id) is None


async def test_second_submission_of_the_same_id_changes_nothing(world: World) -> None:
    request = world.new_request(Submission(b"{}"))
    for _ in range(2):
        await world.queue.submit(request, parks=False)
    assert await world.queue.figures(DEP) == QueueFigures({0: 1, 1: 0, 2: 0}, 0)
    assert (await world.start()).ref.request_id == request.id
    await world.queue.submit(request, parks=False)
    assert await world.queue.start(DEP, "a") is None


async def test_queue_is_full_when_payloads_exceed_the_bound(world: World) -> None:
    await world.submit(b"x" * 600)
    with pytest.raises(QueueFullError):
        await world.submit(b"x" * 401)
    await world.submit(b"x" * 400)
    await world.start()
    await world.submit(b"x" * 600)


async def test_further_request_is_refused_while_one_is_parked(world: World) -> None:
    await world.queue.report_standing(DEP, ready=False)
    first = await world.submit()
    with pytest.raises(ParkedRequestError):
        await world.submit()
    await world.submit(deployment=OTHER)
    assert await world.queue.cancel(WS, first)
    await world.submit()
    world.advance(3000)
    await world.submit()


async def test_ready_outweighs_parked(world: World) -> None:
    await world.queue.report_standing(DEP, ready=True)
    await world.queue.report_standing(DEP, ready=False)
    await world.submit()
    await world.queue.submit(world.new_request(Submission(b"{}")), parks=True)
    world.advance(2900)
    await world.queue.report_standing(DEP, ready=False)
    world.advance(100)
    with pytest.raises(ParkedRequestError):
        await world.submit()


async def test_second_request_is_refused_where_policy_parks(world: World) -> None:
    await world.queue.submit(world.new_request(Submission(b"{}")), parks=True)
    with pytest.raises(ParkedRequestError):
        await world.queue.submit(world.new_request(Submission(b"{}")), parks=True)
    await world.start()
    await world.queue.submit(world.new_request(Submission(b"{}")), parks=True)


async def test_ended_request_is_known_for_an_hour(world: World) -> None:
    id = await world.submit(hook=None)
    await world.queue.cancel(WS, id)
    world.advance(int(KEPT_S * 1000) - 100)
    assert await world.queue.state(WS, id)
    world.advance(100)
    assert await world.queue.state(WS, id) is None
    assert await world.queue.cancel(WS, id) is None


# --- cancel ---


async def test_queued_request_is_canceled_once(world: World) -> None:
    id = await world.submit()
    world.advance(5000)
    assert await world.queue.cancel(WS, id) == Cancellation(True, Status.CANCELED)
    assert await world.queue.cancel(WS, id) == Cancellation(False, Status.CANCELED)
    state = await world.state(id)
    assert (state.status, state.webhook_status, state.errors) == (Status.CANCELED, WebhookStatus.CANCELED, ())
    assert state.status_at_ms == START_MS + 5000
    assert await world.queue.start(DEP, "a") is None


async def test_running_request_is_not_canceled(world: World) -> None:
    id = await world.submit()
    await world.start()
    assert await world.queue.cancel(WS, id) == Cancellation(False, Status.IN_PROGRESS)


async def test_unknown_request_is_not_canceled(world: World) -> None:
    assert await world.queue.cancel(WS, "req9") is None


async def test_cancel_and_start_have_one_winner(world: World) -> None:
    for _ in range(20):
        id = await world.submit(hook=None)
        canceled, attempt = await asyncio.gather(world.queue.cancel(WS, id), world.queue.start(DEP, "a"))
        assert canceled is not None
        assert canceled.canceled is (attempt is None)
        if attempt is not None:
            assert await world.queue.finish(attempt.ref, Succeeded())


# --- attempts ---


async def test_attempt_has_what_its_worker_needs(world: World) -> None:
    rules = RetryRules(4, 500, 2000)
    id = await world.submit(b'{"a": "\xc3\xa4"}', retries=rules)
    world.advance(1500)
    attempt = await world.start("holder")
    assert (attempt.ref.deployment, attempt.ref.request_id, attempt.ref.attempt) == (DEP, id, 1)
    assert (attempt.ref.holder, attempt.model_input, attempt.retries) == ("holder", b'{"a": "\xc3\xa4"}', rules)
    assert (attempt.path, attempt.keeps_answer, attempt.queued_ms) == ("/predict", True, 1500)
    assert (attempt.started_at_ms, attempt.run_until_ms) == (world.now_ms, world.now_ms + TIMEOUT_S * 1000)
    state = await world.state(id)
    assert (state.status, state.status_at_ms) == (Status.IN_PROGRESS, world.now_ms)


async def test_requests_start_by_priority_then_age(world: World) -> None:
    ids = {priority: [await world.submit(priority=priority) for _ in range(2)] for priority in (2, 0, 1)}
    request_ids = [(await world.start()).ref.request_id for _ in range(6)]
    assert request_ids == ids[0] + ids[1] + ids[2]
    assert await world.queue.start(DEP, "a") is None


async def test_paused_request_starts_before_queued_ones(world: World) -> None:
    first = await world.submit(priority=2)
    assert await world.queue.finish((await world.start()).ref, again(1000))
    await world.submit(priority=0)
    assert (await world.queue.sweep(WS)).startable == {DEP: 1}
    world.advance(1000)
    assert (await world.queue.sweep(WS)).startable == {DEP: 2}
    attempt = await world.start("b")
    assert (attempt.ref.request_id, attempt.ref.attempt) == (first, 2)
    assert attempt.run_until_ms == START_MS + TIMEOUT_S * 1000


async def test_request_without_webhook_ends_at_once(world: World) -> None:
    id = await world.submit(hook=None)
    attempt = await world.start()
    assert not attempt.keeps_answer
    world.advance(100)
    assert await world.queue.finish(attempt.ref, Succeeded())
    state = await world.state(id)
    assert (state.status, state.webhook_status) == (Status.SUCCEEDED, WebhookStatus.NO_WEBHOOK_PROVIDED)
    assert state.status_at_ms == world.now_ms
    assert not await world.queue.finish(attempt.ref, Failed(ERROR))
    assert (await world.state(id)).status is Status.SUCCEEDED


async def test_failure_names_its_error(world: World) -> None:
    id = await world.submit(hook=None)
    assert await world.queue.finish((await world.start()).ref, Failed(ERROR))
    state = await world.state(id)
    assert (state.status, state.errors) == (Status.FAILED, (ERROR,))


async def test_last_attempt_is_not_followed_by_another(world: World) -> None:
    id = await world.submit(hook=None, retries=RetryRules(2, 0, 0))
    assert await world.queue.finish((await world.start()).ref, again(0))
    assert await world.queue.finish((await world.start()).ref, again(0))
    assert (await world.state(id)).errors == (ERROR,)


async def test_no_attempt_follows_when_there_is_no_time_for_it(world: World) -> None:
    id = await world.submit(hook=None)
    attempt = await world.start()
    world.advance(int(TIMEOUT_S * 1000) - 1000)
    assert await world.queue.finish(attempt.ref, again(1000))
    assert (await world.state(id)).errors == (ERROR,)


async def test_nothing_starts_while_answers_exceed_their_bound(world: World) -> None:
    await world.submit()
    await world.submit(hook=None)
    attempt = await world.start()
    await world.queue.store(attempt.ref, 0, b"x" * 1001)
    work = await world.queue.sweep(WS)
    assert (work.startable, work.stored_answer_bytes) == ({}, 1001)
    assert await world.queue.start(DEP, "a") is None
    await world.queue.store(attempt.ref, 0, b"x" * 1000)
    assert (await world.queue.sweep(WS)).startable == {DEP: 1}
    assert await world.queue.start(DEP, "a")


async def test_answers_exceed_their_bound_by_one_answer_at_most(world: World) -> None:
    ids = [await world.submit() for _ in range(3)]
    one, other, third = [(await world.start()).ref for _ in ids]
    assert await world.queue.store(one, 0, b"x" * 400)
    assert await world.queue.store(other, 0, b"x" * 400)
    assert await world.queue.store(one, 1, b"x" * 400)  # 1200 of 1000
    assert not await world.queue.store(other, 1, b"x" * 400)
    assert not await world.queue.store(third, 0, b"x")
    assert await world.queue.store(one, 2, b"x" * 400)
    assert await world.queue.store(other, 0, b"y" * 400)  # repeated: no more than before
    assert await world.queue.finish(one, Succeeded(1200, 3))
    assert not await world.queue.store(other, 1, b"x" * 400)  # until the webhook has the large one
    delivery = await world.queue.next_delivery(WS, "a")
    assert delivery is not None
    assert await world.queue.delivered(delivery)
    assert await world.queue.store(other, 1, b"x" * 400)
    assert await world.queue.store(third, 0, b"x" * 201)  # the next one that may grow
    assert not await world.queue.store(other, 2, b"x")
    assert await world.queue.finish(third, Failed(ERROR))
    assert await world.queue.store(other, 2, b"x" * 200)
    assert (await world.queue.sweep(WS)).stored_answer_bytes == 1000


async def test_start_of_an_unknown_deployment_is_none(world: World) -> None:
    await world.submit()
    assert await world.queue.start(OTHER, "a") is None


# --- leases ---


async def test_attempt_that_is_not_renewed_is_taken_back(world: World) -> None:
    id = await world.submit()
    abandoned = await world.start("a")
    await world.queue.store(abandoned.ref, 0, b"half")
    world.advance(LEASE_MS - 100)
    await world.queue.sweep(WS)
    assert await world.queue.start(DEP, "b") is None
    world.advance(100)
    work = await world.queue.sweep(WS)
    assert (work.startable, work.stored_answer_bytes) == ({DEP: 1}, 0)
    assert await world.queue.renew([abandoned.ref]) == [abandoned.ref]
    attempt = await world.start("b")
    assert (attempt.ref.request_id, attempt.ref.attempt) == (id, 2)
    await world.queue.store(abandoned.ref, 1, b"late")
    assert (await world.queue.sweep(WS)).stored_answer_bytes == 0
    assert not await world.queue.finish(abandoned.ref, Succeeded(8, 2))
    assert await world.queue.finish(attempt.ref, Failed(ERROR))


async def test_empty_chunk_of_a_lost_attempt_is_removed(world: World) -> None:
    await world.submit()
    attempt = await world.start()
    await world.queue.store(attempt.ref, 0, b"")
    assert await world.queue.finish(attempt.ref, Failed(ERROR))
    assert await world.queue.chunk(await world.next_delivery(), 0) is None


async def test_renewed_attempt_is_kept(world: World) -> None:
    await world.submit()
    await world.submit()
    renewed = await world.start("a")
    abandoned = await world.start("b")
    for _ in range(4):
        world.advance(20_000)
        assert await world.queue.renew([renewed.ref]) == []
        await world.queue.sweep(WS)
    assert await world.queue.renew([renewed.ref, abandoned.ref]) == [abandoned.ref]
    assert await world.queue.finish(renewed.ref, Succeeded())


async def test_last_attempt_of_a_dead_worker_fails(world: World) -> None:
    id = await world.submit(hook=None, retries=RetryRules(1, 0, 0))
    world.advance(500)
    await world.start()
    world.advance(LEASE_MS)
    work = await world.queue.sweep(WS)
    assert list(work.ended) == [(DEP, Status.FAILED, 500)]
    state = await world.state(id)
    assert (state.status, state.errors) == (Status.FAILED, (WORKER_LOST,))


async def test_attempt_of_another_holder_is_not_touched(world: World) -> None:
    await world.submit()
    attempt = await world.start("a")
    stolen = replace(attempt.ref, holder="b")
    assert await world.queue.renew([stolen]) == [stolen]
    assert not await world.queue.finish(stolen, Succeeded())
    assert await world.queue.finish(attempt.ref, Succeeded())


# --- sweep ---


async def test_request_expires_where_no_replica_ever_was(world: World) -> None:
    await world.queue.report_standing(DEP, ready=True)
    world.advance(100)
    id = await world.submit(hook=None, max_time_in_queue_s=10)
    assert (await world.queue.sweep(WS)).next_due_in_ms == 10_000
    world.advance(9900)
    assert not (await world.queue.sweep(WS)).ended
    world.advance(100)
    work = await world.queue.sweep(WS)
    assert (list(work.ended), work.startable) == ([(DEP, Status.EXPIRED, 10_000)], {})
    state = await world.state(id)
    assert (state.status, state.errors) == (Status.EXPIRED, (NEVER_READY,))


async def test_request_expires_where_a_replica_was_busy(world: World) -> None:
    id = await world.submit(hook=None, max_time_in_queue_s=10)
    await world.queue.report_standing(DEP, ready=True)
    world.advance(10_000)
    assert (await world.queue.sweep(WS)).ended
    assert (await world.state(id)).errors == (NEVER_FREE,)


async def test_expired_request_does_not_start(world: World) -> None:
    id = await world.submit(hook=None, max_time_in_queue_s=10)
    later = await world.submit(max_time_in_queue_s=20)
    world.advance(10_000)
    assert (await world.start()).ref.request_id == later
    assert (await world.state(id)).status is Status.EXPIRED


async def test_paused_request_runs_out_of_time(world: World) -> None:
    id = await world.submit(hook=None)
    assert await world.queue.finish((await world.start()).ref, again(0))
    world.advance(int(TIMEOUT_S * 1000))
    work = await world.queue.sweep(WS)
    assert list(work.ended) == [(DEP, Status.FAILED, 0)]
    assert (await world.state(id)).errors == (OUT_OF_TIME,)


async def test_next_due_time_is_told(world: World) -> None:
    await world.submit()
    assert await world.queue.finish((await world.start()).ref, again(1500))
    assert (await world.queue.sweep(WS)).next_due_in_ms == 1500


# --- a deleted deployment ---


async def test_requests_of_a_deleted_deployment_fail(world: World) -> None:
    delayed = await world.submit(hook=None)
    ready = await world.submit(hook=None)
    running = await world.submit()
    queued = [await world.submit(hook=None, priority=p) for p in (0, 1, 2)]
    attempts = [await world.start() for _ in range(3)]
    assert await world.queue.finish(attempts[0].ref, again(1000))
    assert await world.queue.finish(attempts[1].ref, again(0))
    other = await world.submit(deployment=OTHER)
    assert await world.queue.fail_deployment(DEP) == 5
    for id in (delayed, ready, *queued):
        assert (await world.state(id)).errors == (DEPLOYMENT_GONE,)
    assert (await world.state(running)).status is Status.IN_PROGRESS
    assert await world.queue.finish(attempts[2].ref, again(0))
    assert await world.queue.fail_deployment(DEP) == 1
    assert await world.queue.fail_deployment(DEP) == 0
    assert (await world.state(other)).status is Status.QUEUED


# --- deliveries ---


async def test_answer_is_delivered(world: World) -> None:
    id = await world.submit()
    attempt = await world.start()
    for number, chunk in enumerate((b"one", b"two", b"two")):
        await world.queue.store(attempt.ref, min(number, 1), chunk)
    assert await world.queue.finish(attempt.ref, Succeeded(6, 2, is_json=False))
    assert (await world.state(id)).status is Status.IN_PROGRESS
    assert (await world.queue.sweep(WS)).deliveries == 1
    delivery = await world.next_delivery("b")
    assert (delivery.deployment, delivery.request_id, delivery.webhook_endpoint) == (DEP, id, HOOK)
    assert (delivery.attempt, delivery.holder, delivery.status) == (1, "b", Status.SUCCEEDED)
    assert (delivery.ended_at_ms, delivery.errors) == (world.now_ms, ())
    assert delivery.answer == Succeeded(6, 2, is_json=False)
    assert [await world.queue.chunk(delivery, number) for number in range(3)] == [b"one", b"two", None]
    assert await world.queue.next_delivery(WS, "c") is None
    world.advance(100)
    assert await world.queue.delivered(delivery)
    assert not await world.queue.delivered(delivery)
    state = await world.state(id)
    assert (state.status, state.webhook_status) == (Status.SUCCEEDED, WebhookStatus.SUCCEEDED)
    assert state.status_at_ms == world.now_ms
    assert await world.queue.chunk(delivery, 0) is None
    assert (await world.queue.sweep(WS)).stored_answer_bytes == 0


async def test_lost_answer_is_told_as_failure(world: World) -> None:
    id = await world.submit()
    attempt = await world.start()
    await world.queue.store(attempt.ref, 0, b"one")
    assert await world.queue.finish(attempt.ref, Succeeded(3, 1))
    delivery = await world.next_delivery("b")
    assert not await world.queue.answer_lost(replace(delivery, holder="c"))
    assert await world.queue.answer_lost(delivery)
    assert await world.queue.answer_lost(delivery), "repeated"
    assert (await world.queue.sweep(WS)).stored_answer_bytes == 0
    assert (await world.state(id)).status is Status.IN_PROGRESS
    assert await world.queue.undelivered(delivery, 0)
    await world.queue.sweep(WS)
    again = await world.next_delivery("b")
    assert (again.status, again.errors, again.answer) == (Status.FAILED, (ANSWER_LOST,), None)
    assert await world.queue.delivered(again)
    state = await world.state(id)
    assert (state.status, state.errors) == (Status.FAILED, (ANSWER_LOST,))
    assert not await world.queue.answer_lost(again)


async def test_failure_and_expiry_are_delivered(world: World) -> None:
    failed = await world.submit()
    _ = await world.submit(max_time_in_queue_s=10)
    assert await world.queue.finish((await world.start()).ref, Failed(ERROR))
    world.advance(10_000)
    await world.queue.sweep(WS)
    first = await world.next_delivery()
    second = await world.next_delivery()
    assert (first.status, first.errors, first.answer) == (Status.FAILED, (ERROR,), None)
    assert (second.status, second.errors, second.answer) == (Status.EXPIRED, (NEVER_READY,), None)
    assert await world.queue.delivered(first)
    state = await world.state(failed)
    assert (state.status, state.webhook_status) == (Status.FAILED, WebhookStatus.SUCCEEDED)


async def test_canceled_request_is_not_delivered(world: World) -> None:
    await world.queue.cancel(WS, await world.submit())
    assert await world.queue.next_delivery(WS, "a") is None


async def test_refused_delivery_is_tried_again(world: World) -> None:
    await world.submit()
    assert await world.queue.finish((await world.start()).ref, Succeeded())
    delivery = await world.next_delivery()
    assert await world.queue.undelivered(delivery, 15_000)
    world.advance(14_900)
    assert (await world.queue.sweep(WS)).deliveries == 0
    assert await world.queue.next_delivery(WS, "a") is None
    world.advance(100)
    assert (await world.queue.sweep(WS)).deliveries == 1
    assert (await world.next_delivery("b")).attempt == 2
    assert not await world.queue.undelivered(delivery, None)


async def test_delivery_is_given_up(world: World) -> None:
    id = await world.submit()
    attempt = await world.start()
    await world.queue.store(attempt.ref, 0, b"42")
    assert await world.queue.finish(attempt.ref, Succeeded(2, 1))
    assert await world.queue.undelivered(await world.next_delivery(), None)
    state = await world.state(id)
    assert (state.status, state.webhook_status, state.errors) == (Status.WEBHOOK_FAILED, WebhookStatus.FAILED, ())
    assert (await world.queue.sweep(WS)).stored_answer_bytes == 0


async def test_delivery_of_a_dead_worker_is_taken_back_until_its_tries_are_used_up(world: World) -> None:
    id = await world.submit()
    assert await world.queue.finish((await world.start()).ref, Failed(ERROR))
    for attempt in range(1, 6):
        delivery = await world.next_delivery()
        assert delivery.attempt == attempt
        world.advance(5000)
        assert await world.queue.renew_deliveries([delivery]) == []
        world.advance(LEASE_MS - 2000)
        await world.queue.sweep(WS)
        world.advance(2000)
        await world.queue.sweep(WS)
        assert await world.queue.renew_deliveries([delivery]) == [delivery]
    state = await world.state(id)
    assert (state.status, state.errors) == (Status.WEBHOOK_FAILED, (ERROR,))


# --- figures ---


async def test_figures_and_overview_count_by_phase(world: World) -> None:
    for priority in (0, 0, 1):
        await world.submit(priority=priority)
        world.advance(1000)
    await world.submit(deployment=OTHER, hook=None)
    assert await world.queue.finish((await world.start()).ref, Succeeded())
    assert await world.queue.figures(DEP) == QueueFigures({0: 1, 1: 1, 2: 0}, 1)
    await world.start(deployment=OTHER)
    figures_of = {one.deployment: one for one in await world.queue.overview()}
    assert figures_of == {
        DEP: DeploymentFigures(DEP, {0: 1, 1: 1, 2: 0}, 1, 2.0),
        OTHER: DeploymentFigures(OTHER, {0: 0, 1: 0, 2: 0}, 1, None),
    }


async def test_figures_of_an_unknown_deployment_are_zero(world: World) -> None:
    assert await world.queue.figures(DEP) == QueueFigures({0: 0, 1: 0, 2: 0}, 0)
    assert await world.queue.overview() == []


# --- hints ---


async def test_hint_names_the_workspace(world: World) -> None:
    async with aclosing(world.queue.queue_hints()) as hints:  # type: ignore[type-var]  # they are generators
        assert await anext(hints) == ""
        await world.submit()
        assert await asyncio.wait_for(anext(hints), PATIENCE_S) == WS


async def test_nothing_is_left_when_all_have_ended(world: World) -> None:
    await world.queue.report_standing(DEP, ready=True)
    for priority in (0, 1, 2):
        await world.submit(priority=priority)
    assert await world.queue.cancel(WS, await world.submit())
    for _ in range(3):
        attempt = await world.start()
        await world.queue.store(attempt.ref, 0, b"42")
        assert await world.queue.finish(attempt.ref, Succeeded(2, 1))
    for _ in range(3):
        assert await world.queue.delivered(await world.next_delivery())
    work = await world.queue.sweep(WS)
    assert (work.startable, work.deliveries, work.stored_answer_bytes, work.next_due_in_ms) == ({}, 0, 0, None)
    world.advance(60_000)
    await world.queue.sweep(WS)
    assert await world.queue.workspaces() == []
    if world.redis is not None:
        assert leftovers(world.redis) == []
