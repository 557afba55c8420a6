"""Deliveries are taken, kept, recorded and tried again, over the queue in memory."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from proxy.async_requests import deliveries
from proxy.async_requests.queues import LEASE_S
from proxy.async_requests.requests import Delivery, RequestState
from proxy.async_requests.states import Status, WebhookStatus
from proxy.async_worker.delivery import AnswerLostError, Deliveries, DeliveryParts
from proxy.edges.telemetry.async_counts import AsyncCounts
from tests.fakes.async_queue import FakeAsyncQueue
from tests.proxy.async_worker.deliveries import ENDED_MS, URL, Clock, end_request
from tests.waiting import eventually, until_still

SKIPS_IDLE_TIME = True

HANGS = "https://hangs.example.com/in"


class ScriptedTeller:
    """A receiver per URL: `trouble` says what is wrong with it; one in `hangs` never answers."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.trouble: dict[str, str] = {}
        self.hangs: set[str] = set()
        self.cancelled = 0
        self.answer_missing = 0
        """Number of tries that find a part of the answer missing."""
        self.on_answer: Callable[[], object] = lambda: None

    async def tell(self, delivery: Delivery) -> str:
        self.deliveries.append(delivery)
        await asyncio.sleep(0)
        self.on_answer()
        if delivery.answer is not None and self.answer_missing > 0:
            self.answer_missing -= 1
            raise AnswerLostError
        if delivery.webhook_endpoint in self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if (trouble := self.trouble.get(delivery.webhook_endpoint, "")) == "bug":
            raise KeyError(trouble)
        return trouble


class BreakableQueue(FakeAsyncQueue):
    """`is_broken`: renewing meets a bug."""

    is_broken = False

    async def renew_deliveries(self, deliveries: Collection[Delivery]) -> Collection[Delivery]:
        if self.is_broken:
            raise KeyError("a bug")
        return await super().renew_deliveries(deliveries)


