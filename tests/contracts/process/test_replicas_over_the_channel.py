"""Workers ask for replicas over real sockets: both real ends of the channel, with a real switchboard behind them."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

import pytest

from policy.deployments import Deployment, Where
from policy.snapshot import ModelRow
from proxy.capacity.worker_capacity import Capacity, CapacityLimits
from proxy.edges.policy.supervisor.model_rows import ModelChange, ModelRows
from proxy.edges.process.channel import Channel, Message, SupervisorLink
from proxy.edges.process.replica_requests import ReplicaRequests, SupervisorFailedError, WaitingTimes
from proxy.edges.process.supervisor.replica_answers import ReplicaAnswers
from proxy.edges.process.supervisor.worker_processes import ASYNC_WORKER, SlotCallbacks, WorkerSlot
from proxy.errors import PolicyUnavailableError
from proxy.refusals import NoModelReplicaError, NoSuchModelError, NotRoutedError, ShedError
from proxy.replicas.replica_calls import CallEnded, ReplicaCall, Wanted
from tests.waiting import PATIENCE_S, eventually

BOTH_LOOPS = True
A = "http://a"
B = "http://b"
ENDED = CallEnded(ended_at_ms=5, request_id="r-ü", method="POST", path="/v1/x", status=499, duration_s=0.25)


class Machine:
    """A supervisor's end with its switchboard; workers connect by `worker`."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.slots: list[WorkerSlot] = []
        self.models = ModelRows()
        self.answers = ReplicaAnswers(self.models, lambda slot, message: self.slots[slot].send(message))
        self.models.listen(self.answers.models_changed)
        self.ended: list[tuple[str, str | None, CallEnded]] = []
        self.answers.switchboard.on_ended = lambda *ended: self.ended.append(ended)
        self.deploy(Deployment("d1", "ACTIVE", (A,)))

    async def worker(self, times: WaitingTimes | None = None) -> "Worker":
        ours, theirs = socket.socketpair()
        number = len(self.slots)
        slot = WorkerSlot(number, ASYNC_WORKER, {}, callbacks(self.answers))
        slot._channel = Channel(slot._on_message, lambda: self.answers.switchboard.worker_died(number))
        self.slots.append(slot)
        await slot._channel.open(ours)
        self._stack.callback(slot._channel.close)
        link = SupervisorLink(lambda: None)
        await link.open(theirs)
        self._stack.callback(link.close)
        return Worker(link, times or WaitingTimes())

    def deploy(self, *deployments: Deployment, production: str = "d1") -> None:
        row = ModelRow("m1", "w1", {one.id: one for one in deployments}, {"production": production})
        self.models.apply([ModelChange("m1", self.models.get("m1") if self.slots else None, row)])

    def figures(self) -> tuple[int, int, int]:
        """Count the calls in flight, queued and parked, over all deployments."""
        loads = self.answers.switchboard.loads()
        return (
            sum(load.in_flight for load in loads),
            sum(load.queued for load in loads),
            sum(load.parked for load in loads),
        )

    async def until(self, *figures: int) -> None:
        await eventually(lambda: self.figures() == figures, lambda: f"{figures}, but {self.figures()}")


class Worker:
    """A worker's end."""

    def __init__(self, link: SupervisorLink, times: WaitingTimes) -> None:
        self.link = link
        self.requests = ReplicaRequests(link, times)
        self.capacity = Capacity(CapacityLimits(max_parked=3, workspace_share=0.99))

    @contextmanager
    def call(self, turn: str = "g1", where: Where = Where()) -> Iterator[ReplicaCall]:  # noqa: B008 # frozen
        """A call that ends with the block, however that is left."""
        load = self.capacity.enter()
        load.claim("w1", turn)
        call = self.requests.begin(Wanted("w1", "m1", where, turn), load)
        try:
            yield call
        finally:
            call.end(ENDED)
            load.leave()

    async def hold(self, assignment: asyncio.Future[str], turn: str = "g1") -> None:
        """Keep a replica until cancelled."""
        with self.call(turn) as call:
            assignment.set_result(await call.assigned())
            await asyncio.Event().wait()


def callbacks(answers: ReplicaAnswers) -> SlotCallbacks:
    async def nothing() -> None: ...

    async def never() -> bool:
        return False

    return SlotCallbacks(lambda *_: None, lambda *_: None, never, nothing, answers.received)


