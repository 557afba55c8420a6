"""The contract of the counters, run against the in-memory fake and against the real scripts on a real Redis."""

import pytest

from policy.billing import MAX_COUNT
from policy.limits.settlement import Settlement
from policy.limits.tiers import Tier, tier_plan
from policy.limits.windows import DAY_MS, lease_ms
from proxy.accounting.reservations import LimitStatus, Taken
from tests.contracts.redis.counters_world import (
    RPD,
    RPM,
    RPS,
    START_MS,
    TPD,
    TPM,
    World,
    group,
    plan_of,
    simple,
)


async def test_plan_without_limits_admits_and_reserves_nothing(world: World) -> None:
    assert await world.admit(simple()) == Taken()


@pytest.mark.parametrize(("limits", "window_ms"), [({"rps": 5}, 1000), ({"rpm": 5}, 60_000), ({"rpm": 100}, 60_000)])
async def test_burst_of_the_threshold_passes_and_leaves_to_the_millisecond(
    world: World, limits: dict[str, int], window_ms: int
) -> None:
    plan = simple(**limits)
    threshold = next(iter(limits.values()))
    assert await world.admitted(plan, threshold + 3) == threshold
    refusal = await world.hit(plan)
    assert refusal.retry_after_ms == window_ms + 1
    await world.advance(window_ms)
    assert (await world.hit(plan)).retry_after_ms == 1
    await world.advance(1)
    assert await world.admitted(plan, threshold + 1) == threshold


