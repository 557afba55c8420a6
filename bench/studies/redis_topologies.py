"""The counters on a Redis Cluster: what one governed load costs each node, and what a dead primary costs.

`python -m bench.studies.redis_topologies`, a part of `make bench-limits`; about a minute. Prints the CPU of each node
and of the worker per governed call (a take and a settlement of four limits), on one server, on a cluster of one node
and on one of three, interleaved. Then kills the primary of a busy group, and prints how long its calls were refused,
how many admissions its replica had not got, and how much was admitted above the limit.
"""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis
import uvloop

from policy.limits.counter_layout import calendar_usage
from policy.limits.effective import Plan, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.errors import CountersUnavailableError
from runtime.redis.slots import SLOTS, slot_of
from tests.redis_cluster import ClusterNode, RedisCluster, running_cluster
from tests.redis_counters import pending_settlements
from tests.redis_server import RedisServer, private_redis
from tests.waiting import eventually

GROUPS = 600
IN_FLIGHT = 256
CALLS = 20_000
ROUNDS = 5
LAGS_S = 0, 0.01, 0.03, 0.1, 0.3, 1
ROOMY = 10**12
KINDS = tuple((type, unit) for type in LimitType for unit in (Unit.MINUTE, Unit.DAY))
PATIENT = CountersOptions(client=RedisClientOptions(deadline_s=5))


def plan(number: int, threshold: int = ROOMY) -> Plan:
    group = f"grp_01JD000000000000000{number:04d}"
    limits = tuple(Limit(*kind, threshold if kind[0] is LimitType.REQUEST else ROOMY) for kind in KINDS)
    return plan_of_limits("acme/chat", group, f"tg:{{{group}|acme/chat}}", limits)


@dataclass
class Subject:
    """Redis servers under the same load. The figures are µs of CPU per call, a list of rounds."""

    name: str
    url: str
    servers: list[RedisServer]
    counters: RedisCounters
    nodes_us: list[list[float]] = field(default_factory=list)
    worker_us: list[float] = field(default_factory=list)


def cpu_s(server: RedisServer) -> float:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        info = client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def call(counters: RedisCounters, plan: Plan) -> Taken | LimitHit:
    """A governed call: admitted, then settled."""
    answer = await counters.take(plan, Estimate(600))
    if isinstance(answer, Taken):
        for reservation in answer.reservations:
            number = next(counters.numbers)
            counters.settle(reservation, number=number, actual_tokens=500)
    return answer


async def load(counters: RedisCounters, plans: list[Plan], calls: int) -> None:
    turn = iter(range(calls))

    async def caller() -> None:
        for number in turn:
            await call(counters, plans[number % len(plans)])

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    await eventually(lambda: not pending_settlements(counters))


async def measure(subject: Subject, plans: list[Plan]) -> None:
    before = [cpu_s(server) for server in subject.servers]
    start_s = time.process_time()
    await load(subject.counters, plans, CALLS)
    subject.worker_us.append((time.process_time() - start_s) / CALLS * 1e6)
    spent = [cpu_s(server) - at for server, at in zip(subject.servers, before, strict=True)]
    subject.nodes_us.append([one / CALLS * 1e6 for one in spent])


