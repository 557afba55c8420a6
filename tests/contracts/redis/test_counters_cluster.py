"""The counters on a real Redis Cluster: which node gets what, and what they do while slots move and nodes die."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import RedisCounters
from proxy.edges.redis.supervisor.probe import PLANS
from proxy.errors import CountersUnavailableError
from runtime.redis.slots import SLOTS, slot_of
from tests.contracts.redis.real_counters import OPTIONS, counted, counters_at, plan, settle
from tests.contracts.redis.test_counters_access import NEEDED
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, ClusterNode, RedisCluster, running_cluster
from tests.redis_counters import pending_settlements
from tests.redis_server import tls_options
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
BOTH_LOOPS = True
NODES = 3
NEEDED_ON_A_CLUSTER = ("+cluster|slots", "+asking")
Pair = tuple[ClusterNode, ClusterNode]
"""A primary and its replica."""


@pytest.fixture(scope="module")
def formed() -> Iterator[RedisCluster]:
    """A cluster for tests that leave it as it was: every slot on its first node, every node alive."""
    with running_cluster(NODES, replicas=0, node_timeout_ms=PATIENT_MS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mortal() -> Iterator[tuple[RedisCluster, Iterator[Pair]]]:
    """Six nodes that may die. Each test takes a pair of its own."""
    with running_cluster(NODES) as cluster:
        yield cluster, iter(zip(cluster.primaries, cluster.replicas, strict=True))


@pytest.fixture
async def counters(formed: RedisCluster) -> AsyncIterator[RedisCounters]:
    for node in formed.nodes:
        node.run("FLUSHALL")
    async with counters_at(formed.url) as new_counters:
        yield new_counters


def plans_on_each(cluster: RedisCluster, prefix: str = "g") -> dict[int, Plan]:
    """One plan for each primary, by its port. Its group's name begins with the prefix."""
    plans: dict[int, Plan] = {}
    number = 0
    while len(plans) < NODES:
        number += 1
        one = plan(f"{prefix}{number}")
        plans.setdefault(cluster.owner_of(one.key).port, one)
    return plans


async def admit(counters: RedisCounters, plan: Plan, calls: int = 1) -> list[Taken]:
    answers = await asyncio.gather(*(counters.take(plan, Estimate(10)) for _ in range(calls)))
    assert all(isinstance(answer, Taken) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Taken)]


def script_calls(client: "redis.Redis") -> int:
    stats = client.info("commandstats")
    return sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


async def test_each_call_goes_to_the_node_of_its_key_in_one_write_per_tick(
    formed: RedisCluster, counters: RedisCounters
) -> None:
    on_each = plans_on_each(formed)
    plans = [on_each[node.port] for node in formed.primaries]
    for one in plans:
        await admit(counters, one)
    clients = [node.server.client() for node in formed.primaries]
    before = [(script_calls(client), client.info("stats")["total_reads_processed"]) for client in clients]
    await asyncio.gather(*(counters.take(one, Estimate(10)) for one in plans for _ in range(2)))
    for client, (calls, reads) in zip(clients, before, strict=True):
        assert client.info("stats")["total_reads_processed"] - reads == 1 + 1  # ours, and that of asking
        assert script_calls(client) - calls == 1
        client.close()
    assert [counted(node.server, one)[0] for node, one in zip(formed.primaries, plans, strict=True)] == [3] * NODES


async def test_settlements_reach_every_node(formed: RedisCluster, counters: RedisCounters) -> None:
    on_each = plans_on_each(formed)
    plans = [on_each[node.port] for node in formed.primaries]
    for one in plans:
        [admission] = await admit(counters, one)
        settle(counters, admission, 70)
    await eventually(lambda: pending_settlements(counters) == 0)
    assert [counted(node.server, one) for node, one in zip(formed.primaries, plans, strict=True)] == [(1, 70)] * NODES


async def test_a_moved_slot_is_found_and_its_counts_are_kept(formed: RedisCluster, counters: RedisCounters) -> None:
    one = plan(requests=10)
    slot = slot_of(one.key.encode())
    admissions = await admit(counters, one, 6)
    source = formed.owner(slot)
    target = next(node for node in formed.primaries if node is not source)
    formed.move(slot, target)
    try:
        redirects = source.redirects
        await admit(counters, one)
        await admit(counters, one)
        settle(counters, admissions[0], 50)
        await eventually(lambda: pending_settlements(counters) == 0)
        assert source.redirects - redirects == 1, "the next command goes to the right node at once"
        assert counted(target.server, one) == (8, 50)
        answers = await asyncio.gather(*(counters.take(one, Estimate(10)) for _ in range(5)))
        assert [type(answer) for answer in answers] == [Taken] * 2 + [LimitHit] * 3
    finally:
        formed.move(slot, source)


