"""Real counters on servers whose clocks differ: one server whose clock steps, and a fail-over to one that is behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import RedisCounters
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import RPM, RPS, TPM, group, plan_of
from tests.contracts.redis.real_counters import OPTIONS, counters_at, settle
from tests.redis_counters import pending_settlements
from tests.redis_sentinel import SentinelSet, running_sentinels
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.stepped_clock import COMPILER, MISSING, SteppedClock
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(COMPILER is None, reason=MISSING)
HOUR_S = 3600
MINUTELY = plan_of(group("minutely", {RPM: 3, TPM: 10_000}))
SECONDLY = plan_of(group("secondly", {RPS: 2}))


@dataclass
class Observed:
    """`steps`: the steps of servers' clocks that the counters reported, in whole seconds."""

    counters: RedisCounters
    steps: list[tuple[str, int]] = field(default_factory=list)

    async def admitted(self, plan: Plan, calls: int) -> int:
        answers = [await self.counters.take(plan, Estimate(10)) for _ in range(calls)]
        return sum(isinstance(answer, Taken) for answer in answers)

    async def hit(self, plan: Plan) -> LimitHit:
        answer = await self.counters.take(plan, Estimate(10))
        assert isinstance(answer, LimitHit)
        return answer

    async def sees_a_step(self, plan: Plan) -> bool:
        """Asks once more, whichever server answers."""
        with suppress(CountersUnavailableError):
            await self.counters.take(plan, Estimate(10))
        return bool(self.steps)


@asynccontextmanager
async def observed_at(url: str) -> AsyncIterator[Observed]:
    steps: list[tuple[str, int]] = []
    options = replace(OPTIONS, on_clock_step=lambda server, by_ms: steps.append((server, round(by_ms / 1000))))
    async with counters_at(url, options) as counters:
        yield Observed(counters, steps)


@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_a_second_at_an_hour_ahead_costs_no_more_than_a_threshold(tmp_path: Path, binary: str) -> None:
    clock = SteppedClock(tmp_path)
    with private_redis(binary=binary, environment=clock.environment) as server:
        async with observed_at(server.url) as observed:
            assert await observed.admitted(MINUTELY, 5) == 3
            clock.step(HOUR_S)
            assert await observed.admitted(MINUTELY, 5) == 3
            clock.step(-HOUR_S)
            assert (await observed.hit(MINUTELY)).retry_after_ms <= 60_001
            assert observed.steps == [("Redis", HOUR_S), ("Redis", -HOUR_S)]
            clock.step(61)
            assert await observed.admitted(MINUTELY, 5) == 3


@pytest.mark.parametrize("binary", REDIS_BINARIES)
async def test_a_clock_set_back_by_an_hour_lets_limits_admit_within_their_window(tmp_path: Path, binary: str) -> None:
    clock = SteppedClock(tmp_path)
    with private_redis(binary=binary, environment=clock.environment) as server:
        async with observed_at(server.url) as observed:
            before = await observed.counters.take(MINUTELY, Estimate(1_000))
            assert isinstance(before, Taken)
            await observed.admitted(SECONDLY, 2)
            clock.step(-HOUR_S)
            settle(observed.counters, before, 400)
            await eventually(lambda: not pending_settlements(observed.counters), "settled")
            after = await observed.counters.take(MINUTELY, Estimate(0))
            assert isinstance(after, Taken)
            assert after.tokens is not None
            assert after.tokens.remaining == 10_000 - 400, "the refund finds its entry"
            await eventually(lambda: observed.admitted(SECONDLY, 1), "the next second admits again")


async def test_fail_over_to_a_server_an_hour_behind_keeps_every_limit(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    clock.step(HOUR_S)
    with running_sentinels(primary_environment=clock.environment) as sentinels:
        async with observed_at(sentinels.url) as observed:
            assert await observed.admitted(MINUTELY, 5) == 3
            assert await observed.admitted(SECONDLY, 2) == 2
            sentinels.primary.run("WAIT", 2, 10_000)
            await asyncio.to_thread(SentinelSet.fail_over, sentinels)
            await eventually(lambda: observed.sees_a_step(SECONDLY), "the new primary is used")
            refusal = await observed.hit(MINUTELY)
            assert 0 < refusal.retry_after_ms <= 60_001
            assert [by_s for _, by_s in observed.steps] == [-HOUR_S]
            await eventually(lambda: observed.admitted(SECONDLY, 1), "the next second admits again")
