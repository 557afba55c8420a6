"""Counters with the test's own clock: the in-memory fake, or the real ones on a real Redis.

The real scripts take their time from a Redis key instead of from TIME; all else is as in production.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import redis

from policy.limits.counter_layout import calendar_usage
from policy.limits.effective import Plan, plan_for
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.limits.settlement import Estimate, Reservation, Settlement
from policy.limits.windows import DAY_MS
from proxy.accounting.reservations import LimitHit, Taken
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.edges.redis.scripts import Scripts
from tests.fakes.counters import FakeCounters
from tests.policy.limits.trees import levels_for
from tests.redis_counters import pending_settlements

SLUG = "acme/chat"
START_MS = 20_000 * DAY_MS + 43_200_000
"""Noon of a UTC day."""
CLOCK_KEY = "test:now"
REDIS_CLOCK = f"(function() local t = redis.call('GET', '{CLOCK_KEY}') return {{0, t * 1000}} end)()"

RPS, RPM, RPD = ((LimitType.REQUEST, unit) for unit in (Unit.SECOND, Unit.MINUTE, Unit.DAY))
TPS, TPM, TPD = ((LimitType.TOKEN, unit) for unit in (Unit.SECOND, Unit.MINUTE, Unit.DAY))
Limits = dict[tuple[LimitType, Unit], int]


def day_usage(header: bytes | None, clock_ms: int, other_days: bytes | None = None) -> tuple[int, int]:
    """The requests and the settled tokens of a group's day."""
    requests, tokens = (calendar_usage(kind, header, other_days, clock_ms) for kind in (RPD, TPD))
    return requests, tokens


class Counters(Protocol):
    """The counters as the request path and the recovery use them."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def take(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken | LimitHit: ...
    @property
    def numbers(self) -> Iterator[int]: ...
    def settle(self, reservation: Reservation, *, number: int, actual_tokens: int) -> None: ...
    async def replay(self, incarnation: str, settlements: Sequence[Settlement]) -> None: ...


@dataclass
class World:
    """Counters and their clock."""

    counters: Counters
    now_ms: int = START_MS
    redis: "redis.Redis | None" = None
    unsettled: list[Settlement] = field(default_factory=list)

    async def advance(self, milliseconds: int) -> None:
        await self.at(self.now_ms + milliseconds)

    async def at(self, now_ms: int) -> None:
        await self.quiet()
        self.now_ms = now_ms
        if self.redis is not None:
            self.redis.set(CLOCK_KEY, now_ms)

    async def quiet(self) -> None:
        """Wait until all settlements are in."""
        while isinstance(self.counters, RedisCounters) and pending_settlements(self.counters):
            await asyncio.sleep(0.001)

    async def admit(self, plan: Plan, estimate: int = 1, *further: Plan, margin: int = 0) -> Taken:
        answer = await self.counters.take(plan, Estimate(estimate, margin), further)
        assert isinstance(answer, Taken), answer
        return answer

    async def hit(self, plan: Plan, estimate: int = 1, *further: Plan, margin: int = 0) -> LimitHit:
        answer = await self.counters.take(plan, Estimate(estimate, margin), further)
        assert isinstance(answer, LimitHit), answer
        return answer

    async def admitted(self, plan: Plan, calls: int, estimate: int = 1, margin: int = 0) -> int:
        """Make calls one after the other; return how many were admitted."""
        answers = [await self.counters.take(plan, Estimate(estimate, margin)) for _ in range(calls)]
        return sum(isinstance(answer, Taken) for answer in answers)

    async def settle(self, admission: Taken, actual: int) -> list[Settlement]:
        if admission.place is not None:
            admission.place.release()
        settlements = [
            Settlement(reservation=reservation, number=next(self.counters.numbers), actual_tokens=actual)
            for reservation in admission.reservations
        ]
        for settlement in settlements:
            self.counters.settle(
                settlement.reservation, number=settlement.number, actual_tokens=settlement.actual_tokens
            )
        await self.quiet()
        return settlements


def fake_world() -> World:
    world = World(None)  # type: ignore[arg-type]  # the counters need the world's clock first
    world.counters = FakeCounters(lambda: world.now_ms)
    return world


def redis_world(url: str, client: "redis.Redis") -> World:
    client.flushall()
    client.set(CLOCK_KEY, START_MS)
    patient = RedisClientOptions(deadline_s=10)  # what is counted is asked, however busy the machine
    options = CountersOptions(local_refusals=False, scripts=Scripts.load(REDIS_CLOCK), client=patient)
    return World(RedisCounters(url, "worker-1", options=options), redis=client)


def group(id: str, limits: Limits, parent: str | None = None, *, cascading: bool = True) -> Group:
    """A group that may call `SLUG` under these limits."""
    of = [Limit(*kind, threshold) for kind, threshold in limits.items()]
    entry = SlugLimits(SLUG, tuple(one for one in of if one.is_rate), tuple(one for one in of if not one.is_rate))
    mode = Enforcement.CASCADING if cascading else Enforcement.INDEPENDENT
    return Group(id, "ws", parent, f"entity-{id}", mode, (entry,))


def plan_of(*path: Group) -> Plan:
    """The plan of `path[0]`, whose ancestors follow."""
    plan = plan_for(path, SLUG, levels_for(path, SLUG))
    assert plan is not None
    return plan


def simple(**limits: int) -> Plan:
    """One group's plan: `simple(rpm=3, tpd=1000)`."""
    kinds = {"rps": RPS, "rpm": RPM, "rpd": RPD, "tps": TPS, "tpm": TPM, "tpd": TPD}
    return plan_of(group("g1", {kinds[name]: threshold for name, threshold in limits.items()}))