@asynccontextmanager
async def running() -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        yield Machine(stack)
    await asyncio.sleep(0)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    async with running() as machine:
        yield machine


async def test_call_gets_a_replica_and_its_end_is_told(machine: Machine) -> None:
    worker = await machine.worker()
    with worker.call() as call:
        assert await call.assigned() == A
        assert machine.figures() == (1, 0, 0)
        call.answered()
        assert await call.assigned() == A, "the same call, put to it in another form"
        assert call.waited_s == 0
    call.end(ENDED)
    await machine.until(0, 0, 0)
    assert machine.ended == [("d1", A, ENDED)]


async def test_workers_share_a_replicas_bound(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1))
    one = await machine.worker()
    other = await machine.worker()
    with other.call() as queued:
        with one.call() as call:
            assert await call.assigned() == A
            assignment = asyncio.ensure_future(queued.assigned())
            await machine.until(1, 1, 0)
            assert other.capacity.parked == 0
        assert await assignment == A
        assert queued.waited_s > 0
    await machine.until(0, 0, 0)


async def test_parked_calls_start_when_policy_changes(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "SCALED_TO_ZERO"), Deployment("d2", "ACTIVE", (B,)))
    worker = await machine.worker()
    with worker.call() as call, worker.call() as other:
        assignments = [asyncio.ensure_future(one.assigned()) for one in (call, other)]
        await machine.until(0, 0, 2)
        await eventually(lambda: worker.capacity.parked == 2)
        machine.deploy(Deployment("d1", "SCALED_TO_ZERO"), Deployment("d2", "ACTIVE", (B,)), production="d2")
        assert await asyncio.gather(*assignments) == [B, B]
        assert worker.capacity.parked == 0


async def test_caller_that_leaves_while_parked_frees_his_place(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    worker = await machine.worker()
    leaver = asyncio.ensure_future(worker.hold(asyncio.get_running_loop().create_future()))
    await machine.until(0, 0, 1)
    leaver.cancel()
    await eventually(lambda: machine.ended)
    assert (worker.capacity.parked, worker.capacity.in_flight) == (0, 0)
    assert machine.ended == [("d1", None, ENDED)]


@pytest.mark.parametrize("turns", range(12))
async def test_caller_that_leaves_at_any_moment_gives_his_replica_back(machine: Machine, turns: int) -> None:
    """The caller may leave while the answer that names a replica is on its way to him."""
    machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1))
    worker = await machine.worker()
    leaver = asyncio.ensure_future(worker.hold(asyncio.get_running_loop().create_future()))
    for _ in range(turns):
        await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait([leaver])
    with worker.call() as call:
        assert await asyncio.wait_for(call.assigned(), PATIENCE_S) == A
    await machine.until(0, 0, 0)
    assert worker.capacity.in_flight == 0


async def test_dead_workers_replicas_go_to_the_others(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1))
    dead = await machine.worker()
    other = await machine.worker()
    assignment = asyncio.get_running_loop().create_future()
    holder = asyncio.ensure_future(dead.hold(assignment))
    assert await assignment == A
    with other.call() as call:
        assignment = asyncio.ensure_future(call.assigned())
        await machine.until(1, 1, 0)
        dead.link.close()
        assert await assignment == A
        assert machine.figures() == (1, 0, 0)
    holder.cancel()
    await asyncio.wait([holder])


async def test_unreachable_replica_is_replaced_by_another(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "ACTIVE", (A, B)))
    worker = await machine.worker()
    with worker.call() as call:
        first = await call.assigned()
        call.unreachable()
        second = await call.assigned()
        assert {first, second} == {A, B}
        call.unreachable()
        with pytest.raises(NoModelReplicaError):
            await call.assigned()
    await eventually(lambda: machine.ended)
    assert machine.ended == [("d1", None, ENDED)]


async def test_parking_ends_after_its_timeout(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    worker = await machine.worker(WaitingTimes(parked_s=0.02))
    with worker.call() as call:
        with pytest.raises(NotRoutedError):
            await call.assigned()
        assert worker.capacity.parked == 0
    await machine.until(0, 0, 0)


async def test_queueing_ends_after_its_timeout(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1))
    worker = await machine.worker(WaitingTimes(queued_s=0.02))
    with worker.call() as running, worker.call() as queued:
        await running.assigned()
        with pytest.raises(ShedError):
            await queued.assigned()
    await machine.until(0, 0, 0)


