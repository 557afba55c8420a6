"""The rate limits of keys on a real Redis, alone and as a cluster: in the hash that counts what their tree spends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import redis

from policy.limits.counter_layout import HASH_EXPIRY_S
from policy.limits.effective import Plan
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate
from policy.spend.key_names import key_plan
from policy.spend.spend_book import SpendBook
from policy.spend.spend_hash import unpack_amount
from proxy.accounting.reservations import LimitHit, Taken
from proxy.accounting.spend_taken import SpendTaken
from proxy.edges.redis.counters import RedisCounters
from tests.contracts.redis.counters_world import RPM, group, plan_of, simple
from tests.contracts.redis.real_counters import OPTIONS, settle
from tests.contracts.redis.spend_world import EPOCH
from tests.contracts.redis.spend_world import limits as spend_limits
from tests.contracts.redis.spend_world import plan_of as spend_plan_of
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, running_cluster
from tests.redis_counters import pending_settlements
from tests.redis_server import RedisServer, private_redis
from tests.waiting import eventually

BOTH_LOOPS = True
LIMITS = (
    Limit(LimitType.REQUEST, Unit.MINUTE, 20),
    Limit(LimitType.TOKEN, Unit.MINUTE, 10_000),
    Limit(LimitType.OUTPUT_TOKEN, Unit.MINUTE, 10_000),
    Limit(LimitType.CONCURRENT_REQUEST, Unit.MINUTE, 1000),
)
KEY = key_plan("root", "tg_abcdefghijkl", LIMITS)
WORKERS = 3


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis() as running:
        yield running


@pytest.fixture
async def workers(server: RedisServer) -> AsyncIterator[list[RedisCounters]]:
    async with AsyncExitStack() as stack:
        yield [await started(stack, server.url, number) for number in range(WORKERS)]


async def started(stack: AsyncExitStack, url: str, number: int) -> RedisCounters:
    counters = RedisCounters(url, f"{number:016}", options=OPTIONS)
    await counters.start()
    stack.push_async_callback(counters.close)
    return counters


async def take_all(workers: list[RedisCounters], plans: list[Plan], calls: int) -> list[Taken | LimitHit]:
    """Calls of one key by all workers, through the slugs of these plans in turn."""
    questions = [
        workers[number % len(workers)].take(plans[number % len(plans)], Estimate(10, 0, 5), (KEY,))
        for number in range(calls)
    ]
    return await asyncio.gather(*questions)


def admitted(answers: list[Taken | LimitHit]) -> list[Taken]:
    return [answer for answer in answers if isinstance(answer, Taken)]


async def settled(*workers: RedisCounters) -> None:
    await eventually(lambda: not any(map(pending_settlements, workers)))


async def admitted_in_the_end(workers: list[RedisCounters], plan: Plan) -> int:
    """Call at once, then one by one until the limit. Of calls at once, refused ones hold room for a moment."""
    count = len(admitted(await take_all(workers, [plan], 30)))
    await settled(*workers)
    while admitted(await take_all(workers, [plan], 1)):
        count += 1
    await settled(*workers)
    return count


async def test_parallel_calls_by_many_slugs_and_workers_never_pass_the_limit(workers: list[RedisCounters]) -> None:
    slugs = [plan_of(group(f"g{number}", {RPM: 100})) for number in range(4)]
    answers = await take_all(workers, slugs, 60)
    assert len(admitted(answers)) == 20
    refusals = [answer for answer in answers if isinstance(answer, LimitHit)]
    assert {refusal.bound.source_group for refusal in refusals} == {"key_tg_abcdefghijkl"}
    await settled(*workers)
    for number, slug in enumerate(slugs):
        after = await workers[0].take(slug, Estimate(0))
        assert isinstance(after, Taken)
        assert after.requests is not None
        own = len(admitted(answers[number :: len(slugs)]))
        assert after.requests.remaining == 100 - own - 1, "what was taken for refused calls is returned"


async def test_a_refusal_by_the_group_returns_the_key_s_share_once(workers: list[RedisCounters]) -> None:
    assert await admitted_in_the_end(workers, simple(rpm=7)) == 7
    assert await admitted_in_the_end(workers, simple()) == 20 - 7


async def test_settlement_corrects_the_tokens_and_frees_the_place(workers: list[RedisCounters]) -> None:
    [only] = admitted(await take_all(workers, [simple(tpm=50_000)], 1))
    assert only.place is not None
    settle(workers[0], only, 3_000)
    only.place.release()
    await settled(*workers)
    after = await workers[1].take(simple(tpm=50_000), Estimate(0), (KEY,))
    assert isinstance(after, Taken)
    assert after.tokens is not None
    assert (after.tokens.limit, after.tokens.remaining) == (10_000, 7_000)


async def test_a_cancelled_call_gives_all_back(workers: list[RedisCounters]) -> None:
    counters = workers[0]
    for turns in range(6):
        question = asyncio.ensure_future(counters.take(simple(rpm=50), Estimate(10), (KEY,)))
        for _ in range(turns):
            await asyncio.sleep(0)
        question.cancel()
        await asyncio.wait([question])
    await counters.take(simple(rpm=50), Estimate(10))  # behind whatever they have sent
    await settled(counters)
    after = await counters.take(simple(rpm=50), Estimate(0), (KEY,))
    assert isinstance(after, Taken)
    assert after.requests is not None
    assert (after.requests.limit, after.requests.remaining) == (20, 19)
    of_group = await counters.take(simple(rpm=50), Estimate(0))
    assert isinstance(of_group, Taken)
    assert of_group.requests is not None
    assert of_group.requests.remaining == 50 - 3


async def test_all_takes_of_a_call_leave_in_one_write(server: RedisServer, workers: list[RedisCounters]) -> None:
    counters = workers[0]
    await counters.take(simple(rpm=50), Estimate(10), (KEY,))
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        reads = client.info("stats")["total_reads_processed"]
        await asyncio.gather(*(counters.take(simple(rpm=50), Estimate(10), (KEY,)) for _ in range(5)))
        assert client.info("stats")["total_reads_processed"] - reads == 2, "ours, and that of asking"


async def test_a_refusal_from_memory_sends_nothing(server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        counters = RedisCounters(server.url, "0" * 16)
        await counters.start()
        stack.push_async_callback(counters.close)
        closed = plan_of(group("closed", {RPM: 0}))
        refusal = await counters.take(closed, Estimate(10), (KEY,))
        assert isinstance(refusal, LimitHit)
        assert refusal.bound.source_group == "closed"
        after = await counters.take(simple(), Estimate(0), (KEY,))
        assert isinstance(after, Taken)
        assert after.requests is not None
        assert after.requests.remaining == 19


async def test_counters_and_spend_share_the_hash_and_leave_each_other_alone(
    server: RedisServer, workers: list[RedisCounters]
) -> None:
    spend_plan = spend_plan_of(("team", spend_limits(day="2")), ("root", spend_limits(month="1")))
    assert spend_plan.key == KEY.key
    counters = workers[0]
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        book = SpendBook()
        book.build(EPOCH, 1, {})
        client.hset(KEY.key, mapping=book.fields())
        admission, reserved = await asyncio.gather(
            counters.take(simple(rpm=50), Estimate(10), (KEY,)), counters.spend.ask(spend_plan, "0" * 26, 5)
        )
        assert isinstance(admission, Taken)
        assert isinstance(reserved, SpendTaken)
        settle(counters, admission, 70)
        counters.spend.end(reserved, 3)
        await settled(counters)
        await eventually(lambda: counters.spend.pending_ends == 0)
        fields = client.hgetall(KEY.key)
        assert isinstance(fields, dict)
        own = {name for name in fields if name.startswith((b"key_", b"@"))}
        assert {b"key_tg_abcdefghijkl", b"key_tg_abcdefghijkl:places"} <= own
        others = {b"e", b"c", b"rteam", b"rroot", b"p" + b"0" * 26}
        assert set(fields) - own == others
        assert unpack_amount(fields[b"rroot"]) == 3
        assert client.ttl(KEY.key) <= HASH_EXPIRY_S
    after = await counters.take(simple(rpm=50), Estimate(0), (KEY,))
    assert isinstance(after, Taken)
    assert after.tokens is not None
    assert after.tokens.remaining == 10_000 - 70


@pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
async def test_key_and_group_on_two_nodes_of_a_cluster() -> None:
    with running_cluster(2, replicas=0, node_timeout_ms=PATIENT_MS) as cluster:
        home = cluster.owner_of(KEY.key).port
        names = (plan_of(group(f"g{number}", {RPM: 7})) for number in range(100))
        away = next(plan for plan in names if cluster.owner_of(plan.key).port != home)
        async with AsyncExitStack() as stack:
            workers = [await started(stack, cluster.url, number) for number in range(2)]
            assert await admitted_in_the_end(workers, away) == 7
            assert await admitted_in_the_end(workers, simple()) == 20 - 7
