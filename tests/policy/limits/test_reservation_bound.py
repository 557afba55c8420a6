"""A TOKEN limit lets through at most twice the threshold, and the last call, if callers know its rule.

Callers choose everything: when they call, what is expected of a call (they choose what the estimates have seen), what
it can cost, what it costs in the end, and how long they hold it.
"""

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.limits.admission import admit, settle
from policy.limits.counter_hash import CounterHash
from policy.limits.counter_layout import kind_mask
from policy.limits.effective import Bound
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate, Reservation, Settlement
from policy.limits.windows import DAY_MS, lease_ms, window_ms

CALL_TIMEOUT_S = 100
LEASE_MS = lease_ms(CALL_TIMEOUT_S)
THRESHOLD = 10_000
NOON = 20_000 * DAY_MS + DAY_MS // 2
MIDNIGHT = 20_001 * DAY_MS
UNITS = (Unit.SECOND, Unit.MINUTE, Unit.DAY)


@dataclass(frozen=True)
class Call:
    """One call as its caller plans it. `given_back`: it never goes upstream."""

    at_ms: int
    held_ms: int
    expected: int
    most: int
    true: int
    given_back: bool = False


@dataclass(frozen=True)
class Passed:
    """A call that was admitted, and when it was settled."""

    call: Call
    at_ms: int
    settled_ms: int


Rule = Callable[[Call], Estimate]


def both_sums(call: Call) -> Estimate:
    return Estimate(call.expected, call.most - call.expected)


def first_sum(call: Call) -> Estimate:
    return Estimate(call.expected)


def admitted(unit: Unit, calls: Iterable[Call], rule: Rule = both_sums) -> list[Passed]:
    """Offer the calls in the order of time; settle each when its caller lets it end."""
    limit = Limit(LimitType.TOKEN, unit, THRESHOLD)
    counters = CounterHash(LEASE_MS)
    bounds = (Bound(limit, "g", "g"),)
    mask = kind_mask((limit,))
    passed: list[Passed] = []
    ends: list[tuple[int, int]] = []

    def end_those_due(now_ms: int) -> None:
        while ends and ends[0][0] <= now_ms:
            at_ms, number = heapq.heappop(ends)
            one = passed[number]
            estimate = rule(one.call)
            reservation = Reservation(
                key="k",
                buckets=(("g", mask),),
                admitted_at_ms=one.at_ms,
                reserved_tokens=estimate.expected,
                margin_tokens=estimate.margin,
            )
            actual = 0 if one.call.given_back else one.call.true
            settlement = Settlement(
                reservation=reservation, number=1, actual_tokens=actual, given_back=one.call.given_back
            )
            settle(counters, f"call {number}", (settlement,), at_ms)

    for call in sorted(calls, key=lambda one: one.at_ms):
        end_those_due(call.at_ms)
        decision = admit(counters, bounds, (rule(call),), call.at_ms)
        if decision.admitted:
            heapq.heappush(ends, (call.at_ms + call.held_ms, len(passed)))
            passed.append(Passed(call, decision.now_ms, call.at_ms + call.held_ms))
    end_those_due(MIDNIGHT + DAY_MS)
    return passed