async def test_worker_without_room_for_parked_calls_sheds(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "SCALED_TO_ZERO"))
    worker = await machine.worker()
    assignments = [asyncio.get_running_loop().create_future() for _ in range(3)]
    parked = [asyncio.ensure_future(worker.hold(one)) for one in assignments]
    await eventually(lambda: worker.capacity.parked == 3)
    with worker.call("g2") as call, pytest.raises(ShedError):
        await call.assigned()
    await machine.until(0, 0, 3)
    machine.deploy(Deployment("d1", "ACTIVE", (A,)))
    assert await asyncio.gather(*assignments) == [A] * 3
    for task in parked:
        task.cancel()
    await asyncio.wait(parked)
    await machine.until(0, 0, 0)


@pytest.mark.parametrize(
    ("deployment", "where", "error"),
    [
        (Deployment("d1", "INACTIVE"), Where(), NoModelReplicaError),
        (Deployment("d1", "ACTIVE"), Where(), NoModelReplicaError),
        (Deployment("d1", "ACTIVE", (A,)), Where("staging"), NoSuchModelError),
        (Deployment("d1", "ACTIVE", (A,)), Where(None, "d9"), NoSuchModelError),
        (Deployment("d1", "ACTIVE", (A,), None, 0, 0), Where(), ShedError),
    ],
    ids=["inactive", "no replica", "no environment", "no deployment", "full"],
)
async def test_refusal_is_the_stages_error(
    machine: Machine, deployment: Deployment, where: Where, error: type[Exception]
) -> None:
    machine.deploy(deployment)
    worker = await machine.worker()
    with worker.call(where=where) as call, pytest.raises(error):
        await call.assigned()


async def test_missing_policy_is_not_a_missing_model() -> None:
    async with AsyncExitStack() as stack:
        machine = Machine(stack)
        machine.answers.switchboard._models = ModelRows()
        worker = await machine.worker()
        with worker.call() as call, pytest.raises(PolicyUnavailableError):
            await call.assigned()


