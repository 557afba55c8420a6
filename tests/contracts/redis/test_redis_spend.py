"""The client of spend limits on a real Redis: batching, late and lost answers, outages, rights, a slot that moves."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from policy.limits.settlement import Estimate
from policy.spend.effective import SpendPlan
from policy.spend.spend_book import SpendBook
from policy.spend.spend_hash import LIMB, pack_amount, unpack_amount
from proxy.accounting.spend_taken import GUESS_MS, SpendHit, SpendTaken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from runtime.redis.slots import slot_of
from tests.contracts.redis.counters_world import simple
from tests.contracts.redis.spend_world import EPOCH, INCARNATION, limits, plan_of
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, running_cluster
from tests.redis_relay import Relay, relay_to
from tests.redis_server import RedisServer, private_redis
from tests.waiting import eventually

BOTH_LOOPS = True
OPTIONS = CountersOptions(client=RedisClientOptions(deadline_s=0.3))
PLAN = plan_of(("team", limits(day="2")), ("root", limits(month="1")))
KEYS = tuple(f"{number:026}" for number in range(50))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis(["--appendonly", "yes", "--appendfsync", "always"]) as running:
        yield running


@pytest.fixture
def own(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        build(client, PLAN)
        yield client


@pytest.fixture
async def counters(server: RedisServer) -> AsyncIterator[RedisCounters]:
    new_counters = RedisCounters(server.url, INCARNATION, options=OPTIONS)
    await new_counters.start()
    yield new_counters
    await new_counters.close()


@pytest.fixture
async def relay(server: RedisServer, own: "redis.Redis") -> AsyncIterator[Relay]:
    async with relay_to(server.socket_path) as running:
        yield running


@pytest.fixture
async def late(relay: Relay) -> AsyncIterator[RedisCounters]:
    """A worker behind the relay."""
    new_counters = RedisCounters(relay.url, INCARNATION, options=OPTIONS)
    await new_counters.start()
    yield new_counters
    relay.requests.set()
    relay.replies.set()
    await new_counters.close()


def build(client: "redis.Redis", plan: SpendPlan) -> None:
    """Count a tree from now on, with nothing spent."""
    book = SpendBook()
    book.build(EPOCH, 1, {})
    for name, value in book.fields().items():
        client.hset(plan.key, name, value)


def reserved(client: "redis.Redis", group: str = "root", plan: SpendPlan = PLAN) -> int:
    packed: Any = client.hget(plan.key, f"r{group}")
    return unpack_amount(packed or pack_amount(0))


def calls_of(client: "redis.Redis") -> int:
    stats = client.info("commandstats")
    return sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


async def take(counters: RedisCounters, event_key: str, picos: int = 1, plan: SpendPlan = PLAN) -> SpendTaken:
    answer = await counters.spend.ask(plan, event_key, picos)
    assert isinstance(answer, SpendTaken), answer
    return answer


async def quiet(counters: RedisCounters) -> None:
    await eventually(lambda: counters.spend.pending_ends == 0)


async def test_a_call_reserves_and_ends(own: "redis.Redis", counters: RedisCounters) -> None:
    one = await take(counters, KEYS[0], 7)
    other = await take(counters, KEYS[1], 5)
    assert one == SpendTaken(plan=PLAN, event_key=KEYS[0], picos=7, is_counted=True)
    assert reserved(own) == reserved(own, "team") == 12
    counters.spend.end(one, 3)
    counters.spend.give_back(other)
    await quiet(counters)
    assert reserved(own) == reserved(own, "team") == 3


async def test_a_full_limit_refuses(own: "redis.Redis", counters: RedisCounters) -> None:
    outcome = await take(counters, KEYS[0], LIMB)
    assert await counters.spend.ask(PLAN, KEYS[1], 1) == SpendHit(PLAN.bounds[1], GUESS_MS, False)
    counters.spend.end(outcome, LIMB - 1)
    await take(counters, KEYS[2])


async def test_an_uncounted_tree_admits_and_keeps_nothing(server: RedisServer, counters: RedisCounters) -> None:
    outcome = await take(counters, KEYS[0], 9 * LIMB)
    assert not outcome.is_counted
    counters.spend.end(outcome, 1)
    counters.spend.give_back(outcome)
    assert counters.spend.pending_ends == 0


async def test_takes_of_a_tick_and_those_of_other_limits_leave_in_one_write(
    own: "redis.Redis", counters: RedisCounters
) -> None:
    await take(counters, KEYS[0])
    await counters.take(simple(rpm=9), Estimate(1))
    before = calls_of(own), own.info("stats")["total_reads_processed"]
    limits_question = counters.ask(simple(rpm=9), Estimate(1))
    await asyncio.gather(*(counters.spend.ask(PLAN, key, 1) for key in KEYS[1:9]), limits_question)
    reads = own.info("stats")["total_reads_processed"]
    assert reads - before[1] == 2, "ours, and that of asking"
    assert calls_of(own) - before[0] == 2


async def test_ends_of_a_tick_are_one_command(own: "redis.Redis", counters: RedisCounters) -> None:
    takes = [await take(counters, key, 5) for key in KEYS]
    counters.spend.end(takes.pop(), 1)
    await quiet(counters)
    before = calls_of(own)
    for one in takes:
        counters.spend.end(one, 2)
    await quiet(counters)
    assert calls_of(own) - before == 1
    assert reserved(own) == 1 + 2 * len(takes)


async def test_many_calls_are_split_into_several_commands(own: "redis.Redis", counters: RedisCounters) -> None:
    keys = [f"{number:026}" for number in range(1_200)]
    answers = await asyncio.gather(*(counters.spend.ask(PLAN, key, 2) for key in keys))
    assert reserved(own) == 2 * len(keys)
    for answer in answers:
        assert isinstance(answer, SpendTaken)
        counters.spend.give_back(answer)
    await quiet(counters)
    assert reserved(own) == 0
    assert own.hlen(PLAN.key) == 4


async def test_what_a_cancelled_caller_reserved_is_given_back(own: "redis.Redis", counters: RedisCounters) -> None:
    question = asyncio.ensure_future(counters.spend.ask(PLAN, KEYS[0], 5))
    await asyncio.sleep(0)
    question.cancel()
    counters.spend.abandon(question)
    await take(counters, KEYS[1])
    await quiet(counters)
    assert reserved(own) == 1
    answered = counters.spend.ask(PLAN, KEYS[2], 5)
    await asyncio.wait([asyncio.ensure_future(answered)])
    counters.spend.abandon(answered)
    await quiet(counters)
    assert reserved(own) == 1


async def test_an_abandoned_question_reserves_nothing(own: "redis.Redis", counters: RedisCounters) -> None:
    await take(counters, KEYS[0])
    calls = calls_of(own)
    counters.spend.abandon(counters.spend.ask(PLAN, KEYS[1], 5))
    await asyncio.sleep(0)
    assert calls_of(own) == calls, "it was not sent"
    question = counters.spend.ask(PLAN, KEYS[2], 5)
    await asyncio.sleep(0)
    counters.spend.abandon(question)
    await take(counters, KEYS[3])
    await quiet(counters)
    assert reserved(own) == 2


async def test_a_late_take_reserves_nothing(own: "redis.Redis", relay: Relay, late: RedisCounters) -> None:
    await take(late, KEYS[0])
    relay.replies.clear()
    answers = await asyncio.gather(*(take(late, key, 5) for key in KEYS[1:4]))
    assert not any(answer.is_counted for answer in answers)
    relay.replies.set()
    await quiet(late)
    assert reserved(own) == 1


async def test_a_take_that_runs_after_it_was_given_up_reserves_nothing(
    own: "redis.Redis", relay: Relay, late: RedisCounters
) -> None:
    await take(late, KEYS[0])
    relay.requests.clear()
    assert not (await take(late, KEYS[1], 5)).is_counted
    on_its_way = relay.requests
    relay.requests = asyncio.Event()
    relay.requests.set()
    relay.cut()
    await quiet(late)
    assert own.hget(PLAN.key, f"p{KEYS[1]}") == b""
    calls = calls_of(own)
    on_its_way.set()
    await eventually(lambda: calls_of(own) > calls)
    assert reserved(own) == 1


async def test_ends_of_an_outage_are_sent_when_redis_is_back(
    server: RedisServer, own: "redis.Redis", counters: RedisCounters
) -> None:
    takes = [await take(counters, key, 5) for key in KEYS[:9]]
    server.kill()
    counters.spend.end(takes[0], 7)
    for one in takes[1:]:
        counters.spend.give_back(one)
    assert not (await take(counters, KEYS[10])).is_counted
    await eventually(lambda: not counters.available)
    assert not (await take(counters, KEYS[11])).is_counted
    server.start()
    await quiet(counters)
    with redis.Redis(unix_socket_path=str(server.socket_path)) as again:
        assert reserved(again) == 7


async def test_close_sends_the_ends(server: RedisServer, own: "redis.Redis") -> None:
    counters = RedisCounters(server.url, INCARNATION, options=OPTIONS)
    await counters.start()
    counters.spend.give_back(await take(counters, KEYS[0], 5))
    await counters.close()
    assert reserved(own) == 0


async def test_a_server_that_lost_its_scripts_gets_them(own: "redis.Redis", counters: RedisCounters) -> None:
    outcome = await take(counters, KEYS[0], 5)
    own.script_flush()
    counters.spend.end(outcome, 4)
    await quiet(counters)
    own.script_flush()
    await take(counters, KEYS[1])
    assert reserved(own) == 5


async def test_a_server_that_refuses_the_script_admits_uncounted(
    own: "redis.Redis", counters: RedisCounters, caplog: pytest.LogCaptureFixture
) -> None:
    own.delete(PLAN.key)
    own.set(PLAN.key, "no hash")
    assert not (await take(counters, KEYS[0])).is_counted
    assert not (await take(counters, KEYS[1])).is_counted
    assert len([record for record in caplog.records if "script of spend limits" in record.message]) == 1


async def test_a_user_with_the_documented_rights_suffices(server: RedisServer, own: "redis.Redis") -> None:
    rights = "~tg:*", "+evalsha", "+eval", "+hmget", "+hget", "+hset", "+hdel", "+expire", "+time"
    administrator: Any = own
    administrator.execute_command("ACL", "SETUSER", "spender", "on", ">secret", *rights, "+select", "+ping")
    url = f"unix://spender:secret@{server.socket_path}"
    counters = RedisCounters(url, INCARNATION, options=OPTIONS)
    await counters.start()
    first = await take(counters, KEYS[0], 5)
    assert first.is_counted
    counters.spend.end(first, 4)
    counters.spend.give_back(await take(counters, KEYS[1], 5))
    await quiet(counters)
    assert reserved(own) == 4
    await counters.close()


async def test_an_incarnation_of_another_length_is_refused(server: RedisServer, own: "redis.Redis") -> None:
    counters = RedisCounters(server.url, "worker-1", options=OPTIONS)
    await counters.start()
    with pytest.raises(ValueError, match="16 characters"):
        counters.spend.ask(PLAN, KEYS[0], 1)
    await counters.close()


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_calls_follow_a_slot_that_moves() -> None:
    with running_cluster(3, replicas=0, node_timeout_ms=PATIENT_MS) as cluster:
        counters = RedisCounters(cluster.url, INCARNATION, options=OPTIONS)
        await counters.start()
        slot = slot_of(PLAN.key.encode())
        source = cluster.owner(slot)
        target = next(node for node in cluster.primaries if node is not source)
        with source.server.client() as client:
            build(client, PLAN)
        takes = [await take(counters, key, 5) for key in KEYS[:3]]
        assert all(one.is_counted for one in takes)
        cluster.move(slot, target)
        counters.spend.end(takes[0], 4)
        await quiet(counters)
        cluster.move(slot, source)
        assert (await take(counters, KEYS[4], 5)).is_counted
        cluster.move(slot, target)
        with target.server.client() as client:
            assert reserved(client) == 4 + 5 + 5 + 5
        await counters.close()