def most_before_the_last(unit: Unit, passed: list[Passed]) -> int:
    """The most tokens that count in one window, without the last call that was admitted for it."""
    real = [one for one in passed if not one.call.given_back]
    if unit is Unit.DAY:
        return max((_settled_in_day(day, real) for day in (NOON // DAY_MS, MIDNIGHT // DAY_MS)), default=0)
    window = window_ms(unit, 0)
    return max((_admitted_before(place, real, window) for place in range(len(real))), default=0)


def _admitted_before(place: int, real: list[Passed], window: int) -> int:
    at_ms = real[place].at_ms
    return sum(one.call.true for one in real[:place] if one.at_ms >= at_ms - window)


def _settled_in_day(day: int, real: list[Passed]) -> int:
    last = max((place for place, one in enumerate(real) if one.at_ms < (day + 1) * DAY_MS), default=-1)
    settled = [place for place, one in enumerate(real) if one.settled_ms // DAY_MS == day]
    return sum(real[place].call.true for place in settled if place != last)


def cheap_calls_then_a_burst(start_ms: int) -> list[Call]:
    """Teach the estimates that answers are short; then ask for long ones."""
    cheap = [Call(start_ms + place, 1, 1, 1, 1) for place in range(16)]
    return cheap + [Call(start_ms + 100 + place // 50, 500, 1, 32_000, 32_000) for place in range(400)]


def many_answers(start_ms: int) -> list[Call]:
    """`n: 128`, of which the estimates see the cap alone."""
    return [Call(start_ms + place, 900, 100, 12_800, 12_800) for place in range(400)]


def held_over_the_window(start_ms: int) -> list[Call]:
    """Hold calls until the window of their admission has ended; burst again at each end."""
    bursts = [start_ms + wave * 1001 for wave in range(5)] + [start_ms + wave * 60_001 for wave in range(1, 5)]
    return [Call(at_ms + place, 61_000 + place, 1, 3_000, 3_000) for at_ms in bursts for place in range(50)]


def settled_cheaply_between(start_ms: int) -> list[Call]:
    """Let calls of a high cap end early and cheap, to make room at once for those that use it up."""
    waves = range(0, 4000, 40)
    cheap = [Call(start_ms + wave, 20, 500, 9_000, 1) for wave in waves]
    return cheap + [Call(start_ms + wave + 21 + place, 50_000, 1, 9_000, 9_000) for wave in waves for place in range(3)]


def returned_before_a_burst(start_ms: int) -> list[Call]:
    """Calls that never go upstream give everything back, and nothing more."""
    back = [Call(start_ms + place, 30, 100, 8_000, 0, given_back=True) for place in range(0, 300, 7)]
    return back + [Call(start_ms + place, 2_000, 100, 8_000, 8_000) for place in range(1, 300, 5)]


SCRIPTS = (
    cheap_calls_then_a_burst,
    many_answers,
    held_over_the_window,
    settled_cheaply_between,
    returned_before_a_burst,
)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("start_ms", [NOON, MIDNIGHT - 30_000, MIDNIGHT - 500])
def test_callers_that_know_the_rule_get_twice_the_threshold_and_one_call(
    unit: Unit, script: Callable[[int], list[Call]], start_ms: int
) -> None:
    passed = admitted(unit, script(start_ms))
    assert passed
    assert most_before_the_last(unit, passed) < 2 * THRESHOLD


@pytest.mark.parametrize("script", [cheap_calls_then_a_burst, many_answers])
def test_the_same_callers_pass_the_first_sum_alone(script: Callable[[int], list[Call]]) -> None:
    """These callers would find a gap if there were one."""
    passed = admitted(Unit.DAY, script(NOON), first_sum)
    assert most_before_the_last(Unit.DAY, passed) > 50 * THRESHOLD


SIZES = st.one_of(st.integers(0, 50), st.integers(0, 3_000), st.integers(0, 100_000))
STEPS = st.one_of(st.integers(0, 5), st.integers(0, 1_100), st.integers(0, 61_000))
DURATIONS = st.one_of(st.integers(0, 30), st.integers(0, 2_000), st.integers(0, CALL_TIMEOUT_S * 1000))


@st.composite
def plans(draw: st.DrawFn) -> list[Call]:
    """Any calls at all, by a generator that is fast enough for hundreds of calls."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    size = draw(SIZES)
    step = draw(STEPS)
    longest_ms = draw(DURATIONS)
    now_ms = draw(st.sampled_from([NOON, MIDNIGHT - 100_000, MIDNIGHT - 700]))
    calls = []
    for _ in range(draw(st.integers(1, 250))):
        now_ms += rng.choice((0, 0, 1, rng.randint(0, step)))
        most = rng.randint(0, rng.choice((size, 10, 2 * THRESHOLD)))
        expected = rng.choice((0, most, rng.randint(0, most)))
        true = rng.choice((0, most, most, rng.randint(0, most)))
        calls.append(Call(now_ms, rng.randint(0, longest_ms), expected, most, true, rng.random() < 0.1))
    return calls


@given(plans(), st.sampled_from(UNITS))
def test_no_choice_of_calls_passes_twice_the_threshold_before_the_last_call(calls: list[Call], unit: Unit) -> None:
    assert most_before_the_last(unit, admitted(unit, calls)) < 2 * THRESHOLD


@pytest.mark.parametrize("unit", UNITS)
def test_first_call_of_an_idle_bucket_is_admitted_whatever_it_can_cost(unit: Unit) -> None:
    [only] = admitted(unit, [Call(NOON, 10, 10**9, 10**12, 5)])
    assert only.at_ms == NOON


def test_calls_are_offered_in_the_order_of_time() -> None:
    passed = admitted(Unit.MINUTE, many_answers(NOON))
    assert all(one.at_ms <= other.at_ms for one, other in pairwise(passed))
