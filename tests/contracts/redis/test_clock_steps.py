"""Redis' clock steps, back or forward and back, by any size: the fake and the real scripts keep every entry's age.

That the scripts follow the reference through random steps is tested in `test_admission_machine.py`.
"""

import pytest

from policy.limits.async_limits import submissions_plan
from policy.limits.effective import Plan
from policy.limits.tiers import Tier, tier_plan
from policy.limits.windows import DAY_MS, lease_ms
from tests.contracts.redis.counters_world import (
    RPM,
    START_MS,
    TPM,
    World,
    group,
    plan_of,
    simple,
)

HOUR_MS = 3_600_000
MIDNIGHT_MS = START_MS - START_MS % DAY_MS + DAY_MS
STEPS_MS = [1, 500, 61_000, HOUR_MS, 400 * DAY_MS]


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize(("limits", "window_ms"), [({"rps": 3}, 1_000), ({"rpm": 3}, 60_000), ({"rpm": 90}, 60_000)])
async def test_entries_keep_their_age_when_the_clock_steps_back(
    world: World, limits: dict[str, int], window_ms: int, step_ms: int
) -> None:
    plan = simple(**limits)
    threshold = sum(limits.values())
    assert await world.admitted(plan, threshold) == threshold
    await world.advance(400)
    await world.admit(simple(rpd=10**6, **dict.fromkeys(limits, 10**6)))
    await world.advance(-step_ms)
    hit = await world.hit(plan)
    assert hit.retry_after_ms <= window_ms + 1
    await world.advance(hit.retry_after_ms - 1)
    assert (await world.hit(plan)).retry_after_ms == 1
    await world.advance(1)
    await world.admit(plan)


@pytest.mark.parametrize(
    "plan",
    [simple(rpm=3), tier_plan("ws", Tier(3, 10**6)), submissions_plan("ws")],
    ids=["group", "tier", "asynchronous requests"],
)
async def test_a_second_on_a_wrong_clock_admits_a_threshold_more(world: World, plan: Plan) -> None:
    threshold = plan.bounds[0].limit.threshold
    calls = min(threshold, 3)
    assert await world.admitted(plan, calls) == calls
    await world.advance(HOUR_MS)
    assert await world.admitted(plan, calls) == calls
    await world.advance(1_000 - HOUR_MS)
    before = await world.admit(plan) if threshold > 3 else await world.hit(plan)
    assert before.requests is not None
    assert before.requests.remaining == max(0, threshold - calls - 1)
    await world.advance(60_001)
    assert await world.admitted(plan, calls) == calls


async def test_limits_of_a_path_that_were_used_at_different_times_stay_exact(world: World) -> None:
    """The time of one child is less ahead of the clock than its root's, until both are used together."""
    root = group("root", {RPM: 4})
    one, other = (plan_of(group(name, {RPM: 2}, "root"), root) for name in ("one", "other"))
    await world.admit(one)
    await world.advance(30_000)
    await world.admit(other)
    await world.advance(-HOUR_MS)
    alone = plan_of(group("one", {RPM: 2}), group("root", {}))
    await world.admit(alone)
    assert (await world.hit(one)).bound.counting_group == "one"
    await world.admit(other)
    await world.advance(59_000)
    assert [(await world.hit(plan)).retry_after_ms for plan in (alone, one, other)] == [1_001] * 3
    await world.advance(1_001)
    assert await world.admitted(one, 3) == 2
    assert await world.admitted(other, 3) == 2


@pytest.mark.parametrize("step_ms", STEPS_MS)
async def test_settlement_finds_its_entry_after_a_step_back(world: World, step_ms: int) -> None:
    plan = simple(tpm=1_000, tpd=10_000)
    admission = await world.admit(plan, 400, margin=50)
    await world.advance(700)
    later = await world.admit(plan, 300, margin=50)
    await world.advance(-step_ms)
    await world.settle(admission, 100)
    await world.settle(later, 300)
    await world.settle(await world.admit(plan, 100), 100)
    probe = await world.admit(plan, 0)
    assert probe.tokens is not None
    assert probe.tokens.remaining == 1_000 - 100 - 300 - 100
    await world.advance(lease_ms(1200) + 1)
    assert (await world.admit(simple(tpd=10_000), 0)).tokens == probe.tokens.__class__(
        10_000, 10_000 - 500, DAY_MS - world.now_ms % DAY_MS
    )


