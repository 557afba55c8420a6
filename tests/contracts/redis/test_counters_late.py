"""A take whose reply is late or lost is returned, requests and tokens, exactly once.

A real Redis: stopped under callers, behind a relay that holds requests or replies back and cuts connections, or with a
clock of the test's own that is stepped.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import redis

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from policy.limits.tiers import Tier, tier_plan
from policy.limits.windows import DAY_MS
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.scripts import Scripts
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import CLOCK_KEY, REDIS_CLOCK, RPD, RPM, START_MS, TPM, group, plan_of, simple
from tests.redis_counters import pending_settlements
from tests.redis_relay import Relay, relay_to
from tests.redis_server import RedisServer, private_redis
from tests.waiting import PATIENCE_S, eventually

FOREVER_S = 600.0
MERGED = 9
SINGLE = 2
"""Numbers of requests of one tick; from three on they travel as one command."""
SCRIPTS = Scripts.load(REDIS_CLOCK)
QUICK = RedisClientOptions(deadline_s=0.5, stall_s=FOREVER_S)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with private_redis() as running:
        yield running


@pytest.fixture
def own(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        client.flushall()
        client.set(CLOCK_KEY, START_MS)
        for script in (SCRIPTS.take, SCRIPTS.settle):
            client.script_load(script.text.decode())
        yield client


@pytest.fixture
async def relay(server: RedisServer, own: "redis.Redis") -> AsyncIterator[Relay]:
    async with relay_to(server.socket_path) as running:
        yield running


@pytest.fixture
async def late(relay: Relay) -> AsyncIterator[RedisCounters]:
    """A worker behind the relay, with the test's clock."""
    options = CountersOptions(local_refusals=False, scripts=SCRIPTS, client=QUICK)
    new_counters = RedisCounters(relay.url, "late", options=options)
    await new_counters.start()
    yield new_counters
    relay.requests.set()
    relay.replies.set()
    await new_counters.close()


@pytest.fixture
async def other(server: RedisServer, own: "redis.Redis") -> AsyncIterator[RedisCounters]:
    """A worker that nothing disturbs, with the test's clock."""
    patient = RedisClientOptions(deadline_s=PATIENCE_S)
    options = CountersOptions(local_refusals=False, scripts=SCRIPTS, client=patient)
    new_counters = RedisCounters(server.url, "other", options=options)
    await new_counters.start()
    yield new_counters
    await new_counters.close()


async def outcomes(counters: RedisCounters, plan: Plan, calls: int, *further: Plan) -> list[type]:
    takes = (counters.take(plan, Estimate(10), further) for _ in range(calls))
    return [type(answer) for answer in await asyncio.gather(*takes, return_exceptions=True)]


async def taken(counters: RedisCounters, plan: Plan, estimate: int = 0) -> Taken:
    answer = await counters.take(plan, Estimate(estimate))
    assert isinstance(answer, Taken), answer
    return answer


async def left(counters: RedisCounters, plan: Plan) -> tuple[int, ...]:
    """The remaining requests and tokens, as a call reports them that is returned at once."""
    granted = await taken(counters, plan)
    counters.give_back(granted)
    await eventually(lambda: pending_settlements(counters) == 0)
    standings = (granted.requests, granted.tokens)
    requests, tokens = (standing.remaining if standing is not None else 0 for standing in standings)
    return requests + 1, tokens


def all_settled(counters: RedisCounters) -> bool:
    connection = counters._nodes.of(0).client._connection
    has_heard_all = connection is not None and not connection.pending and not counters._nodes.of(0).client._queue
    return (
        has_heard_all and counters.available and pending_settlements(counters) == 0 and not counters._takes._lost_takes
    )


TREE = plan_of(group("low", {RPM: 90, RPD: 50}, "top"), group("top", {TPM: 1000}))
"""A tree whose lower group has only REQUEST limits, so only the root has tokens to settle."""
PLANS = {"requests only": simple(rpm=70, rpd=50), "all kinds": simple(rps=60, rpd=50, tpm=1000, tpd=1000), "tree": TREE}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]