async def test_a_settlement_that_finds_its_slot_moved_follows(formed: RedisCluster, counters: RedisCounters) -> None:
    one = plan()
    slot = slot_of(one.key.encode())
    [admission] = await admit(counters, one)
    settle(counters, admission, 1)
    await eventually(lambda: pending_settlements(counters) == 0)
    source = formed.owner(slot)
    formed.move(slot, next(node for node in formed.primaries if node is not source))
    try:
        settle(counters, admission, 5)
        await eventually(lambda: pending_settlements(counters) == 0)
        assert counted(formed.owner(slot).server, one)[1] == 6
    finally:
        formed.move(slot, source)


@pytest.mark.parametrize("is_known", [True, False], ids=["key-not-moved-yet", "key-is-new"])
async def test_calls_pass_while_their_slot_is_moving(
    formed: RedisCluster, counters: RedisCounters, is_known: bool
) -> None:
    one = plan("moving", requests=10)
    slot = slot_of(one.key.encode())
    target = next(node for node in formed.primaries if node is not formed.owner(slot))
    first = await admit(counters, one, 2) if is_known else []
    source = formed.begin_move(slot, target)
    try:
        second = await admit(counters, one, 3)  # ASK if the key is new
        formed.move_keys(slot, source, target)
        third = await admit(counters, one, 1)  # ASK
        for admission in (*first, *second, *third):
            settle(counters, admission, 7)
        await eventually(lambda: pending_settlements(counters) == 0)
    finally:
        formed.end_move(slot, source, target)
    count = len(first) + 4
    assert counted(target.server, one) == (count, 7 * count)
    answers = await asyncio.gather(*(counters.take(one, Estimate(10)) for _ in range(12 - count)))
    assert [type(answer) for answer in answers] == [Taken] * (10 - count) + [LimitHit] * 2
    formed.move(slot, source)


async def test_no_call_is_lost_or_doubled_while_slots_move_under_load(
    formed: RedisCluster, counters: RedisCounters
) -> None:
    threshold = 300
    one = plan("busy", requests=threshold)
    slot = slot_of(one.key.encode())
    home = formed.owner_of(one.key)
    admitted = refusal_count = 0
    finish = asyncio.Event()

    async def ask() -> None:
        nonlocal admitted, refusal_count
        while not finish.is_set():
            answer = await counters.take(one, Estimate(10))
            if isinstance(answer, Taken):
                admitted += 1
                settle(counters, answer, 3)
            else:
                refusal_count += 1
            await asyncio.sleep(0.002)

    async def move_about() -> None:
        for target in (*formed.primaries, *formed.primaries, home):
            if target is not formed.owner(slot):
                await asyncio.to_thread(formed.move, slot, target)
                await asyncio.sleep(0.05)
        await eventually(lambda: refusal_count > 20)
        finish.set()

    await asyncio.gather(move_about(), *(ask() for _ in range(6)))
    await eventually(lambda: pending_settlements(counters) == 0)
    assert admitted == threshold
    assert counted(home.server, one) == (threshold, 3 * threshold)


async def test_a_host_that_does_not_answer_is_left_out(formed: RedisCluster) -> None:
    async with counters_at(formed.url.replace("cluster://", "cluster://127.0.0.1:1,")) as counters:
        await admit(counters, plan())


async def test_an_ordered_fail_over_loses_nothing(mortal: tuple[RedisCluster, Iterator[Pair]]) -> None:
    cluster, pairs = mortal
    primary, replica = next(pairs)
    one = plans_on_each(cluster, "ordered")[primary.port]
    async with counters_at(cluster.url) as counters:
        admissions = await admit(counters, one, 80)
        settle(counters, admissions[0], 500)
        await asyncio.to_thread(cluster.fail_over, replica)
        settle(counters, admissions[1], 40)
        answers = await asyncio.gather(*(counters.take(one, Estimate(10)) for _ in range(25)))
        assert [type(answer) for answer in answers] == [Taken] * 20 + [LimitHit] * 5
        await eventually(lambda: pending_settlements(counters) == 0)
    assert counted(replica.server, one) == (100, 540)


