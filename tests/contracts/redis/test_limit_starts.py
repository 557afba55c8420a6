"""The script that starts usage limits, compared with its rule in Python, and control's client of it on real Redis."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.edges.redis.client import connect
from control.edges.redis.start_script import start_arguments, start_text
from control.edges.redis.usage_counters import UsageCounters
from control.errors import UsageUnavailableError
from control.records.usage import Bucket, BucketStart, Meter
from policy.limits.admission import admit, settle
from policy.limits.counter_hash import CounterHash, number_of
from policy.limits.counter_layout import HASH_EXPIRY_S, calendar_usage, kind_mask, windows_field
from policy.limits.kinds import KINDS, Kind
from policy.limits.settlement import Estimate, Settlement, reservations_of
from policy.limits.starts import WindowCount, raise_counts
from policy.limits.take_numbers import TakeStamp
from policy.limits.windows import DAY_MS, day_of
from proxy.edges.redis.scripts import Scripts, settle_arguments, take_limits
from tests.contracts.redis.counters_world import CLOCK_KEY, REDIS_CLOCK, START_MS, group, plan_of
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, running_cluster
from tests.redis_counters import take_arguments
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.redis_topologies import documented_rules

LEASE_MS = 130_000
CALENDAR_KINDS = tuple(kind for kind in KINDS if not kind[1].is_rolling)
PLAN = plan_of(group("g1", {kind: 10**6 for kind in KINDS if not kind[0].is_concurrent}))
KEY = PLAN.key
START = start_text().replace("redis.call('TIME')", REDIS_CLOCK)
STEPS_MS = st.one_of(
    st.integers(0, 70_000), st.integers(-70_000, 0), st.just(DAY_MS), st.just(-DAY_MS), st.just(31 * DAY_MS)
)
AMOUNTS = st.dictionaries(st.sampled_from(CALENDAR_KINDS), st.one_of(st.integers(0, 12), st.just(2**53 - 1)))
STEPS = st.lists(st.one_of(STEPS_MS, AMOUNTS, st.tuples(st.integers(0, 9), st.integers(0, 20))), max_size=12)


@pytest.fixture(scope="module", params=REDIS_BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(binary=request.param) as running:
        yield running


class Both:
    """A real hash and one of the reference, which do the same."""

    def __init__(self, client: "redis.Redis") -> None:
        self.client = client
        self.scripts = Scripts.load(REDIS_CLOCK)
        self.hash = CounterHash(LEASE_MS)
        self.now_ms = START_MS
        self.number = 0
        client.flushdb()
        self.step(0)

    def step(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.client.set(CLOCK_KEY, self.now_ms)

    def start(self, amounts: dict[Kind, int], days_ago: int = 0) -> None:
        day = day_of(self.now_ms) - days_ago
        counts = tuple(WindowCount(kind, number_of(kind, day), amount) for kind, amount in amounts.items())
        arguments = start_arguments(BucketStart(Bucket(KEY, "g1"), counts))
        has_risen: Any = self.client.eval(START, 1, KEY, *arguments)
        assert bool(has_risen) == raise_counts(self.hash, "g1", counts, self.now_ms)

    def call(self, expected: int, actual: int) -> None:
        """A call that is settled at once."""
        self.number += 1
        estimate = Estimate(expected, 3, expected // 2, 1)
        figures = [b"%d" % figure for type in take_limits(PLAN.limits).columns for figure in estimate.of(type)]
        arguments = take_arguments(PLAN, LEASE_MS, TakeStamp("w", self.number, self.number - 1))
        reply: Any = self.client.eval(self.scripts.take.text.decode(), 1, KEY, *arguments, *figures)
        decision = admit(self.hash, PLAN.bounds, [estimate], self.now_ms)
        assert reply[1] == decision.admitted
        if not decision.admitted:
            return
        buckets = (("g1", kind_mask(bound.limit for bound in PLAN.bounds)),)
        batch = [
            Settlement(reservation=one, number=self.number * 10 + place, actual_tokens=actual)
            for place, one in enumerate(reservations_of(KEY, buckets, decision.now_ms, estimate))
        ]
        settle_text = self.scripts.settle.text.decode()
        self.client.eval(settle_text, 1, KEY, *settle_arguments(batch, "w", LEASE_MS))
        settle(self.hash, "w", batch, self.now_ms)

    def check(self) -> None:
        """Each count, in the window of now and in those before."""
        for kind in CALENDAR_KINDS:
            header, windows = self.stored(kind)
            counted = self.hash.counts_at("g1", self.now_ms).count(kind)
            assert calendar_usage(kind, header, windows, self.now_ms) == counted

    def stored(self, kind: Kind) -> tuple[bytes | None, bytes | None]:
        values: Any = self.client.hmget(KEY, ["g1", windows_field("g1", kind)])
        header, windows = values
        return header, windows


@given(steps=STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_script_raises_counts_as_the_rule_does(server: RedisServer, steps: list[Any]) -> None:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        both = Both(client)
        for step in steps:
            if isinstance(step, int):
                both.step(step)
            elif isinstance(step, dict):
                both.start(step)
            else:
                both.call(*step)
            both.check()


@pytest.mark.parametrize("kind", CALENDAR_KINDS, ids="/".join)
def test_count_rises_to_a_figure_of_its_window_and_never_falls(server: RedisServer, kind: Kind) -> None:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        both = Both(client)
        for amount, count in ((7, 7), (3, 7), (7, 7), (9, 9)):
            both.start({kind: amount})
            assert calendar_usage(kind, *both.stored(kind), both.now_ms) == count
        both.start({kind: 50}, days_ago=31)
        assert calendar_usage(kind, *both.stored(kind), both.now_ms) == 9, "that window has ended"
        assert client.ttl(KEY) > HASH_EXPIRY_S - 60


@pytest.fixture
async def usage(server: RedisServer) -> AsyncIterator[UsageCounters]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        client.flushall()
        client.script_flush()
    async with aclosing(connect(server.url)) as connected:
        yield UsageCounters(connected)


async def starts_of(usage: UsageCounters, buckets: int) -> list[BucketStart]:
    day = day_of(await usage.now_ms())
    return [
        BucketStart(
            Bucket(f"tg:{{g{n}|acme/chat}}", f"g{n}"),
            tuple(WindowCount(kind, number_of(kind, day), n + 1) for kind in CALENDAR_KINDS),
        )
        for n in range(buckets)
    ]


async def check_starts(usage: UsageCounters, buckets: int) -> None:
    starts = await starts_of(usage, buckets)
    await usage.start(starts)
    await usage.start(starts[:3])
    for start in starts:
        amounts = [one.amount for one in await usage.used([Meter(start.bucket, *kind) for kind in CALENDAR_KINDS])]
        assert amounts == [one.amount for one in start.counts]


async def test_control_starts_limits_of_many_buckets(usage: UsageCounters) -> None:
    """A server that does not know the script yet learns it."""
    await check_starts(usage, 60)


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_control_starts_limits_of_buckets_on_all_nodes_of_a_cluster() -> None:
    with running_cluster(3, replicas=0, node_timeout_ms=PATIENT_MS) as cluster:
        async with aclosing(connect(cluster.url)) as connected:
            await check_starts(UsageCounters(connected), 60)


async def test_start_needs_no_command_that_is_not_documented(server: RedisServer) -> None:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "tollgate", *documented_rules("tollgate"))
        client.script_flush()
    async with aclosing(connect(f"unix://tollgate:PASSWORD@{server.socket_path}")) as connected:
        await check_starts(UsageCounters(connected), 3)


async def test_start_is_unavailable_without_redis() -> None:
    with private_redis() as server:
        url = RedisServer(server.folder).url
    async with aclosing(connect(url)) as connected:
        start = BucketStart(Bucket(KEY, "g1"), (WindowCount(CALENDAR_KINDS[0], 1, 1),))
        with pytest.raises(UsageUnavailableError):
            await UsageCounters(connected).start([start])