@pytest.mark.parametrize("calls", [SINGLE, MERGED])
async def test_late_redis_reply_returns_the_reservation(
    relay: Relay, late: RedisCounters, other: RedisCounters, plan: Plan, calls: int
) -> None:
    await taken(late, plan)
    before = await left(other, plan)
    relay.replies.clear()
    assert set(await outcomes(late, plan, calls)) == {CountersUnavailableError}
    assert relay.held_replies
    assert (await left(other, plan))[0] == before[0] - calls, "they have run"
    relay.replies.set()
    await eventually(lambda: all_settled(late))
    assert await left(other, plan) == before


@pytest.mark.parametrize("calls", [SINGLE, MERGED])
@pytest.mark.parametrize("ran", [True, False], ids=["they ran", "they have not run yet"])
async def test_lost_connection_returns_the_reservation_once(
    relay: Relay, late: RedisCounters, other: RedisCounters, plan: Plan, calls: int, ran: bool
) -> None:
    await taken(late, plan)
    before = await left(other, plan)
    (relay.replies if ran else relay.requests).clear()
    assert set(await outcomes(late, plan, calls)) == {CountersUnavailableError}
    if ran:
        await eventually(lambda: relay.held_replies > 0)
        assert (await left(other, plan))[0] == before[0] - calls
    relay.cut()
    await eventually(lambda: not late.available)
    relay.replies.set()
    relay.requests.set()
    await eventually(lambda: all_settled(late))
    for _ in range(2):
        assert await left(other, plan) == before
        relay.cut()  # who reconnects once more gives nothing back once more
        await eventually(lambda: not late.available)
        await eventually(lambda: all_settled(late))
    assert (await outcomes(late, plan, 70)).count(Taken) == before[0]


async def test_take_that_arrives_after_its_revocation_counts_nothing(
    own: "redis.Redis", relay: Relay, late: RedisCounters, other: RedisCounters, plan: Plan
) -> None:
    """The worker reconnects before the server reads what was sent on the lost connection."""
    relay.requests.clear()
    assert set(await outcomes(late, plan, MERGED)) == {CountersUnavailableError}  # the first one: it has no deadline
    on_its_way = relay.requests
    relay.requests = asyncio.Event()
    relay.requests.set()
    relay.cut()
    await eventually(lambda: not late.available)
    await eventually(lambda: all_settled(late))
    assert (await left(late, plan))[0] == 50, "its next take leaves the revocation standing"
    calls = own.info("commandstats")["cmdstat_evalsha"]["calls"]
    on_its_way.set()
    await eventually(lambda: own.info("commandstats")["cmdstat_evalsha"]["calls"] > calls)
    assert (await left(other, plan))[0] == 50


async def test_take_past_its_deadline_never_runs(
    own: "redis.Redis", relay: Relay, late: RedisCounters, other: RedisCounters, plan: Plan
) -> None:
    before = await left(late, plan)
    relay.requests.clear()
    assert set(await outcomes(late, plan, MERGED)) == {CountersUnavailableError}
    own.set(CLOCK_KEY, START_MS + 1_500)
    relay.replies.clear()
    relay.requests.set()
    await eventually(lambda: relay.held_replies > 0)
    assert await left(other, plan) == before, "nothing was spent, not even until the give-back"
    relay.replies.set()
    await eventually(lambda: all_settled(late))
    assert await left(other, plan) == before


async def test_returned_request_of_yesterday_does_not_reduce_todays_count(
    own: "redis.Redis", relay: Relay, late: RedisCounters, other: RedisCounters
) -> None:
    plan = simple(rpd=50)
    midnight_ms = START_MS - START_MS % DAY_MS + DAY_MS
    own.set(CLOCK_KEY, midnight_ms - 1)
    relay.replies.clear()
    assert set(await outcomes(late, plan, SINGLE)) == {CountersUnavailableError}
    own.set(CLOCK_KEY, midnight_ms)
    assert await outcomes(other, plan, 4) == [Taken] * 4
    relay.cut()
    await eventually(lambda: not late.available)
    relay.replies.set()
    await eventually(lambda: all_settled(late))
    assert (await left(other, plan))[0] == 46


async def test_late_redis_reply_returns_the_tier_too(relay: Relay, late: RedisCounters, other: RedisCounters) -> None:
    tier = tier_plan("ws", Tier(15, 1000))
    plan = simple(rpm=50)
    await taken(late, plan)
    relay.replies.clear()
    assert set(await outcomes(late, plan, SINGLE, tier)) == {CountersUnavailableError}
    relay.replies.set()
    await eventually(lambda: all_settled(late))
    assert await left(other, tier) == (15, 1000)
    assert (await left(other, plan))[0] == 49