@pytest.mark.parametrize(
    ("limits", "step_ms"),
    [({"rpm": 70}, 171), ({"rpm": 10}, 1700), ({"rps": 70}, 3), ({"rps": 5}, 19)],
    ids=["many a minute", "few a minute", "many a second", "few a second"],
)
async def test_no_window_admits_more_than_the_threshold(world: World, limits: dict[str, int], step_ms: int) -> None:
    plan = simple(**limits)
    threshold = next(iter(limits.values()))
    window_ms = 1000 if "rps" in limits else 60_000
    admitted_at: list[int] = []
    for _ in range(3 * window_ms // step_ms):
        if await world.admitted(plan, 1):
            admitted_at.append(world.now_ms)
        await world.advance(step_ms)
    assert len(admitted_at) > threshold
    for start in admitted_at:
        assert sum(start <= at <= start + window_ms for at in admitted_at) <= threshold


@pytest.mark.parametrize(("limits", "window_ms"), [({"rpm": 10}, 60_000), ({"rps": 10}, 1000)])
async def test_exact_log_returns_capacity_one_by_one(world: World, limits: dict[str, int], window_ms: int) -> None:
    plan = simple(**limits)
    for _ in range(5):
        assert await world.admitted(plan, 2) == 2
        await world.advance(3)
    await world.at(START_MS + window_ms)
    for _ in range(5):
        assert await world.admitted(plan, 3) == 0
        await world.advance(1)
        assert await world.admitted(plan, 3) == 2
        await world.advance(2)


async def test_retry_after_is_tight_when_events_are_spread_out(world: World) -> None:
    plan = simple(rpm=5, rps=2)
    for pause_ms in (10, 990, 3000, 500):
        await world.admitted(plan, 2)
        await world.advance(pause_ms)
    refusal = await world.hit(plan)
    await world.advance(refusal.retry_after_ms - 1)
    await world.hit(plan)
    await world.advance(1)
    await world.admit(plan)


async def test_refusal_by_an_ancestor_consumes_nothing_at_any_level(world: World) -> None:
    top, low = group("top", {RPM: 2}), group("low", {RPM: 2, RPD: 100, TPM: 1000}, "top")
    sibling = group("sibling", {RPM: 2}, "top")
    await world.admitted(plan_of(sibling, top), 2)
    refusal = await world.hit(plan_of(low, top), 100)
    assert refusal.bound.source_group == "top"
    assert refusal.requests == LimitStatus(2, 0, 60_001)
    assert refusal.tokens == LimitStatus(1000, 1000, 0)
    await world.advance(60_001)
    assert (await world.admit(plan_of(low, top), 100)).requests == LimitStatus(2, 1, 60_001)


async def test_cascading_call_counts_at_every_level(world: World) -> None:
    top, middle = group("top", {RPM: 3}), group("middle", {TPM: 100}, "top")
    low = group("low", {RPM: 2}, "middle")
    other = group("other", {RPM: 3}, "middle")
    assert await world.admitted(plan_of(low, middle, top), 3) == 2
    assert (await world.hit(plan_of(low, middle, top))).bound.source_group == "low"
    assert await world.admitted(plan_of(other, middle, top), 3) == 1
    assert (await world.hit(plan_of(other, middle, top))).bound.source_group == "top"


async def test_independent_groups_share_a_limit_but_not_its_bucket(world: World) -> None:
    top = group("top", {RPM: 2}, cascading=False)
    low, other = (group(name, {}, "top", cascading=False) for name in ("low", "other"))
    for caller in (low, other):
        assert await world.admitted(plan_of(caller, top), 3) == 2
    assert (await world.hit(plan_of(low, top))).bound.source_group == "top"
    assert await world.admitted(plan_of(top), 3) == 2


async def test_first_refusing_limit_follows_the_order_of_trial(world: World) -> None:
    top = group("top", {RPM: 1})
    low = group("low", {RPM: 1, TPM: 1, RPD: 1, TPD: 1}, "top")
    await world.admit(plan_of(low, top), 1)
    refusal = await world.hit(plan_of(low, top))
    assert (refusal.bound.source_group, refusal.bound.limit.type, refusal.bound.limit.unit) == ("low", *RPM)
    assert refusal.retry_after_ms == START_MS % DAY_MS  # noon: as long again, for the limits of the day refuse as well
    tokens_only = plan_of(group("low", {RPM: 9, TPM: 1, RPD: 1, TPD: 1}, "top"), top)
    assert (await world.hit(tokens_only)).bound.limit.type is TPM[0]


async def test_token_limit_admits_while_below_threshold_and_reserves_the_estimate(world: World) -> None:
    plan = simple(tpm=1000)
    assert (await world.admit(plan, 600)).tokens == LimitStatus(1000, 400, 60_001)
    assert (await world.admit(plan, 600)).tokens == LimitStatus(1000, 0, 60_001)
    await world.hit(plan, 1)
    await world.advance(60_001)
    await world.admit(plan, 5_000_000)  # a first call is never refused


async def test_largest_estimate_is_reserved_and_refunded(world: World) -> None:
    plan = simple(tpm=1000, tpd=1000)
    admission = await world.admit(plan, MAX_COUNT)
    await world.hit(plan)
    await world.settle(admission, 5)
    assert (await world.admit(plan, 4)).tokens == LimitStatus(1000, 991, 60_001)


async def test_refund_makes_room_and_excess_is_charged(world: World) -> None:
    plan = simple(tpm=1000)
    first = await world.admit(plan, 1000)
    await world.hit(plan)
    await world.advance(700)
    await world.settle(first, 100)
    second = await world.admit(plan, 1)
    assert second.tokens == LimitStatus(1000, 899, 60_001)
    await world.settle(second, 2000)
    refusal = await world.hit(plan)
    assert refusal.tokens is not None
    assert refusal.tokens.remaining == 0
    await world.advance(60_000)
    await world.hit(plan)
    await world.advance(1)
    await world.admit(plan)


async def test_refund_never_goes_to_a_younger_entry(world: World) -> None:
    plan = simple(tpm=1000)
    old = await world.admit(plan, 900)
    await world.advance(59_000)
    await world.admit(plan, 900)
    await world.advance(1_500)  # the old entry has left
    await world.settle(old, 0)
    assert (await world.admit(plan, 100)).tokens == LimitStatus(1000, 0, 60_001)


async def test_refund_finds_its_entry_among_many(world: World) -> None:
    plan = simple(tpm=100_000)
    admissions = []
    for _ in range(6):
        admissions.append(await world.admit(plan, 1000))
        await world.advance(1_000)
    await world.settle(admissions[2], 0)
    await world.settle(admissions[0], 400)
    await world.advance(60_000 - 6_000)
    assert (await world.admit(plan, 0)).tokens == LimitStatus(100_000, 100_000 - 4_400, 59_001 - 54_000 + 0)
    await world.advance(1)  # the first leaves
    remaining = (await world.admit(plan, 0)).tokens
    assert remaining is not None
    assert remaining.remaining == 96_000


async def test_fully_refunded_entry_does_not_delay_retry_after(world: World) -> None:
    plan = simple(tpm=100)
    first = await world.admit(plan, 50)
    await world.advance(1000)
    await world.admit(plan, 100)
    await world.advance(1000)
    third = await world.admit(simple(tpm=1000), 1)  # closes the second entry
    await world.settle(first, 0)
    await world.settle(third, 0)
    assert (await world.hit(plan)).retry_after_ms == 60_001 - 1000


async def test_repeated_settlement_counts_once(world: World) -> None:
    plan = simple(tpm=1000, tpd=100_000)
    settlements = await world.settle(await world.admit(plan, 10), 400)
    settlements += await world.settle(await world.admit(plan, 10), 100)
    before = (await world.admit(plan, 0)).tokens
    for again in (settlements, settlements[:1], settlements[::-1]):
        await world.counters.replay("worker-1" if world.redis else "this worker", again)
    assert (await world.admit(plan, 0)).tokens == before == LimitStatus(1000, 500, 60_001)
    await world.counters.replay("another", settlements)  # a worker of another name has numbers of its own
    assert (await world.admit(plan, 0)).tokens != before


async def test_repeated_number_within_a_batch_counts_once(world: World) -> None:
    plan = simple(tpm=1000, tpd=100_000)
    granted = [await world.admit(plan, 10) for _ in range(3)]
    numbered = [
        Settlement(reservation=admission.reservations[0], number=number, actual_tokens=100)
        for number, admission in enumerate(granted, 1)
    ]
    await world.counters.replay("dead", [*numbered, *numbered])
    assert (await world.admit(plan, 0)).tokens == LimitStatus(1000, 700, 60_001)
    assert (await world.admit(simple(tpd=100_000), 0)).tokens == LimitStatus(
        100_000, 99_700, DAY_MS - START_MS % DAY_MS
    )


async def test_day_requests_count_until_midnight(world: World) -> None:
    plan = simple(rpd=3)
    assert await world.admitted(plan, 4) == 3
    refusal = await world.hit(plan)
    assert refusal.retry_after_ms == DAY_MS - START_MS % DAY_MS
    assert refusal.requests == LimitStatus(3, 0, refusal.retry_after_ms)
    await world.advance(refusal.retry_after_ms - 1)
    await world.hit(plan)
    await world.advance(1)
    assert await world.admitted(plan, 4) == 3


async def test_day_tokens_count_on_the_day_of_their_settlement(world: World) -> None:
    plan = simple(tpd=1000)
    await world.at(START_MS - START_MS % DAY_MS + DAY_MS - 10)
    call = await world.admit(plan, 300)
    await world.advance(10)
    after_midnight = await world.admit(plan, 0)
    assert after_midnight.tokens == LimitStatus(1000, 700, DAY_MS)  # still reserved
    await world.settle(call, 999)
    assert (await world.admit(plan, 5)).tokens == LimitStatus(1000, 0, DAY_MS)
    assert (await world.hit(plan)).retry_after_ms <= DAY_MS


async def test_unsettled_day_reservation_ends_with_its_lease(world: World) -> None:
    plan = simple(tpd=1000)
    await world.admit(plan, 1000)
    refusal = await world.hit(plan)
    assert refusal.retry_after_ms == lease_ms(1200) + 1
    await world.advance(refusal.retry_after_ms - 1)
    await world.hit(plan)
    await world.advance(1)
    await world.admit(plan)


async def test_changed_threshold_applies_to_the_running_window(world: World) -> None:
    assert await world.admitted(simple(rpm=10), 5) == 5
    refusal = await world.hit(simple(rpm=5))
    assert refusal.retry_after_ms == 60_001
    assert (await world.hit(simple(rpm=2))).retry_after_ms == 60_001
    assert await world.admitted(simple(rpm=100), 100) == 95


async def test_changed_unit_starts_with_an_empty_log(world: World) -> None:
    assert await world.admitted(simple(rpm=5), 6) == 5
    assert await world.admitted(simple(rps=5), 6) == 5
    await world.hit(simple(rpm=5))


async def test_clock_that_steps_back_frees_no_capacity(world: World) -> None:
    plan = simple(rpm=2, rpd=10)
    assert await world.admitted(plan, 3) == 2
    await world.advance(-5_000)
    assert (await world.hit(plan)).retry_after_ms == 60_001
    await world.advance(5_000 + 60_001)
    await world.admit(plan)


async def test_answer_reports_the_tightest_limit_of_each_type(world: World) -> None:
    plan = simple(rps=5, rpd=3, tpm=1000, tpd=500)
    granted = await world.admit(plan, 100)
    until_midnight = DAY_MS - START_MS % DAY_MS
    assert granted.requests == LimitStatus(3, 2, until_midnight)
    assert granted.tokens == LimitStatus(500, 400, until_midnight)


async def test_tier_is_taken_first_and_given_back_when_the_group_refuses(world: World) -> None:
    tier = tier_plan("ws", Tier(3, 10_000))
    plan = simple(rpm=1, tpm=50_000)
    granted = await world.admit(plan, 100, tier)
    assert [reservation.key for reservation in granted.reservations] == [tier.key, plan.key]
    assert granted.tokens == LimitStatus(10_000, 9_900, 60_001)
    assert granted.requests == LimitStatus(1, 0, 60_001)
    for _ in range(5):
        assert (await world.hit(plan, 100, tier)).bound.source_group == "g1"
        await world.quiet()
    other = plan_of(group("g2", {RPM: 10}))
    assert (await world.admit(other, 100, tier)).requests == LimitStatus(3, 1, 60_001)
    await world.admit(other, 100, tier)
    assert (await world.hit(other, 100, tier)).bound.source_group == "ws"
    await world.quiet()
    assert (await world.admit(other, 100)).requests == LimitStatus(10, 7, 60_001)


async def test_settling_a_tier_corrects_tokens_but_no_request(world: World) -> None:
    tier = tier_plan("ws", Tier(3, 10_000))
    await world.settle(await world.admit(simple(), 100, tier), 5_000)
    after = await world.admit(simple(), 0, tier)
    assert after.requests == LimitStatus(3, 1, 60_001)
    assert after.tokens == LimitStatus(10_000, 5_000, 60_001)


async def test_settlement_counts_after_the_counters_were_lost(world: World) -> None:
    admission = await world.admit(simple(tpd=1000, rps=100), 10)
    other = plan_of(group("elsewhere", {TPD: 1000, RPS: 100}))
    reservation = admission.reservations[0]
    moved = type(reservation)(
        other.key, (("elsewhere", reservation.buckets[0][1]),), reservation.admitted_at_ms, reservation.reserved_tokens
    )
    world.counters.settle(moved, number=next(world.counters.numbers), actual_tokens=700)
    await world.quiet()
    assert (await world.admit(other, 0)).tokens == LimitStatus(1000, 300, DAY_MS - START_MS % DAY_MS)
