"""The real scripts, with the test's own clock, compared with the queue in memory.

Several holders, dead ones, late ones, duplicates and repeats; priorities, retries, webhooks, expiries, deleted
deployments, and steps of time that aim at what is due next. After every step all that can be seen is compared, and the
counters and streams in Redis are recounted. In the end nothing may be left.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from proxy.async_requests.queues import KEPT_S, LEASE_S, ParkedRequestError, QueueFullError, RequestUnknownError
from proxy.async_requests.requests import (
    AttemptRef,
    Delivery,
    DeploymentRef,
    Failed,
    NewRequest,
    Outcome,
    RetryRules,
    Submission,
    Succeeded,
    Work,
)
from proxy.async_requests.states import Phase, Status
from proxy.edges.redis.async_queue import records
from proxy.edges.redis.async_queue.client import keys_of
from tests.contracts.async_queue.queue_world import (
    ERROR,
    HOOK,
    PIECE_BYTES,
    STEP_MS,
    TIMEOUT_S,
    WS,
    World,
    again,
    fake_world,
    leftovers,
    redis_world,
)
from tests.fakes.async_queue import FakeAsyncQueue
from tests.redis_server import REDIS_BINARIES, private_redis

DEPLOYMENTS = (DeploymentRef(WS, "mdl1", "dep1"), DeploymentRef(WS, "mdl1", "dep2"))
HOLDERS = st.sampled_from("abc")
LEASE_STEPS = int(LEASE_S * 1000) // STEP_MS
STEPS = st.one_of(st.integers(0, 30), st.sampled_from([LEASE_STEPS - 1, int(TIMEOUT_S * 1000) // STEP_MS]))
CHUNKS = st.binary(max_size=4) | st.just(b"x" * 600)
OUTCOMES = st.one_of(
    st.builds(Succeeded, st.sampled_from([0, 9]), st.integers(0, 2), st.booleans()),
    st.just(Failed(ERROR)),
    st.builds(again, st.sampled_from([0, 500, 5000])),
)
SUBMISSIONS = st.builds(
    Submission,
    st.binary(min_size=1, max_size=5) | st.just(b"x" * 400),
    st.sampled_from([HOOK, None]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([10, 20, 1000]),
    st.builds(RetryRules, st.integers(1, 3), st.just(0), st.just(0)),
)
FINAL = (Status.SUCCEEDED, Status.FAILED, Status.EXPIRED, Status.CANCELED, Status.WEBHOOK_FAILED)
Result = TypeVar("Result")


class Machine(RuleBasedStateMachine):
    """`url`, `own` and `loop` are set by `machine`."""

    url: str
    own: "redis.Redis"
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.real: World = redis_world(self.url, self.own)
        self.model: World = fake_world()
        assert isinstance(self.model.queue, FakeAsyncQueue)
        self.fake: FakeAsyncQueue = self.model.queue
        self.requests: list[NewRequest] = []
        self.attempts: list[AttemptRef] = []
        self.deliveries: list[Delivery] = []
        self.finals: dict[str, Status] = {}
        self.repeatable: tuple[Any, ...] | None = None
        """The last acknowledged write, as the script of that name and its arguments."""

    def both(self, work: "Any") -> Any:
        """Do the same on both queues; return the result, which must be equal."""

        async def outcome(world: World) -> Any:
            try:
                return await work(world.queue)
            except (ParkedRequestError, QueueFullError, RequestUnknownError) as error:
                return type(error)

        expected = self.run(outcome(self.model))
        result = self.run(outcome(self.real))
        assert result == expected
        return result

    def run(self, work: "Coroutine[Any, Any, Result]") -> Result:
        return self.loop.run_until_complete(work)

    # --- callers ---

    @initialize(submissions=st.lists(SUBMISSIONS, max_size=5))
    def submit_some(self, submissions: list[Submission]) -> None:
        for submission in submissions:
            self.submit(submission, DEPLOYMENTS[0], False)

    @rule(submission=SUBMISSIONS, deployment=st.sampled_from(DEPLOYMENTS), parks=st.booleans())
    def submit(self, submission: Submission, deployment: DeploymentRef, parks: bool) -> None:
        request = NewRequest(f"req{len(self.requests)}", deployment, "/predict", submission)
        self.requests.append(request)
        self.both(lambda queue: queue.submit(request, parks))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.requests))
    def submit_again(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.both(lambda queue: queue.submit(request, False))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.requests))
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests[-5:]))
        self.both(lambda queue: queue.cancel(WS, request.id))

    # --- time ---

    @rule(steps=STEPS)
    def wait(self, steps: int) -> None:
        for world in (self.model, self.real):
            world.advance(steps * STEP_MS)

    @rule(deployment=st.sampled_from(DEPLOYMENTS), holder=HOLDERS)
    def holders_die(self, deployment: DeploymentRef, holder: str) -> None:
        """Let all holders' leases end; then another one begins."""
        self.wait(LEASE_STEPS)
        self.sweep()
        self.start(deployment, holder, [])

    @rule(before=st.booleans())
    def wait_for_what_is_due(self, before: bool) -> None:
        due_in_ms = self.sweep().next_due_in_ms
        if due_in_ms is not None and due_in_ms > 0:
            self.wait(due_in_ms // STEP_MS - before)

    @rule()
    def sweep_up(self) -> None:
        self.sweep()

    def sweep(self) -> Work:
        expected, result = (self.run(world.queue.sweep(WS)) for world in (self.model, self.real))
        assert Counter(result.ended) == Counter(expected.ended)
        assert result.uncounted == expected.uncounted
        assert (result.startable, result.deliveries) == (expected.startable, expected.deliveries)
        assert result.stored_answer_bytes == expected.stored_answer_bytes
        assert result.next_due_in_ms == expected.next_due_in_ms
        return result

    # --- attempts ---

    @rule(deployment=st.sampled_from(DEPLOYMENTS), ready=st.booleans())
    def report_standing(self, deployment: DeploymentRef, ready: bool) -> None:
        self.both(lambda queue: queue.report_standing(deployment, ready))

    @rule(deployment=st.sampled_from(DEPLOYMENTS), holder=HOLDERS, chunks=st.lists(CHUNKS, max_size=2))
    def start(self, deployment: DeploymentRef, holder: str, chunks: list[bytes]) -> None:
        if self._several_resumed_at_once_are_late():
            self.sweep()
        attempt = self.run(self.real.queue.start(deployment, holder))
        self.fake.preferred = attempt.ref.request_id if attempt else ""
        assert attempt == self.run(self.fake.start(deployment, holder))
        if attempt is not None:
            self.attempts.append(attempt.ref)
            for number, chunk in enumerate(chunks):
                self.store_one(attempt.ref, number, chunk)

    @rule(data=st.data())
    @precondition(lambda self: bool(self.attempts))
    def renew(self, data: st.DataObject) -> None:
        refs = data.draw(st.lists(st.sampled_from(self.attempts[-6:]), min_size=1, max_size=4, unique=True))
        self.both(lambda queue: queue.renew(refs))

    @rule(data=st.data(), number=st.integers(0, 2), chunk=CHUNKS)
    @precondition(lambda self: bool(self.attempts))
    def store(self, data: st.DataObject, number: int, chunk: bytes) -> None:
        self.store_one(self._attempt(data), number, chunk)

    def store_one(self, ref: AttemptRef, number: int, chunk: bytes) -> None:
        self.both(lambda queue: queue.store(ref, number, chunk))

    @rule(data=st.data(), outcome=OUTCOMES)
    @precondition(lambda self: bool(self.attempts))
    def finish(self, data: st.DataObject, outcome: Outcome) -> None:
        ref = self._attempt(data)
        if self.both(lambda queue: queue.finish(ref, outcome)) is True:
            arguments = *records.attempt_arguments(ref), *records.outcome_arguments(outcome)
            self.repeatable = ("finish", int(TIMEOUT_S * 1000), 1, *arguments)

    def _attempt(self, data: st.DataObject) -> AttemptRef:
        """A late one, one that is held, or one that another worker claims to hold."""
        ref = data.draw(st.sampled_from(self.attempts[-4:]))
        return data.draw(st.sampled_from([ref, ref, ref, replace(ref, holder="a"), replace(ref, holder="b")]))

    @rule(deployment=st.sampled_from(DEPLOYMENTS))
    def fail_deployment(self, deployment: DeploymentRef) -> None:
        self.both(lambda queue: queue.fail_deployment(deployment))

    # --- deliveries ---

    @rule(holder=HOLDERS)
    def next_delivery(self, holder: str) -> None:
        delivery = self.run(self.real.queue.next_delivery(WS, holder))
        self.fake.preferred = delivery.request_id if delivery else ""
        assert delivery == self.run(self.fake.next_delivery(WS, holder))
        if delivery is not None:
            self.deliveries.append(delivery)
            for number in range(3):
                self.both(lambda queue, number=number: queue.chunk(delivery, number))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.deliveries))
    def renew_deliveries(self, data: st.DataObject) -> None:
        deliveries = data.draw(st.lists(st.sampled_from(self.deliveries[-4:]), min_size=1, max_size=3, unique_by=id))
        self.both(lambda queue: queue.renew_deliveries(deliveries))

    @rule(data=st.data(), again_in_ms=st.sampled_from([None, 0, 1500, 15_000]), accepted=st.booleans())
    @precondition(lambda self: bool(self.deliveries))
    def end_delivery(self, data: st.DataObject, again_in_ms: int | None, accepted: bool) -> None:
        delivery = data.draw(st.sampled_from(self.deliveries[-4:]))
        if accepted:
            is_still_held = self.both(lambda queue: queue.delivered(delivery))
        else:
            is_still_held = self.both(lambda queue: queue.undelivered(delivery, again_in_ms))
        if is_still_held:
            what = "deliver" if accepted else "give up" if again_in_ms is None else "again"
            self.repeatable = ("end_delivery", 1, *records.delivery_arguments(delivery), what, again_in_ms or 0)

    @rule()
    @precondition(lambda self: self.repeatable is not None)
    def repeat_what_redis_has_not_lost(self) -> None:
        """Repeat the last write: it changes nothing, whatever happened since."""
        assert self.repeatable is not None
        assert self.real.client is not None
        name, *arguments = self.repeatable
        before = self._everything()
        self.run(self.real.client.commands.run(name, keys_of(WS), *arguments))
        assert self._everything() == before

    # --- what holds after every step ---

    @invariant()
    def all_that_can_be_seen_is_equal(self) -> None:
        for request in self.requests:
            state = self.both(lambda queue, id=request.id: queue.state(WS, id))
            status = None if state is None else state.status
            assert self.finals.get(request.id) in (None, status) or status is None, "it ended twice"
            if status in FINAL:
                self.finals[request.id] = status
        for deployment in DEPLOYMENTS:
            self.both(lambda queue, deployment=deployment: queue.figures(deployment))
        expected, result = (self.run(world.queue.overview()) for world in (self.model, self.real))
        assert sorted(result, key=lambda one: one.deployment) == expected

    @invariant()
    def counters_and_streams_are_true(self) -> None:
        entries = [one for one in self.fake.entries.values() if one.phase is not Phase.ENDED]
        queued = sum(len(one.request.submission.model_input) for one in entries if one.phase is Phase.QUEUED)
        answers = sum(one.stored_bytes for one in entries)
        hooks = sum(one.phase is Phase.DELIVERING and not one.holder and one.due_ms is None for one in entries)
        totals = {b"queued": queued, b"answers": answers, b"hooks": hooks}
        key = keys_of(WS)
        stored_totals: Any = self.own.hgetall(key + "totals")
        stored_totals.pop(b"grows", None)  # a request, no figure
        assert {name: int(value) for name, value in stored_totals.items()} == {k: v for k, v in totals.items() if v}
        counts_by_holder = Counter(one.holder for one in entries if one.holder)
        pending: Counter[str] = Counter()
        for stream in [*self.own.keys(key + "q:*"), *self.own.keys(key + "hooks")]:
            for consumer in self.own.xinfo_consumers(stream, "w"):
                assert consumer["pending"], "a consumer without entries"
                pending[consumer["name"].decode()] += consumer["pending"]
        assert pending == counts_by_holder
        for deployment in {one.deployment for one in entries}:
            assert self.own.ttl(f"{key}d:{deployment.deployment_id}") == -1, "its figures would expire"
        inputs: Any = self.own.keys(key + "i:*")
        assert len(inputs) == len(entries)
        undecided = [one for one in entries if one.phase is not Phase.DELIVERING]
        large = [one for one in undecided if len(one.request.submission.model_input) > PIECE_BYTES]
        pieces: Any = self.own.keys(key + "b:*")
        assert {name.decode() for name in pieces} == {f"{key}b:{one.request.id}" for one in large}

    def teardown(self) -> None:
        for _ in range(100):
            if all(one.phase is Phase.ENDED for one in self.fake.entries.values()):
                break
            self.wait(100)
            self.sweep()
            for deployment in DEPLOYMENTS:
                self.fail_deployment(deployment)
            while self.deliver_one():
                pass
        else:
            pytest.fail("it does not end")
        self.all_that_can_be_seen_is_equal()
        self.counters_and_streams_are_true()
        self.sweep()
        self.wait(int(KEPT_S * 1000) // STEP_MS)
        self.sweep()
        assert leftovers(self.own) == []
        for request in self.requests:
            assert self.both(lambda queue, id=request.id: queue.state(WS, id)) is None
        self.run(self.real.close())

    def deliver_one(self) -> bool:
        count = len(self.deliveries)
        self.next_delivery("z")
        if len(self.deliveries) > count:
            assert self.both(lambda queue: queue.delivered(self.deliveries[-1]))
        return len(self.deliveries) > count

    def _several_resumed_at_once_are_late(self) -> bool:
        """Return whether it is open which of several late requests a start would find out before it begins one."""
        paused = [one for one in self.fake.entries.values() if one.phase is Phase.PAUSED and one.due_ms is None]
        shared = Counter(one.place for one in paused)
        return any(shared[one.place] > 1 and self.real.now_ms >= one.deadline_ms for one in paused)

    def _everything(self) -> dict[bytes, bytes | None]:
        """All keys, except when leases end and keys expire."""
        keys: Any = self.own.keys("tga:{*")
        return {key: self.own.dump(key) for key in keys if self.own.type(key) != b"stream"}


@pytest.fixture(
    params=[*REDIS_BINARIES[:1], *(pytest.param(one, marks=pytest.mark.soak) for one in REDIS_BINARIES[1:])]
)
def machine(request: pytest.FixtureRequest) -> Iterator[type[Machine]]:
    with (
        private_redis(binary=request.param) as server,
        redis.Redis(unix_socket_path=str(server.socket_path)) as own,
        asyncio.Runner() as runner,
    ):
        yield type("BoundMachine", (Machine,), {"url": server.url, "own": own, "loop": runner.get_loop()})


def explore(machine: type[Machine], examples: int, steps: int) -> None:
    thorough = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=thorough)


def test_scripts_do_what_the_queue_in_memory_does(machine: type[Machine]) -> None:
    explore(machine, examples=40, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_scripts_do_what_the_queue_in_memory_does_in_long_runs(machine: type[Machine]) -> None:
    explore(machine, examples=3_000, steps=60)