class World:
    """A queue, a clock, receivers, and one process that delivers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.queue = BreakableQueue(self.clock)
        self.teller = ScriptedTeller()
        self.counts = AsyncCounts()
        self.deliveries = self.process("one")

    def process(self, holder: str) -> Deliveries:
        parts = DeliveryParts(
            queue=self.queue,
            teller=self.teller,
            counts=self.counts,
            again_in_ms=deliveries.again_in_ms,
            clock=lambda: self.clock() / 1000,
            lost_after_s=0.01,
        )
        return Deliveries(parts, holder)

    async def sweep(self) -> None:
        """Sweep every workspace, as the process does each second and with each hint."""
        for workspace_id in await self.queue.workspaces():
            if (await self.queue.sweep(workspace_id)).deliveries:
                self.deliveries.due(workspace_id)

    async def state(self, id: str = "req_1", workspace_id: str = "ws_1") -> RequestState:
        state = await self.queue.state(workspace_id, id)
        assert state is not None
        return state

    async def until(self, status: Status, id: str = "req_1", workspace_id: str = "ws_1") -> RequestState:
        async def reached() -> bool:
            return (await self.state(id, workspace_id)).status is status

        await eventually(reached)
        return await self.state(id, workspace_id)

    def counted(self) -> tuple[dict[str, int], Counter[str]]:
        """Tries by outcome, and ended requests by status, since the last look."""
        counts = self.counts.drain()
        ended: Counter[str] = Counter()
        for *_, status, count in counts.get("requests", ()):
            ended[status] += count
        return counts.get("deliveries", {}), ended


@asynccontextmanager
async def running(process: Deliveries) -> AsyncIterator[None]:
    task = asyncio.create_task(process.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with running(world.deliveries):
        yield world


async def test_an_accepted_delivery_ends_the_request(world: World) -> None:
    await end_request(world.queue, answer=b'{"a":1}')
    await world.sweep()
    state = await world.until(Status.SUCCEEDED)
    assert (state.webhook_status, state.errors) == (WebhookStatus.SUCCEEDED, ())
    assert [(one.request_id, one.attempt, one.holder) for one in world.teller.deliveries] == [("req_1", 1, "one")]
    assert world.counted() == ({"delivered": 1}, Counter({"SUCCEEDED": 1}))


async def test_a_failed_request_is_told_as_well(world: World) -> None:
    await end_request(world.queue)
    await world.sweep()
    assert (await world.until(Status.FAILED)).webhook_status is WebhookStatus.SUCCEEDED
    assert world.counted() == ({"delivered": 1}, Counter({"FAILED": 1}))


async def test_a_refused_delivery_is_tried_five_times_over_ten_minutes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.teller.trouble[URL] = "the receiver answered 500"
    await end_request(world.queue, answer=b"1")
    recorded: Counter[str] = Counter()

    def is_recorded(tries: int) -> bool:
        recorded.update(world.counted()[0])
        return recorded.total() == tries

    for tries, due_s in enumerate((0, 15, 60, 180, 600), 1):
        if due_s:
            world.clock.move(due_s - 1 - (world.clock() - ENDED_MS) / 1000)
            await world.sweep()
            await until_still(lambda: len(world.teller.deliveries))
            assert len(world.teller.deliveries) == tries - 1
            world.clock.move(1)
        await world.sweep()
        await eventually(partial(is_recorded, tries))
    assert recorded == {"failed": 4, "given_up": 1}
    state = await world.state()
    assert (state.status, state.webhook_status) == (Status.WEBHOOK_FAILED, WebhookStatus.FAILED)
    assert "given up after 5 tries (the receiver answered 500" in caplog.text


async def test_a_receiver_that_hangs_delays_no_other_workspace(world: World) -> None:
    world.teller.hangs.add(HANGS)
    for number in range(200):
        await end_request(world.queue, f"hang-{number}", HANGS)
    await world.sweep()
    await eventually(lambda: len(world.teller.deliveries) > 5)
    for number in range(50):
        await end_request(world.queue, f"fine-{number}", URL, "ws_2")
    await world.sweep()
    for number in range(50):
        await world.until(Status.FAILED, f"fine-{number}", "ws_2")


async def test_a_receiver_that_hangs_delays_no_other_of_its_workspace(world: World) -> None:
    world.teller.hangs.add(HANGS)
    for number in range(50):
        await end_request(world.queue, f"hang-{number}", HANGS)
    for number in range(50):
        await end_request(world.queue, f"fine-{number}", URL)
    await world.sweep()
    for number in range(50):
        await world.until(Status.FAILED, f"fine-{number}")


async def test_a_delivery_that_another_process_has_taken_over_is_abandoned(world: World) -> None:
    world.teller.hangs.add(URL)
    await end_request(world.queue)
    await world.sweep()
    await eventually(lambda: world.teller.deliveries)
    world.clock.move(LEASE_S + 1)  # this process stood still
    await world.queue.sweep("ws_1")
    second = await world.queue.next_delivery("ws_1", "two")
    assert second is not None
    assert second.request_id == world.teller.deliveries[0].request_id
    await eventually(lambda: world.teller.cancelled == 1)
    assert await world.queue.delivered(second)
    assert (await world.state()).status is Status.FAILED
    assert world.counted() == ({}, Counter())


async def test_a_result_is_recorded_when_the_queue_answers_again(world: World) -> None:
    await end_request(world.queue)
    world.teller.on_answer = lambda: setattr(world.queue, "unavailable", True)
    await world.sweep()
    await eventually(lambda: world.queue.unavailable)
    await asyncio.sleep(0.1)
    assert world.counted() == ({}, Counter())
    world.queue.unavailable = False
    await world.until(Status.FAILED)
    assert len(world.teller.deliveries) == 1
    assert world.counted() == ({"delivered": 1}, Counter({"FAILED": 1}))


async def test_deliveries_go_on_after_the_queue_was_away(world: World) -> None:
    await end_request(world.queue)
    world.queue.unavailable = True
    world.deliveries.due("ws_1")
    await asyncio.sleep(0.05)
    world.queue.unavailable = False
    await world.sweep()
    await world.until(Status.FAILED)


async def test_a_bug_in_one_delivery_stops_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.teller.trouble[HANGS] = "bug"
    await end_request(world.queue, "broken", HANGS)
    await end_request(world.queue, "fine")
    await world.sweep()
    await world.until(Status.FAILED, "fine")
    await eventually(lambda: "KeyError" in caplog.text)
    assert (await world.state("broken")).status is Status.IN_PROGRESS
    del world.teller.trouble[HANGS]
    world.clock.move(LEASE_S + 1)  # its lease ends
    await world.sweep()
    await world.until(Status.FAILED, "broken")


async def test_an_answer_that_is_lost_is_told_as_a_failure_and_stays_one(world: World) -> None:
    world.teller.answer_missing = 2
    world.teller.trouble[URL] = "the receiver answered 500"
    await end_request(world.queue, answer=b"1")
    await world.sweep()
    await eventually(lambda: world.counts)  # the failure is recorded, with the time of the next try
    del world.teller.trouble[URL]
    world.clock.move(15)
    await world.sweep()
    state = await world.until(Status.FAILED)
    assert state.webhook_status is WebhookStatus.SUCCEEDED
    assert [error.code for error in state.errors] == ["INTERNAL_SERVER_ERROR"]
    assert [one.status for one in world.teller.deliveries[2:]] == [Status.FAILED, Status.FAILED]
    assert world.teller.deliveries[2].errors == world.teller.deliveries[3].errors == state.errors
    assert world.counted() == ({"failed": 1, "delivered": 1}, Counter({"FAILED": 1}))


async def test_an_answer_that_is_stored_again_after_a_crash_is_not_lost(world: World) -> None:
    world.teller.answer_missing = 1
    await end_request(world.queue, answer=b"1")
    await world.sweep()
    assert (await world.until(Status.SUCCEEDED)).errors == ()


async def test_deliveries_go_on_when_they_are_started_again_after_a_bug(world: World) -> None:
    world.teller.hangs.add(HANGS)
    await end_request(world.queue, "hang", HANGS)
    world.deliveries = world.process("two")
    world.queue.is_broken = True
    run = asyncio.create_task(world.deliveries.run())
    await world.sweep()
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(run, 20)
    assert world.teller.cancelled == 1
    world.queue.is_broken = False
    async with running(world.deliveries):
        await end_request(world.queue, "fine")
        await world.sweep()
        await world.until(Status.FAILED, "fine")


async def test_draining_lets_deliveries_end_and_hands_the_rest_back(world: World) -> None:
    world.teller.hangs.add(HANGS)
    for number in range(60):
        await end_request(world.queue, f"hang-{number}", HANGS)
    await world.sweep()
    await eventually(lambda: world.teller.deliveries)
    await asyncio.sleep(0.05)
    deliveries_begun = len(world.teller.deliveries)
    await end_request(world.queue, "late")
    await asyncio.wait_for(world.deliveries.drain(0.05), 20)
    assert world.teller.cancelled == deliveries_begun
    world.teller.hangs.clear()
    world.deliveries.due("ws_1")
    await asyncio.sleep(0.05)
    assert len(world.teller.deliveries) == deliveries_begun, "takes no more"
    world.deliveries = world.process("two")
    async with running(world.deliveries):
        await world.sweep()  # at once: no lease has ended
        for id in (*(f"hang-{number}" for number in range(60)), "late"):
            await world.until(Status.FAILED, id)


async def test_draining_waits_for_a_delivery_that_ends_in_time(world: World) -> None:
    gate = asyncio.Event()
    tell = world.teller.tell

    async def slow(delivery: Delivery) -> str:
        await gate.wait()
        return await tell(delivery)

    world.teller.tell = slow  # type: ignore[method-assign]  # this receiver alone is slow
    await end_request(world.queue)
    await world.sweep()
    await asyncio.sleep(0.05)
    draining = asyncio.create_task(world.deliveries.drain(20))
    await asyncio.sleep(0.05)
    assert not draining.done()
    gate.set()
    await asyncio.wait_for(draining, 20)
    assert (await world.state()).status is Status.FAILED
