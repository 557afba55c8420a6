"""Mode `local` without Redis: each worker enforces its share of each threshold; Redis is charged when it is back."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from policy.limits.tiers import Tier, tier_plan
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.worker_roster import Share
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import day_usage, simple
from tests.redis_counters import pending_settlements
from tests.redis_server import RedisServer, private_redis
from tests.stepped_clock import SteppedClock
from tests.waiting import eventually

OPTIONS = CountersOptions(on_loss="local", roster_interval_s=0.05, client=RedisClientOptions(deadline_s=0.3))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis(["--appendonly", "yes", "--appendfsync", "always"]) as running:
        yield running


@pytest.fixture
async def workers(server: RedisServer) -> AsyncIterator[list[RedisCounters]]:
    """Three workers that share the thresholds."""
    counters_list = [RedisCounters(server.url, f"worker-{n}", options=OPTIONS) for n in range(3)]
    async with AsyncExitStack() as stack:
        for counters in counters_list:
            await counters.start()
            stack.push_async_callback(counters.close)
        await eventually(
            lambda: all(c._roster.share is not None and c._roster.share.workers == 3 for c in counters_list)
        )
        yield counters_list


async def lose(server: RedisServer, workers: list[RedisCounters]) -> None:
    server.kill()
    await eventually(lambda: not any(counters.available for counters in workers))


async def come_back(server: RedisServer, workers: list[RedisCounters]) -> None:
    server.start()
    await eventually(lambda: all(counters.available and pending_settlements(counters) == 0 for counters in workers))


async def admissions(counters: RedisCounters, plan: Plan, calls: int, estimate: int = 1) -> list[Taken]:
    answers = [await counters.take(plan, Estimate(estimate)) for _ in range(calls)]
    return [answer for answer in answers if isinstance(answer, Taken)]


async def test_shares_add_up_to_the_threshold(server: RedisServer, workers: list[RedisCounters]) -> None:
    await lose(server, workers)
    admitted = [len(await admissions(counters, simple(rpm=11), 20)) for counters in workers]
    assert admitted == [4, 4, 3]
    assert [counters.local_decisions for counters in workers] == [20, 20, 20]


@pytest.mark.parametrize("step_s", [-3600, 3600])
async def test_step_of_the_machines_clock_changes_no_share(
    server: RedisServer, workers: list[RedisCounters], monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    assert await admissions(workers[0], simple(rps=9), 1)  # so that its history counts when Redis is lost
    await lose(server, workers)
    assert len(await admissions(workers[0], simple(rpm=9), 5)) == 3
    wall_clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_clock() + step_s * 10**9)
    assert not await admissions(workers[0], simple(rpm=9), 5)
    await admissions(workers[0], simple(rps=9), 5)
    await eventually(lambda: admissions(workers[0], simple(rps=9), 1), "the next second admits again")


async def test_local_decisions_are_reported_and_logged(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    decisions: list[None] = []
    options = replace(OPTIONS, on_local_decision=lambda: decisions.append(None))
    counters = RedisCounters(server.url, "worker-1", options=options)
    await counters.start()
    assert len(await admissions(counters, simple(rpm=11), 2)) == 2
    assert not decisions
    await lose(server, [counters])
    assert counters.decides
    assert len(await admissions(counters, simple(rpm=11), 20)) == 9
    assert len(decisions) == 20
    await come_back(server, [counters])
    assert [record.getMessage() for record in caplog.records if record.name.endswith(".counters")] == [
        "Redis is lost; this worker enforces its share of each limit from memory (Share(rank=0, workers=1)).",
        "Redis is back and decides again; 20 requests were decided without it.",
    ]
    await counters.close()


async def test_worker_with_a_share_of_zero_admits_nothing(server: RedisServer, workers: list[RedisCounters]) -> None:
    await lose(server, workers)
    refusal = await workers[2].take(simple(rpm=2), Estimate(1))
    assert isinstance(refusal, LimitHit)
    assert refusal.retry_after_ms > 0
    assert len(await admissions(workers[1], simple(rpm=2), 3)) == 1


async def test_worker_counts_its_own_last_window(server: RedisServer, workers: list[RedisCounters]) -> None:
    plan = simple(rpm=12, rpd=90, tpm=3000, tpd=90_000)
    assert len(await admissions(workers[0], plan, 3, 100)) == 3
    await lose(server, workers)
    assert len(await admissions(workers[0], plan, 9, 100)) == 1
    assert len(await admissions(workers[1], plan, 9, 100)) == 4
    day = simple(rpd=12)  # the same bucket of the day
    assert [len(await admissions(counters, day, 9)) for counters in workers] == [0, 0, 4]


async def test_loss_admits_at_most_the_other_workers_shares_in_addition(
    server: RedisServer, workers: list[RedisCounters]
) -> None:
    """The worst case of docs/operating.md: one worker has admitted everything, and no other has asked Redis since."""
    plan = simple(rpm=120, rpd=120)
    threshold = 120
    count = len(workers)
    assert len(await admissions(workers[0], plan, 150)) == threshold
    await lose(server, workers)
    after = [len(await admissions(counters, plan, 150)) for counters in workers]
    assert after == [0, 40, 40]
    assert threshold + sum(after) == threshold * (2 - 1 / count)


@pytest.mark.parametrize("limits", [{"rpm": 120}, {"rpm": 60, "rpd": 120}, {"rpd": 120}], ids=str)
async def test_worker_that_knows_of_an_exhausted_limit_admits_nothing(
    server: RedisServer, workers: list[RedisCounters], limits: dict[str, int]
) -> None:
    plan = simple(**limits)
    used_count = len(await admissions(workers[0], plan, 150))
    for counters in workers[1:]:
        assert isinstance(await counters.take(plan, Estimate(1)), LimitHit)
    await lose(server, workers)
    assert [len(await admissions(counters, plan, 150)) for counters in workers] == [0, 0, 0]
    assert used_count == min(limits.values())


@pytest.mark.parametrize("limits", [{"rpm": 120}, {"rpd": 120}], ids=str)
async def test_each_worker_takes_its_share_of_what_was_left(
    server: RedisServer, workers: list[RedisCounters], limits: dict[str, int]
) -> None:
    plan = simple(**limits)
    used_count = len(await admissions(workers[0], plan, 88))
    for counters in workers[1:]:
        used_count += len(await admissions(counters, plan, 1))
    await lose(server, workers)
    after = [len(await admissions(counters, plan, 150)) for counters in workers]
    assert after == [0, 10, 10]  # 31 and 30 were left when they were told
    assert used_count + sum(after) <= 120


async def test_tokens_are_reserved_and_settled_from_memory(server: RedisServer, workers: list[RedisCounters]) -> None:
    plan = simple(tpm=300, tpd=30_000)
    await lose(server, workers)
    admitted = await admissions(workers[0], plan, 3, 100)
    assert len(admitted) == 1
    settle(workers[0], admitted[0], 40)
    assert len(await admissions(workers[0], plan, 3, 100)) == 1


def settle(counters: RedisCounters, admission: Taken, actual: int) -> None:
    for reservation in admission.reservations:
        counters.settle(reservation, number=next(counters.numbers), actual_tokens=actual)


async def test_redis_is_charged_for_calls_admitted_without_it(
    server: RedisServer, workers: list[RedisCounters]
) -> None:
    plan = simple(rpm=30, rpd=60, tpm=3000, tpd=6000)
    before = await admissions(workers[0], plan, 2, 100)
    await lose(server, workers)
    during = [await admissions(counters, plan, 3, 100) for counters in workers]
    for admission in (*before, *during[0]):
        settle(workers[0], admission, 70)
    for counters, admitted in zip(workers[1:], during[1:], strict=True):
        for admission in admitted:
            settle(counters, admission, 70)
    await come_back(server, workers)
    after = (await admissions(workers[0], plan, 1, 0))[0]
    assert after.requests is not None
    assert after.tokens is not None
    assert after.requests.remaining == 30 - 2 - 9 - 1
    assert after.tokens.remaining == 3000 - 11 * 70
    with redis.Redis(unix_socket_path=str(server.socket_path)) as own:
        header = own.hget(plan.key, "g1")
    assert isinstance(header, bytes)
    assert day_usage(header, time.time_ns() // 1_000_000) == (2 + 9 + 1, 11 * 70)


async def test_tier_returned_in_memory_is_not_settled_in_redis(
    server: RedisServer, workers: list[RedisCounters]
) -> None:
    tier = tier_plan("ws", Tier(30, 30_000))
    plan = simple(rpm=3)
    await lose(server, workers)
    answers = [await workers[0].take(plan, Estimate(10), [tier]) for _ in range(8)]
    assert [type(answer) for answer in answers] == [Taken] + [LimitHit] * 7
    for answer in answers[:1]:
        assert isinstance(answer, Taken)
        assert len(answer.reservations) == 2
        settle(workers[0], answer, 5)
    await come_back(server, workers)
    after = (await admissions(workers[0], tier, 1, 0))[0]
    assert after.requests is not None
    assert after.tokens is not None
    assert (after.requests.remaining, after.tokens.remaining) == (28, 29_995)


async def test_worker_started_without_redis_has_no_share(server: RedisServer) -> None:
    server.kill()
    decisions: list[None] = []
    options = replace(OPTIONS, on_local_decision=lambda: decisions.append(None))
    counters = RedisCounters(server.url, "late", options=options)
    await counters.start()
    with pytest.raises(CountersUnavailableError):
        await counters.take(simple(rpm=5), Estimate(1))
    assert not counters.decides
    assert not decisions
    await counters.close()


async def test_new_worker_has_no_share_until_the_others_know_of_it(server: RedisServer) -> None:
    """The others keep larger shares until they refresh, so that together they would admit too much."""
    slow = replace(OPTIONS, roster_interval_s=3600)
    first, second = (RedisCounters(server.url, f"worker-{n}", options=slow) for n in range(2))
    await first.start()
    await second.start()
    await lose(server, [first, second])
    assert (first.decides, second.decides) == (True, False)
    assert len(await admissions(first, simple(rpm=11), 20)) == 11
    with pytest.raises(CountersUnavailableError):
        await second.take(simple(rpm=11), Estimate(1))
    await first.close()
    await second.close()


async def test_step_of_redis_clock_forgets_dead_workers_and_no_others(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    with private_redis(environment=clock.environment) as server:
        async with AsyncExitStack() as stack:
            counters_list = [RedisCounters(server.url, f"worker-{n}", options=OPTIONS) for n in range(3)]
            for counters in counters_list:
                await counters.start()
                stack.push_async_callback(counters.close)
            rosters = [counters._roster for counters in counters_list]
            await eventually(lambda: all(one.share is not None and one.share.workers == 3 for one in rosters))
            await eventually(lambda: all(time.monotonic() > one._trusted_from for one in rosters))
            clock.step(3600)
            await rosters[0]._refresh()
            assert rosters[0].share == Share(0, 3)
            dead = rosters.pop()._task
            assert dead is not None
            dead.cancel()
            clock.step(-3600)
            await eventually(lambda: [one.share for one in rosters] == [Share(0, 2), Share(1, 2)])


async def test_lone_worker_shrinks_its_share_at_once(server: RedisServer) -> None:
    """The worker may have just started, and would not expire another worker yet."""
    slower = replace(OPTIONS, roster_interval_s=0.3)
    first, second = (RedisCounters(server.url, f"worker-{n}", options=slower) for n in range(2))
    await first.start()
    assert first._roster.share == Share(0, 1)
    await second.start()
    await eventually(lambda: second._roster.share is not None)
    assert (first._roster.share, second._roster.share) == (Share(0, 2), Share(1, 2))
    await first.close()
    await second.close()


async def test_worker_joining_after_a_loss_expires_no_other_worker(
    server: RedisServer, workers: list[RedisCounters]
) -> None:
    await lose(server, workers)
    for counters in workers:
        await counters._roster.close()  # they have not yet said again that they live
    server.start()
    with redis.Redis(unix_socket_path=str(server.socket_path)) as own:
        own.zadd("tg:workers", {f"worker-{n}": int(time.time()) - 60 for n in range(3)})
    late = RedisCounters(server.url, "worker-9", options=OPTIONS)
    await late.start()
    await eventually(lambda: late._roster.share is not None)
    assert late._roster.share == Share(3, 4)
    await late.close()


async def test_next_loss_starts_from_the_latest_known_usage(server: RedisServer, workers: list[RedisCounters]) -> None:
    plan = simple(rpm=9)
    await lose(server, workers)
    admitted = await admissions(workers[0], plan, 5)
    assert len(admitted) == 3
    for admission in admitted:
        settle(workers[0], admission, 0)
    await come_back(server, workers)
    await lose(server, workers)
    assert await admissions(workers[0], plan, 5) == []


async def test_closed_worker_is_removed_from_the_roster(server: RedisServer, workers: list[RedisCounters]) -> None:
    await workers[1].close()
    survivors = (workers[0], workers[2])
    await eventually(lambda: all(c._roster.share is not None and c._roster.share.workers == 2 for c in survivors))
    await eventually(lambda: [c._roster.share.rank for c in survivors if c._roster.share] == [0, 1])