async def test_only_the_calls_of_a_dead_node_wait_for_its_replacement(
    mortal: tuple[RedisCluster, Iterator[Pair]],
) -> None:
    """Settlements that it did not confirm reach the replacement."""
    cluster, pairs = mortal
    dead, replacement = next(pairs)
    others = plans_on_each(cluster, "dead")
    one = others.pop(dead.port)
    async with counters_at(cluster.url) as counters:
        admissions = await admit(counters, one, 40)
        await eventually(lambda: counted(replacement.server, one)[0] == 40)
        dead.server.kill()
        settle(counters, admissions[0], 70)
        unavailable = 0
        while True:
            for other in others.values():
                await admit(counters, other)
            try:
                await admit(counters, one)
                break
            except CountersUnavailableError:
                unavailable += 1
                await asyncio.sleep(0.1)
        assert unavailable > 0
        await eventually(lambda: pending_settlements(counters) == 0)
        assert counted(replacement.server, one) == (41, 70)
        answers = await asyncio.gather(*(counters.take(one, Estimate(1)) for _ in range(70)))
        assert [type(answer) for answer in answers] == [Taken] * 59 + [LimitHit] * 11


async def test_takes_that_a_replaced_node_did_not_answer_count_nowhere(
    mortal: tuple[RedisCluster, Iterator[Pair]],
) -> None:
    cluster, pairs = mortal
    paused, replacement = next(pairs)
    one = plans_on_each(cluster, "paused")[paused.port]
    async with counters_at(cluster.url) as counters:
        await admit(counters, one, 10)
        await eventually(lambda: counted(replacement.server, one)[0] == 10)
        paused.server.pause()
        answers = await asyncio.gather(*(counters.take(one, Estimate(1)) for _ in range(20)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {CountersUnavailableError}
        await asyncio.to_thread(cluster.wait_for_replacement, paused)
        await eventually(lambda: counters._nodes.of(slot_of(one.key.encode())).serves)
        await eventually(lambda: not counters._takes._lost_takes)
        answers = await asyncio.gather(*(counters.take(one, Estimate(1)) for _ in range(100)))
        assert [type(answer) for answer in answers] == [Taken] * 90 + [LimitHit] * 10


async def test_in_local_mode_only_the_calls_of_a_dead_node_are_decided_locally(formed: RedisCluster) -> None:
    on_each = plans_on_each(formed)
    paused = formed.primaries[0]
    one = on_each.pop(paused.port)
    options = replace(OPTIONS, on_loss="local", roster_interval_s=0.05)
    async with counters_at(formed.url, options) as counters:
        await admit(counters, one, 60)
        await eventually(lambda: counters._roster.share is not None)
        paused.server.pause()
        try:
            assert len(await admit(counters, one, 40)) == 40
            assert isinstance(await counters.take(one, Estimate(1)), LimitHit)
            assert counters.local_decisions == 41
            for other in on_each.values():
                await admit(counters, other)
            assert counters.local_decisions == 41
        finally:
            paused.server.resume()


async def test_tls_and_a_restricted_user(tmp_path: Path) -> None:
    ca = ThrowawayCa(tmp_path)
    options = [*tls_options(ca), "--tls-cluster", "yes"]
    with running_cluster(2, 0, options, "bus", PATIENT_MS) as cluster:
        for node in cluster.nodes:
            node.run("ACL", "SETUSER", "limiter", "on", ">secret", *NEEDED, *NEEDED_ON_A_CLUSTER)
        one = plan(requests=10)
        slot = slot_of(one.key.encode())
        url = f"rediss+cluster://limiter:secret@{cluster.hosts}?ssl_ca_certs={ca.ca_file}"
        async with counters_at(url) as counters:
            await admit(counters, one, 4)
            source = cluster.owner(slot)
            target = next(node for node in cluster.primaries if node is not source)
            cluster.begin_move(slot, target)
            await admit(counters, one, 2)
            cluster.move_keys(slot, source, target)
            await admit(counters, one)  # ASK
            cluster.end_move(slot, source, target)
            await admit(counters, one, 3)
            assert isinstance(await counters.take(one, Estimate(1)), LimitHit)


def test_readiness_is_checked_in_each_quarter_of_the_slots() -> None:
    assert {4 * slot_of(plan.key.encode()) // SLOTS for plan in PLANS} == {0, 1, 2, 3}
