"""Limits of parts of the tokens, of calendar months, and of nothing: with the fake and on a real Redis."""

from collections.abc import AsyncIterator
from importlib import resources

import pytest
import redis

from policy.billing import Tokens
from policy.limits.effective import Plan
from policy.limits.kinds import KINDS, Calendar, Kind, LimitType, Unit, window_number
from policy.limits.script_constants import kind_constants
from policy.limits.settlement import Estimate
from policy.limits.windows import DAY_MS
from proxy.accounting.reservations import LimitHit, Taken
from tests.contracts.redis.counters_world import START_MS, World, fake_world, group, plan_of, redis_world
from tests.redis_server import REDIS_BINARIES, private_redis

CALL = Estimate(100, 50, output=30, output_margin=20)
TOKENS = Tokens(input=80, output=25, cached_input=60)
COUNTED = {
    LimitType.REQUEST: (1, 1),
    LimitType.TOKEN: (100, 105),
    LimitType.UNCACHED_INPUT_TOKEN: (70, 20),
    LimitType.OUTPUT_TOKEN: (30, 25),
    LimitType.CONCURRENT_REQUEST: (1, 0),
}
"""Shares of `CALL` and of `TOKENS` that each kind is expected to count."""
NOVEMBER_MS = START_MS - START_MS % DAY_MS + 28 * DAY_MS


@pytest.fixture(params=["fake", *REDIS_BINARIES])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "fake":
        yield fake_world()
        return
    with private_redis(binary=request.param) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        new_world = redis_world(server.url, client)
        await new_world.counters.start()
        yield new_world
        await new_world.counters.close()


def plan(**limits: int) -> Plan:
    return plan_of(group("g1", {kind_of(name): threshold for name, threshold in limits.items()}))


def kind_of(name: str) -> Kind:
    type, _, unit = name.partition("__")
    return LimitType[type], Unit[unit]


async def take(world: World, plan: Plan, estimate: Estimate = CALL) -> Taken | LimitHit:
    return await world.counters.take(plan, estimate)


async def settle(world: World, admission: Taken | LimitHit, tokens: Tokens = TOKENS) -> None:
    assert isinstance(admission, Taken)
    if admission.place is not None:
        admission.place.release()
    for one in admission.reservations:
        world.counters.settle(one, number=next(world.counters.numbers), actual_tokens=one.type.amount(tokens))
    await world.quiet()


@pytest.mark.parametrize("kind", KINDS, ids="/".join)
async def test_each_kind_counts_its_part_of_a_call(world: World, kind: Kind) -> None:
    """Admitted while what is expected of the calls before leaves room, and what they were settled at."""
    expected, settled = COUNTED[kind[0]]
    full = plan_of(group("g1", {kind: expected}))
    admission = await take(world, full)
    assert isinstance(await take(world, full), LimitHit), "reserved"
    await settle(world, admission)
    roomy, tight = (plan_of(group("g1", {kind: threshold})) for threshold in (settled + 1, settled))
    assert isinstance(await take(world, tight), LimitHit), "settled"
    assert isinstance(await take(world, roomy), Taken)


@pytest.mark.parametrize("kind", KINDS, ids="/".join)
async def test_a_call_that_was_not_sent_gives_back_what_each_kind_counted(world: World, kind: Kind) -> None:
    one = plan_of(group("g1", {kind: 1}))
    for _ in range(3):
        admission = await take(world, one)
        assert isinstance(admission, Taken)
        world.counters.give_back(admission)  # type: ignore[attr-defined]
        await world.quiet()


async def test_types_of_tokens_are_counted_beside_each_other(world: World) -> None:
    limits = plan(REQUEST__MINUTE=9, TOKEN__MINUTE=1000, OUTPUT_TOKEN__MINUTE=60, UNCACHED_INPUT_TOKEN__DAY=1000)
    admissions = [await take(world, limits) for _ in range(3)]
    assert [type(one) for one in admissions] == [Taken, Taken, LimitHit], "output"
    for one in admissions[:2]:
        await settle(world, one)
    again = await take(world, limits)
    assert isinstance(again, Taken)
    assert again.tokens is not None
    assert (again.tokens.limit, again.tokens.remaining) == (1000, 1000 - 2 * 105 - 100), "x-ratelimit-* are of TOKEN"


async def test_months_count_until_they_end(world: World) -> None:
    limits = plan(REQUEST__MONTH=2, OUTPUT_TOKEN__MONTH=1000)
    await settle(world, await take(world, limits))
    await world.advance(5 * DAY_MS)
    await settle(world, await take(world, limits))
    hit = await take(world, limits)
    assert isinstance(hit, LimitHit)
    assert hit.bound.limit.unit is Unit.MONTH
    assert hit.retry_after_ms == NOVEMBER_MS - world.now_ms
    await world.at(NOVEMBER_MS - 1)
    assert isinstance(await take(world, limits), LimitHit)
    await world.at(NOVEMBER_MS)
    assert isinstance(await take(world, limits), Taken)


async def test_a_step_over_the_end_of_a_month_and_back_loses_nothing(world: World) -> None:
    limits = plan(REQUEST__MONTH=2)
    await world.at(NOVEMBER_MS - 10)
    await settle(world, await take(world, limits))
    await world.at(NOVEMBER_MS)
    await settle(world, await take(world, limits))
    await world.at(NOVEMBER_MS - 5)
    await settle(world, await take(world, limits))
    assert isinstance(await take(world, limits), LimitHit)


async def test_a_hash_that_counts_months_outlives_one(world: World) -> None:
    """The hash stays while other groups are used that count no months."""
    if world.redis is None:
        return
    root = group("g1", {(LimitType.REQUEST, Unit.MONTH): 9})
    child = group("g2", {(LimitType.REQUEST, Unit.MINUTE): 9}, "g1")
    await take(world, plan_of(child, root))
    assert world.redis.ttl(plan_of(root).key) > 31 * 86_400
    await world.advance(3_600_000)
    await take(world, plan_of(child, group("g1", {})))
    assert world.redis.ttl(plan_of(root).key) > 31 * 86_400


@pytest.mark.parametrize("kind", KINDS, ids="/".join)
async def test_a_threshold_of_zero_refuses_every_call_for_a_minute(world: World, kind: Kind) -> None:
    closed = plan_of(group("g1", {(LimitType.REQUEST, Unit.SECOND): 9} | {kind: 0}))
    hit = await take(world, closed)
    assert isinstance(hit, LimitHit)
    assert (hit.bound.limit.threshold, hit.retry_after_s) == (0, 60)
    await world.advance(70_000)
    assert isinstance(await take(world, closed), LimitHit)


@pytest.mark.parametrize("binary", REDIS_BINARIES)
def test_scripts_know_the_same_months_as_the_reference(binary: str) -> None:
    days = range(0, 60_000, 13)
    text = kind_constants() + "".join(
        resources.files("policy.limits").joinpath(f"{name}.lua").read_text("utf-8") for name in ("month", "log")
    )
    body = "local found = {} for at = 1, #ARGV do found[at] = month_of(tonumber(ARGV[at])) end return found"
    with private_redis(binary=binary) as server, redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        months = [
            m for at in range(0, len(days), 1000) for m in client.eval(text + body, 1, "k", *days[at : at + 1000])
        ]
    assert months == [window_number(Calendar.MONTH, day) for day in days]