def evenly_spread() -> Iterator[Plan]:
    """Yield as many plans for each third of the slots: for each of three nodes."""
    rest = [GROUPS // 3] * 3
    for one in map(plan, itertools.count()):
        third = 3 * slot_of(one.key.encode()) // SLOTS
        if rest[third]:
            rest[third] -= 1
            yield one
        if not any(rest):
            return


@contextmanager
def subjects() -> Iterator[list[Subject]]:
    with private_redis() as server, running_cluster(1, 0) as one, running_cluster(3, 0) as three:
        systems = [
            ("one server", server.url, [server]),
            ("a cluster of one node", one.url, [node.server for node in one.nodes]),
            ("a cluster of three nodes", three.url, [node.server for node in three.nodes]),
        ]
        yield [
            Subject(name, url, servers, RedisCounters(url, "bench", options=PATIENT)) for name, url, servers in systems
        ]


async def report_scaling() -> None:
    with subjects() as all_subjects:
        plans = list(evenly_spread())
        for subject in all_subjects:
            await subject.counters.start()
            await load(subject.counters, plans, CALLS)
        for round, subject in itertools.product(range(ROUNDS), all_subjects):
            print(f"  round {round + 1} of {ROUNDS}: {subject.name}", flush=True)
            await measure(subject, plans)
        for subject in all_subjects:
            await subject.counters.close()
    print(f"\nCPU µs per governed call, {GROUPS} groups, {IN_FLIGHT} in flight: medians of {ROUNDS} rounds")
    for subject in all_subjects:
        nodes = [statistics.median(figures) for figures in zip(*subject.nodes_us, strict=True)]
        each = " + ".join(f"{one:.1f}" for one in nodes)
        print(
            f"{subject.name:>26}: Redis {sum(nodes):5.1f} ({each}), worker {statistics.median(subject.worker_us):5.1f}"
        )


@dataclass
class Death:
    """The cost of one dead primary."""

    refused_s: float
    loss: int
    above: int


async def cut_off(primary: ClusterNode, seconds: float) -> None:
    """Keep the replica from hearing anything: it cannot log in again."""
    if seconds:
        primary.run("CONFIG", "SET", "requirepass", "unknown to the replica")
        with redis.Redis(unix_socket_path=str(primary.server.socket_path), password="unknown to the replica") as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "REPLICA")
    await asyncio.sleep(seconds)


async def watch_a_death(cluster: RedisCluster, number: int, lag_s: float) -> Death:
    """A busy group has used a part of its limit when the primary of its counters is killed. Its replica has heard
    nothing for `lag_s`."""
    threshold = 150_000
    one = plan(number, threshold)
    primary = cluster.owner_of(one.key)
    counters = RedisCounters(cluster.url, f"bench-{number}")
    await counters.start()
    admitted = 0
    killed_at = 0.0
    back_at = 0.0

    async def caller() -> None:
        nonlocal admitted, back_at
        while True:
            try:
                if not isinstance(await call(counters, one), Taken):
                    return
            except CountersUnavailableError:
                await asyncio.sleep(0.005)
                continue
            admitted += 1
            if killed_at and not back_at:
                back_at = time.monotonic()

    callers = [asyncio.create_task(caller()) for _ in range(IN_FLIGHT)]
    at_death = threshold * random.uniform(0.1, 0.3)
    await eventually(lambda: admitted >= at_death)
    await cut_off(primary, lag_s)
    primary.server.kill()
    before = admitted
    killed_at = time.monotonic()
    await asyncio.to_thread(cluster.wait_for_replacement, primary)
    replacement = cluster.owner_of(one.key)
    await asyncio.gather(*callers)
    await eventually(lambda: not pending_settlements(counters))
    await counters.close()
    header = replacement.run("HGET", one.key, one.group_id)
    counted = calendar_usage((LimitType.REQUEST, Unit.DAY), header, None, time.time_ns() // 1_000_000)
    return Death(back_at - killed_at, before - (counted - (admitted - before)), admitted - threshold)


async def report_deaths() -> None:
    print(f"\nA primary dies under {IN_FLIGHT} callers of one group; its replica replaces it (node timeout 1 s)")
    print(f"{'replica behind by':>20} {'refused for':>12} {'not replicated':>15} {'above the limit':>16}")
    for number, lag_s in enumerate(LAGS_S):
        with running_cluster() as cluster:
            death = await watch_a_death(cluster, number, lag_s)
        print(f"{1000 * lag_s:>17.0f} ms {death.refused_s:>10.2f} s {death.loss:>15} {death.above:>16}", flush=True)


async def main() -> None:
    await report_scaling()
    await report_deaths()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