async def test_reservation_returned_before_dispatch_frees_capacity(late: RedisCounters, plan: Plan) -> None:
    before = await left(late, plan)
    for _ in range(3):
        answers = [await late.take(plan, Estimate(10)) for _ in range(60)]
        admissions = [answer for answer in answers if isinstance(answer, Taken)]
        assert len(admissions) == 50
        for one in admissions:
            late.give_back(one)
        await eventually(lambda: pending_settlements(late) == 0)
    assert await left(late, plan) == before


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000, 100, -100])
async def test_stepped_redis_clock_refuses_no_call(
    own: "redis.Redis", late: RedisCounters, plan: Plan, step_ms: int
) -> None:
    """A fail-over to a server with another clock looks like this. The first reply corrects the estimate."""
    await taken(late, plan)
    own.set(CLOCK_KEY, START_MS + step_ms)
    assert await outcomes(late, plan, 1) == [Taken]
    assert await outcomes(late, plan, MERGED) == [Taken] * MERGED
    calls = own.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert await outcomes(late, plan, 1) == [Taken]
    assert own.info("commandstats")["cmdstat_evalsha"]["calls"] == calls + 1, "the new time is known"


async def test_lost_takes_of_one_key_are_told_apart(
    relay: Relay, late: RedisCounters, other: RedisCounters, plan: Plan
) -> None:
    """Some takes were answered, some ran unanswered, some never ran."""
    assert await outcomes(late, plan, 5) == [Taken] * 5
    relay.replies.clear()
    ran = [asyncio.ensure_future(outcomes(late, plan, calls)) for calls in (1, 2)]
    await eventually(lambda: relay.held_replies > 0)
    relay.requests.clear()
    not_run = asyncio.ensure_future(outcomes(late, plan, 4))
    assert {outcome for one in (*ran, not_run) for outcome in await one} == {CountersUnavailableError}
    relay.cut()
    await eventually(lambda: not late.available)
    relay.requests.set()
    relay.replies.set()
    await eventually(lambda: all_settled(late))
    assert (await left(other, plan))[0] == 45


# Redis itself stopped, with the deadlines of production and its own clock.


@pytest.mark.parametrize(
    ("callers", "stopped_s", "stall_s"), [(60, 2.0, FOREVER_S), (40, 0.3, FOREVER_S), (60, 2.0, 0.5), (40, 0.3, 0.1)],
    ids=["2 s", "0.3 s", "2 s, connection given up", "0.3 s, connection given up"],
)  # fmt: skip
async def test_served_and_remaining_requests_add_up_to_the_threshold(
    server: RedisServer, own: "redis.Redis", callers: int, stopped_s: float, stall_s: float
) -> None:
    plan = simple(rpd=50, tpd=100_000)
    options = CountersOptions(client=RedisClientOptions(stall_s=stall_s), local_refusals=False)
    worker = RedisCounters(server.url, "worker-1", options=options)
    await worker.start()
    served = 0
    has_ended = False

    async def call_on() -> None:
        nonlocal served
        while not has_ended:
            try:
                answer = await worker.take(plan, Estimate(100))
            except CountersUnavailableError:
                answer = None
            if isinstance(answer, Taken) and served < 20:  # some are served, the others shed before dispatch
                served += 1
            elif isinstance(answer, Taken):
                worker.give_back(answer)
            await asyncio.sleep(0.001)

    calling = [asyncio.create_task(call_on()) for _ in range(callers)]
    try:
        await eventually(lambda: served > 0)
        server.pause()
        await asyncio.sleep(stopped_s)
    finally:
        server.resume()
        await eventually(lambda: worker.available)
        has_ended = True
        await asyncio.gather(*calling)
    await eventually(lambda: all_settled(worker))
    reader = RedisCounters(
        server.url, "reader", options=replace(options, client=RedisClientOptions(deadline_s=PATIENCE_S))
    )
    await reader.start()
    assert await left(reader, plan) == (50 - served, 100_000 - 100 * served)
    assert (await outcomes(reader, plan, 60)).count(Taken) == 50 - served
    assert (await outcomes(reader, plan, 1)) == [LimitHit]
    await reader.close()
    await worker.close()
