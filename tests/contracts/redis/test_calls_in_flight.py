"""Limits of calls in flight over several workers, on a real Redis with the test's own clock."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from policy.limits.counter_layout import places_field
from policy.limits.effective import Plan
from policy.limits.in_flight.places import FORGOTTEN_MS, SILENT_MS, Says, Word, calls_in_flight
from policy.limits.kinds import LimitType, Unit
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.scripts import Scripts, places_arguments
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import CLOCK_KEY, REDIS_CLOCK, RPM, START_MS, TPM, group, plan_of
from tests.redis_relay import relay_to
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.waiting import eventually

SECOND = LimitType.CONCURRENT_REQUEST, Unit.SECOND
MINUTE = LimitType.CONCURRENT_REQUEST, Unit.MINUTE
HOUR_MS = 3_600_000


class Machines:
    """Workers of several machines, and the Redis that they share."""

    def __init__(self, server: RedisServer, client: "redis.Redis") -> None:
        self.server = server
        self.client = client
        self.now_ms = START_MS
        self.workers: list[RedisCounters] = []
        client.flushall()
        self.step(0)

    def step(self, by_ms: int) -> None:
        """Let time pass, or step Redis' clock."""
        self.now_ms += by_ms
        self.client.set(CLOCK_KEY, self.now_ms)

    async def worker(self, name: str, url: str = "", deadline_s: float = 10, on_loss: str = "closed") -> "Worker":
        client = RedisClientOptions(deadline_s=deadline_s, stall_s=600)
        scripts = Scripts.load(REDIS_CLOCK)
        options = CountersOptions(on_loss=on_loss, local_refusals=False, scripts=scripts, client=client)
        counters = RedisCounters(url or self.server.url, name, options=options)
        await counters.start()
        self.workers.append(counters)
        return Worker(self, counters)

    def in_flight(self, plan: Plan, group: str = "g1") -> int:
        """The number of places that count."""
        stored: bytes | None = self.client.hget(plan.key, places_field(group))  # type: ignore[assignment]
        return calls_in_flight(stored, self.now_ms)


class Worker:
    """One worker and the calls that it has in flight."""

    def __init__(self, machines: Machines, counters: RedisCounters) -> None:
        self.machines = machines
        self.counters = counters
        self.calls: list[Taken] = []
        self.announced: dict[str, tuple[str, ...]] = {}
        counters.places.announce = lambda key, groups: self.announced.update({key: tuple(groups)})

    async def begin(self, plan: Plan, times: int = 1) -> int:
        """Begin calls at once. Return how many were admitted."""
        answers = await asyncio.gather(*(self.counters.take(plan, ESTIMATE) for _ in range(times)))
        admitted = [one for one in answers if isinstance(one, Taken)]
        self.calls += admitted
        return len(admitted)

    async def end(self, times: int = 1) -> None:
        for _ in range(times):
            place = self.calls.pop().place
            assert place is not None
            place.release()
        await self.heard()

    async def renew(self) -> None:
        """Renew, as the timer does."""
        self.counters.places.redis_is_back()
        await self.heard()

    async def heard(self) -> None:
        """Wait until Redis has run what this worker has said: it answers in order."""
        await self.counters.take(OTHER, ESTIMATE)


@pytest.fixture(params=REDIS_BINARIES)
async def machines(request: pytest.FixtureRequest) -> AsyncIterator[Machines]:
    with private_redis(binary=request.param) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        those = Machines(server, client)
        yield those
        for worker in those.workers:
            await worker.close()


ESTIMATE = Estimate(1)
OTHER = plan_of(group("other", {RPM: 1_000_000}))
FIVE = plan_of(group("g1", {SECOND: 5}))


async def test_at_most_the_threshold_is_in_flight_over_all_workers(machines: Machines) -> None:
    one, other = await machines.worker("a"), await machines.worker("b")
    assert await one.begin(FIVE, 3) == 3
    assert await other.begin(FIVE, 4) == 2
    assert await one.begin(FIVE) == 0
    await one.end(2)
    assert await other.begin(FIVE, 3) == 2
    assert machines.in_flight(FIVE) == 5
    await one.end(1)
    await other.end(4)
    assert machines.in_flight(FIVE) == 0


async def test_a_refusal_says_to_come_back_in_a_second(machines: Machines) -> None:
    worker = await machines.worker("a")
    plan = plan_of(group("g1", {SECOND: 1, RPM: 9, TPM: 1000}))
    assert await worker.begin(plan) == 1
    hit = await worker.counters.take(plan, ESTIMATE)
    assert isinstance(hit, LimitHit)
    assert (hit.bound.limit.type, hit.retry_after_s) == (LimitType.CONCURRENT_REQUEST, 1)
    assert hit.requests is not None
    assert (hit.requests.limit, hit.requests.remaining) == (9, 8), "x-ratelimit-* are of REQUEST, which lost nothing"