async def test_bug_of_the_switchboard_fails_one_call(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await machine.worker()

    def fail(id: object, want: object, avoid: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(machine.answers.switchboard, "ask", fail)
        with worker.call() as call, pytest.raises(SupervisorFailedError):
            await call.assigned()
    assert "ZeroDivisionError" in caplog.text
    with worker.call() as call:
        assert await call.assigned() == A


@dataclass
class Crowd:
    """Many calls over several workers, and how many of them each replica has at once."""

    machine: Machine
    most: int
    chance: random.Random
    running: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    async def one(self, worker: Worker, turn: str) -> None:
        with worker.call(turn) as call:
            try:
                while self.chance.random() < 0.2:
                    await self._run(call)
                    call.unreachable()
                await self._run(call)
                call.reset() if self.chance.random() < 0.1 else call.answered()
                self.outcomes["served"] += 1
            except (NoModelReplicaError, NotRoutedError, ShedError) as error:
                self.outcomes[type(error).__name__] += 1

    async def _run(self, call: ReplicaCall) -> None:
        url = await call.assigned()
        self.running[url] += 1
        try:
            assert self.running[url] <= self.most
            await asyncio.sleep(self.chance.random() * 0.01)
        finally:
            self.running[url] -= 1


async def test_bound_of_a_replica_holds_over_workers_that_come_and_go(machine: Machine) -> None:
    crowd = Crowd(machine, 3, random.Random(7))
    listed = Deployment("d1", "SCALED_TO_ZERO", (), max_concurrency=crowd.most, max_queued=400)
    machine.deploy(listed)
    workers = [await machine.worker() for _ in range(4)]
    for worker in workers:
        worker.capacity.limits = CapacityLimits()
    calls = [asyncio.ensure_future(crowd.one(workers[n % 4], f"g{n % 7}")) for n in range(400)]
    await machine.until(0, 0, 400)
    for _ in range(12):
        urls = tuple(f"http://{name}" for name in "abcde" if crowd.chance.random() < 0.7)
        machine.deploy(replace(listed, status="ACTIVE" if urls else "SCALED_TO_ZERO", replicas=urls))
        for call in crowd.chance.sample(calls, 5):
            call.cancel()
        await asyncio.sleep(0.01)
    machine.deploy(replace(listed, status="ACTIVE", replicas=("http://a", "http://f", "http://g", "http://h")))
    results = await asyncio.gather(*calls, return_exceptions=True)
    leavers = sum(isinstance(result, asyncio.CancelledError) for result in results)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert crowd.outcomes == {"served": 400 - leavers}, "who was parked is served, or leaves"
    assert leavers > 0
    await machine.until(0, 0, 0)
    assert [(worker.capacity.parked, worker.capacity.in_flight) for worker in workers] == [(0, 0)] * 4


async def test_silent_supervisor_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.edges.process.replica_requests.ANSWER_TIMEOUT_S", 0.01)
    line = SilentLine()
    worker = Worker(line, WaitingTimes())  # type: ignore[arg-type] # all of the link that is used
    with worker.call() as call, pytest.raises(NoModelReplicaError):
        await call.assigned()
    await asyncio.sleep(0)
    with pytest.raises(PolicyUnavailableError):
        await worker.requests.wake(Wanted("w1", "m1", Where(), "g1"))
    assert [message["is"] for message in line.messages] == ["ask", "ended", "wake"]


async def test_replica_is_free_only_after_the_connection_to_it_is_closed() -> None:
    """`Transport.abort` closes in the next turn of the loop. Until then the model server sees a running call."""
    line = SilentLine()
    (ours, theirs) = socket.socketpair()
    worker = Worker(line, WaitingTimes())  # type: ignore[arg-type] # all of the link that is used
    transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, sock=ours)
    with theirs:
        theirs.setblocking(False)
        with worker.call() as call:
            asking = asyncio.ensure_future(call.assigned())
            await eventually(lambda: line.messages)
            line.on_replicas({"is": "replica", "number": 1, "url": A})
            await asking
            transport.abort()
        while line.messages[-1]["is"] != "ended":
            await asyncio.sleep(0)
        assert theirs.recv(1) == b""


async def test_call_that_never_asked_says_nothing() -> None:
    line = SilentLine()
    worker = Worker(line, WaitingTimes())  # type: ignore[arg-type] # all of the link that is used
    with worker.call():
        pass
    assert line.messages == []


class Waker:
    """Records what is to be woken; `ok` is its answer."""

    def __init__(self, ok: bool) -> None:
        self.ok = ok
        self.woken: list[tuple[str, str]] = []

    async def wake(self, model_id: str, deployment_id: str) -> bool:
        self.woken.append((model_id, deployment_id))
        return self.ok


class SlowWaker(Waker):
    """Answers when `open` is set."""

    def __init__(self) -> None:
        super().__init__(True)
        self.open = asyncio.Event()

    async def wake(self, model_id: str, deployment_id: str) -> bool:
        await super().wake(model_id, deployment_id)
        await self.open.wait()
        return True


async def test_wakes_of_one_deployment_share_a_report_that_is_under_way(machine: Machine) -> None:
    """A flood of wakes by one tenant takes no more of the channel to control than one wake."""
    machine.deploy(Deployment("d1", "SCALED_TO_ZERO"), Deployment("d2", "SCALED_TO_ZERO"))
    worker = await machine.worker()
    other = await machine.worker()
    machine.answers.waker = waker = SlowWaker()
    want = Wanted("w1", "m1", Where(), "g1")
    waking = [asyncio.ensure_future(one.requests.wake(want)) for one in (worker, other) for _ in range(50)]
    elsewhere = asyncio.ensure_future(worker.requests.wake(Wanted("w1", "m1", Where(deployment_id="d2"), "g2")))
    await eventually(lambda: ("m1", "d2") in waker.woken)
    waker.open.set()
    await asyncio.gather(*waking, elsewhere)
    assert sorted(waker.woken) == [("m1", "d1"), ("m1", "d2")]
    await worker.requests.wake(want)
    assert waker.woken[2:] == [("m1", "d1")], "a later one is told anew"


async def test_wake_names_the_deployment_to_control(machine: Machine) -> None:
    worker = await machine.worker()
    machine.answers.waker = waker = Waker(True)
    await worker.requests.wake(Wanted("w1", "m1", Where("Production"), "g1"))
    assert waker.woken == [("m1", "d1")]
    waker.ok = False
    with pytest.raises(PolicyUnavailableError):
        await worker.requests.wake(Wanted("w1", "m1", Where(), "g1"))
    with pytest.raises(NoSuchModelError):
        await worker.requests.wake(Wanted("w2", "m1", Where(), "g1"))


class SilentLine:
    """A channel whose other end says nothing."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.on_replicas = self.messages.append

    def send(self, message: Message, within_s: float = 0.0) -> None:
        self.messages.append(message)


async def test_call_whose_standing_is_unknown_is_answered_when_it_is_told() -> None:
    """The worker is about to stop, and cannot know yet whether this call is parked (500) or waits its turn (529)."""
    line = SilentLine()
    worker = Worker(line, WaitingTimes())  # type: ignore[arg-type] # all of the link that is used
    with worker.call() as call:
        asking = asyncio.ensure_future(call.assigned())
        await eventually(lambda: line.messages)
        worker.requests.end_waits()
        line.on_replicas({"is": "waits", "number": 1, "for": "replica"})
        with pytest.raises(NotRoutedError):
            await asking


async def test_worker_that_is_about_to_stop_answers_all_who_wait(machine: Machine) -> None:
    """Calls that begin to wait afterwards are answered too. A call with a replica keeps it."""
    machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1), Deployment("d2", "SCALED_TO_ZERO"))
    worker = await machine.worker()
    parking = Where(deployment_id="d2")
    with worker.call() as running, worker.call() as queued, worker.call(where=parking) as parked:
        assert await running.assigned() == A
        assignments = [asyncio.ensure_future(call.assigned()) for call in (queued, parked)]
        await machine.until(1, 1, 1)
        worker.requests.end_waits()
        shed, not_routed = await asyncio.gather(*assignments, return_exceptions=True)
        assert isinstance(shed, ShedError)
        assert ("retry-after", "1") in shed.headers
        assert isinstance(not_routed, NotRoutedError)
        with worker.call() as late, pytest.raises(ShedError):
            await late.assigned()
        with worker.call(where=parking) as late, pytest.raises(NotRoutedError):
            await late.assigned()
        assert machine.figures()[0] == 1
    await machine.until(0, 0, 0)
    assert worker.capacity.parked == 0
    with worker.call() as call:
        assert await call.assigned() == A


async def test_background_call_waits_without_a_timer_and_learns_what_it_waits_for(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "INACTIVE"))
    worker = await machine.worker(WaitingTimes(0.01, 0.01))
    notices: list[bool] = []
    call = worker.requests.begin_background(Wanted("w1", "m1", Where(None, "d1"), "b"), notices.append)
    assignment = asyncio.ensure_future(call.assigned())
    await machine.until(0, 0, 1)
    with (await machine.worker()).call() as other:  # whose wait for room has a bound that no slow machine meets
        machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1))
        assert await assignment == A
        queued = asyncio.ensure_future(other.assigned())
        await machine.until(1, 1, 0)
        call.withdraw()
        assert await queued == A
    await machine.until(0, 0, 0)
    assert notices == [False]
    assert [ended for _, _, ended in machine.ended] == [ENDED], "a call that was withdrawn leaves no line"


async def test_background_calls_of_a_worker_come_after_the_calls_of_all_workers(machine: Machine) -> None:
    machine.deploy(Deployment("d1", "ACTIVE", (A,), max_concurrency=1))
    one = await machine.worker()
    other = await machine.worker()
    notices: list[bool] = []
    call = one.requests.begin_background(Wanted("w1", "m1", Where(None, "d1"), "b"), notices.append)
    with other.call() as first:
        await first.assigned()
        assignment = asyncio.ensure_future(call.assigned())
        await machine.until(1, 1, 0)
        with other.call() as second:
            then = asyncio.ensure_future(second.assigned())
            await machine.until(1, 2, 0)
            first.end(ENDED)
            assert await then == A
            assert not assignment.done()
        assert await assignment == A
    call.end(ENDED)
    await machine.until(0, 0, 0)
    assert notices == [True]