async def test_settlement_after_entries_were_moved_leaves_no_less_counted_than_was_used(world: World) -> None:
    """The group's entries move by the distance of the first two, so the refund of the second finds the first."""
    root = group("root", {TPM: 10**6})
    one = plan_of(group("one", {TPM: 1_000}, "root"), root)
    await world.settle(await world.admit(one, 300), 300)
    await world.advance(20_000)
    admission = await world.admit(one, 400)
    await world.advance(20_000)
    await world.admit(plan_of(group("other", {TPM: 1_000}, "root"), root), 1)
    await world.advance(-HOUR_MS)
    alone = plan_of(group("one", {TPM: 1_000}), group("root", {}))
    await world.admit(alone, 10)  # from here on the times of both groups differ
    await world.admit(one, 20)
    await world.settle(admission, 100)
    probe = await world.admit(one, 0)
    assert probe.tokens is not None
    assert 1_000 - 730 <= probe.tokens.remaining <= 1_000 - 430
    await world.advance(30_000)  # the first one leaves
    probe = await world.admit(one, 0)
    assert probe.tokens is not None
    assert probe.tokens.remaining <= 1_000 - 130
    await world.advance(30_001)
    assert (await world.admit(one, 0)).tokens == probe.tokens.__class__(1_000, 1_000, 0)


async def test_day_keeps_its_counts_over_a_step_to_another_day_and_back(world: World) -> None:
    plan = simple(rpd=5, tpd=1_000)
    for _ in range(3):
        await world.settle(await world.admit(plan, 10), 100)
    await world.at(MIDNIGHT_MS + 5_000)
    await world.settle(await world.admit(plan, 10), 50)
    await world.at(MIDNIGHT_MS - 5_000)
    before_midnight = await world.admit(plan, 0)
    assert before_midnight.requests is not None
    assert before_midnight.tokens is not None
    assert (before_midnight.requests.remaining, before_midnight.tokens.remaining) == (1, 700)
    assert before_midnight.requests.reset_ms == 5_000
    await world.at(MIDNIGHT_MS)
    after_midnight = await world.admit(plan, 0)
    assert after_midnight.requests is not None
    assert after_midnight.tokens is not None
    assert (after_midnight.requests.remaining, after_midnight.tokens.remaining) == (3, 950)


async def test_day_that_counted_nothing_does_not_displace_one_that_did(world: World) -> None:
    """A settlement of another limit touches the group on further days."""
    plan = simple(rpd=5, rps=10)
    assert await world.admitted(plan, 4) == 4
    for days in (1, 2, 3):
        await world.at(START_MS + days * DAY_MS)
        assert await world.admitted(simple(rps=10), 1) == 1
    await world.at(START_MS + 1_001)
    assert await world.admitted(plan, 3) == 1


async def test_day_that_was_only_looked_at_does_not_displace_one_that_counted_later(world: World) -> None:
    plan = simple(rpd=2)
    assert await world.admitted(plan, 2) == 2
    await world.at(MIDNIGHT_MS + DAY_MS - 1)
    assert await world.admitted(plan, 2) == 2
    await world.at(MIDNIGHT_MS - 1)
    await world.hit(plan)  # stored, because the clock has stepped
    await world.at(MIDNIGHT_MS + DAY_MS)
    assert await world.admitted(plan, 1) == 1
    await world.at(MIDNIGHT_MS + DAY_MS - 1)
    await world.hit(plan)


async def test_give_back_after_a_step_over_midnight_lowers_no_other_day(world: World) -> None:
    plan = simple(rpd=5)
    assert await world.admitted(plan, 3) == 3
    await world.at(MIDNIGHT_MS + 1_000)
    admission = await world.admit(plan)
    await world.at(MIDNIGHT_MS - 1_000)
    await world.admit(plan)
    world.counters.give_back(admission)  # type: ignore[attr-defined]
    await world.quiet()
    assert await world.admitted(plan, 5) == 1


async def test_give_back_after_a_step_back_makes_room_within_the_day(world: World) -> None:
    plan = simple(rpm=2)
    admission = await world.admit(plan)
    await world.advance(-HOUR_MS)
    await world.admit(plan)
    world.counters.give_back(admission)  # type: ignore[attr-defined]
    await world.quiet()
    await world.admit(plan)
    await world.hit(plan)