async def test_the_unit_decides_nothing(machines: Machines) -> None:
    worker = await machines.worker("a")
    assert await worker.begin(FIVE, 4) == 4
    assert await worker.begin(plan_of(group("g1", {MINUTE: 5})), 4) == 1
    machines.step(61_000)
    await worker.renew()
    assert await worker.begin(FIVE) == 0, "no window ends it"


async def test_calls_count_up_the_tree(machines: Machines) -> None:
    worker = await machines.worker("a")
    root = group("g1", {SECOND: 3})
    one, other = (plan_of(group(name, {MINUTE: 2}, "g1"), root) for name in ("g2", "g3"))
    assert await worker.begin(one, 3) == 2
    assert await worker.begin(other, 3) == 1
    assert (machines.in_flight(one, "g1"), machines.in_flight(one, "g2"), machines.in_flight(one, "g3")) == (3, 2, 1)
    await worker.end(3)
    assert (machines.in_flight(one, "g1"), machines.in_flight(one, "g2"), machines.in_flight(one, "g3")) == (0, 0, 0)


async def test_independent_groups_count_alone(machines: Machines) -> None:
    worker = await machines.worker("a")
    root = group("g1", {SECOND: 3}, cascading=False)
    child = plan_of(group("g2", {}, "g1", cascading=False), root)
    nearer = plan_of(group("g3", {MINUTE: 1}, "g1", cascading=False), root)
    assert await worker.begin(plan_of(root), 4) == 3
    assert await worker.begin(child, 4) == 3
    assert await worker.begin(nearer, 4) == 1, "the nearest limit binds, whatever its unit"


async def test_a_silent_worker_loses_its_places_after_a_minute_and_counts_again(machines: Machines) -> None:
    silent, other = await machines.worker("a"), await machines.worker("b")
    assert await silent.begin(FIVE, 5) == 5
    machines.step(SILENT_MS)
    assert await other.begin(FIVE) == 0
    machines.step(1)
    assert await other.begin(FIVE, 9) == 5
    await silent.renew()
    assert machines.in_flight(FIVE) == 10
    await other.end(5)
    assert await other.begin(FIVE) == 0, "the first one's calls count again"
    await silent.end(1)
    assert await other.begin(FIVE, 2) == 1


async def test_a_worker_that_returns_after_hours_counts_again(machines: Machines) -> None:
    silent, other = await machines.worker("a"), await machines.worker("b")
    assert await silent.begin(FIVE, 4) == 4
    machines.step(FORGOTTEN_MS + 1)
    assert await other.begin(FIVE) == 1
    await silent.renew()
    assert machines.in_flight(FIVE) == 5
    await silent.end(4)
    assert machines.in_flight(FIVE) == 1


async def test_its_supervisor_keeps_the_places_of_a_worker_that_is_silent(machines: Machines) -> None:
    silent, supervisor = await machines.worker("a"), await machines.worker("supervisor")
    assert await silent.begin(FIVE, 5) == 5
    for _ in range(3):
        machines.step(SILENT_MS)
        for key, groups in silent.announced.items():
            assert await supervisor.counters.places.tell("a", key, groups, Says.LIVES)
    assert machines.in_flight(FIVE) == 5


async def test_its_supervisor_returns_the_places_of_a_dead_worker(machines: Machines) -> None:
    dead, other = await machines.worker("a"), await machines.worker("b")
    assert await dead.begin(FIVE, 3) == 3
    assert await other.begin(FIVE, 2) == 2
    for key, groups in dead.announced.items():
        assert await other.counters.places.tell("a", key, groups, Says.GONE)
    assert machines.in_flight(FIVE) == 2


async def test_places_come_back_to_an_emptied_redis(machines: Machines) -> None:
    one, other = await machines.worker("a"), await machines.worker("b")
    assert await one.begin(FIVE, 2) == 2
    assert await other.begin(FIVE, 2) == 2
    machines.client.flushall()
    machines.step(0)
    await one.renew()
    await other.renew()
    assert machines.in_flight(FIVE) == 4
    assert await one.begin(FIVE, 3) == 1
    await one.end(3)
    assert machines.in_flight(FIVE) == 2


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -30_000, -1])
async def test_a_clock_that_steps_back_neither_frees_nor_keeps_places(machines: Machines, step_ms: int) -> None:
    one, other = await machines.worker("a"), await machines.worker("b")
    assert await one.begin(FIVE, 5) == 5
    machines.step(step_ms)
    assert await other.begin(FIVE) == 0
    machines.step(SILENT_MS)
    assert await other.begin(FIVE) == 0
    machines.step(1)
    assert await other.begin(FIVE) == 1, "a minute of silence is a minute, by the group's own time"


async def test_a_clock_that_steps_forward_frees_places_until_the_next_renewal(machines: Machines) -> None:
    one, other = await machines.worker("a"), await machines.worker("b")
    assert await one.begin(FIVE, 4) == 4
    machines.step(HOUR_MS)
    await one.renew()
    assert await other.begin(FIVE, 3) == 1
    machines.step(-HOUR_MS)
    assert machines.in_flight(FIVE) == 5


async def test_a_word_that_comes_late_changes_nothing(machines: Machines) -> None:
    worker = await machines.worker("a")
    assert await worker.begin(FIVE, 3) == 3
    await worker.renew()
    old = places_arguments("a", Word(Says.HOLDS, 1, 0), {"g1": 0})
    script = Scripts.load(REDIS_CLOCK).places
    assert machines.client.eval(script.text.decode(), 1, FIVE.key, *old) == 0
    assert machines.in_flight(FIVE) == 3


async def test_a_worker_says_where_it_may_hold_places_before_it_takes_one(machines: Machines) -> None:
    worker = await machines.worker("a")
    question = worker.counters.ask(FIVE, ESTIMATE)
    assert worker.announced == {FIVE.key: ("g1",)}
    assert machines.in_flight(FIVE) == 0
    assert isinstance(await question, Taken)
    await worker.counters.take(OTHER, ESTIMATE)
    assert list(worker.announced) == [FIVE.key], "a plan without such limits is not named"


async def test_callers_that_stop_waiting_hold_no_place(machines: Machines) -> None:
    worker = await machines.worker("a")
    takes = [asyncio.create_task(worker.counters.take(FIVE, ESTIMATE)) for _ in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for take in takes[:3]:
        take.cancel()
    await asyncio.gather(*takes, return_exceptions=True)
    await worker.heard()
    assert machines.in_flight(FIVE) == 1


async def test_what_is_given_back_frees_its_place(machines: Machines) -> None:
    worker = await machines.worker("a")
    plan = plan_of(group("g1", {SECOND: 1, RPM: 1, TPM: 100}))
    for _ in range(3):
        assert await worker.begin(plan) == 1
        worker.counters.give_back(worker.calls.pop())
        await worker.heard()


@pytest.mark.parametrize("have_run", [True, False], ids=["takes have run", "takes have not run yet"])
async def test_takes_that_are_lost_with_their_connection_leave_no_places(machines: Machines, have_run: bool) -> None:
    async with relay_to(machines.server.socket_path) as relay:
        worker = await machines.worker("a", relay.url, deadline_s=0.5)
        assert await worker.begin(FIVE, 2) == 2
        (relay.replies if have_run else relay.requests).clear()
        takes = (worker.counters.take(FIVE, ESTIMATE) for _ in range(3))
        outcomes = await asyncio.gather(*takes, return_exceptions=True)
        assert {type(one) for one in outcomes} == {CountersUnavailableError}
        assert machines.in_flight(FIVE) == (5 if have_run else 2)
        relay.cut()
        await eventually(lambda: not worker.counters.available)
        relay.replies.set()
        relay.requests.set()

        async def are_back() -> bool:
            return worker.counters.available and machines.in_flight(FIVE) == 2

        await eventually(are_back)
        await eventually(lambda: worker.counters.places.oldest_lost(FIVE.key) is None)
        assert await worker.begin(FIVE, 4) == 3
        await worker.end(5)
        assert machines.in_flight(FIVE) == 0


async def test_calls_that_a_worker_admits_alone_count_when_redis_is_back(machines: Machines) -> None:
    async with relay_to(machines.server.socket_path) as relay:
        worker = await machines.worker("a", relay.url, deadline_s=0.5, on_loss="local")
        assert await worker.begin(FIVE, 2) == 2
        relay.requests.clear()
        relay.cut()

        async def takes_alone() -> bool:
            await worker.begin(FIVE)
            return worker.counters.local_decisions > 0

        await eventually(takes_alone)
        await worker.begin(FIVE, 9)
        assert len(worker.calls) == 5, "it is alone: its share is all of it"
        relay.requests.set()

        async def all_count() -> bool:
            return machines.in_flight(FIVE) == 5

        await eventually(all_count)
        await eventually(lambda: worker.counters.available)
        await worker.end(5)
        assert machines.in_flight(FIVE) == 0


async def test_a_closed_worker_leaves_no_places(machines: Machines) -> None:
    worker = await machines.worker("a")
    assert await worker.begin(FIVE, 3) == 3
    await worker.counters.close()
    assert machines.in_flight(FIVE) == 0
    machines.workers.remove(worker.counters)
