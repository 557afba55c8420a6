"""A worker remembers each (group, slug) once for the time without Redis, however often its plan is replaced."""

import pytest

from policy.limits.effective import Plan, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis import local_limits
from proxy.edges.redis.admission_requests import PlanPlace
from proxy.edges.redis.local_limits import LocalLimits
from proxy.edges.redis.worker_roster import Share

NOON_MS = 1_795_262_400_000


def plan(number: int = 0, threshold: int = 10) -> Plan:
    """A new object each time, as from a directory that had dropped the plan."""
    group = f"grp_{number}"
    limits = (Limit(LimitType.REQUEST, Unit.MINUTE, threshold), Limit(LimitType.REQUEST, Unit.DAY, 10 * threshold))
    return plan_of_limits("acme/chat", group, f"tg:{{{group}|acme/chat}}", limits)


@pytest.fixture
def alone() -> LocalLimits:
    return LocalLimits(60_000, lambda: Share(0, 1), lambda: NOON_MS, lambda _key, _group: 0)


def test_replaced_plan_keeps_what_was_admitted(alone: LocalLimits) -> None:
    for _ in range(7):
        alone.record_admission(plan(), Estimate(1))
    outcomes = [alone.take(plan(), Estimate(1)) for _ in range(4)]
    assert [isinstance(one, Taken) for one in outcomes] == [True, True, True, False]
    assert isinstance(outcomes[-1], LimitHit)


def test_plan_with_changed_limits_keeps_what_was_admitted(alone: LocalLimits) -> None:
    for _ in range(7):
        alone.record_admission(plan(), Estimate(1))
    assert isinstance(alone.take(plan(threshold=8), Estimate(1)), Taken)
    assert isinstance(alone.take(plan(threshold=8), Estimate(1)), LimitHit)


def test_memory_grows_with_pairs_not_with_plan_objects(alone: LocalLimits) -> None:
    for turn in range(300):
        alone.record_admission(plan(turn % 3), Estimate(1))
    assert len(alone._histories) == 3


def test_sweeps_for_idle_pairs_become_rarer_as_pairs_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep visits every pair, so one sweep per new pair would take quadratic time."""
    monkeypatch.setattr(local_limits, "_PLANS_KEPT", 4)
    alone = LocalLimits(60_000, lambda: Share(0, 1), lambda: NOON_MS, lambda _key, _group: 0)
    sweeps: list[int] = []
    drop = alone._drop_idle

    def sweep() -> None:
        sweeps.append(len(alone._histories))
        drop()

    monkeypatch.setattr(alone, "_drop_idle", sweep)
    for number in range(100):
        alone.record_admission(plan(number), Estimate(1))
    assert sweeps == [4, 8, 16, 32, 64]


def test_usage_of_other_workers_leaves_with_its_window() -> None:
    now_ms = [NOON_MS]
    half = LocalLimits(60_000, lambda: Share(0, 2), lambda: now_ms[0], lambda _key, _group: 0)
    half.record_refusal(plan(), LimitStatus(10, 0, 40_001, 0))  # the newest of the ten calls was made 20 s ago
    now_ms[0] += 40_000
    assert isinstance(half.take(plan(), Estimate(1)), LimitHit)
    now_ms[0] += 1
    assert [isinstance(half.take(plan(), Estimate(1)), Taken) for _ in range(6)] == [True] * 5 + [False]


def test_standing_under_an_older_policy_is_forgotten(alone: LocalLimits) -> None:
    alone.record_refusal(plan(), LimitStatus(10, 0, 60_001, 0))
    alone.record_admission(plan(threshold=20), Estimate(1))
    assert [isinstance(alone.take(plan(threshold=20), Estimate(1)), Taken) for _ in range(20)] == [True] * 19 + [False]


def tokens_a_minute(threshold: int) -> Plan:
    return plan_of_limits("acme/chat", "g", "tg:{g|acme/chat}", (Limit(LimitType.TOKEN, Unit.MINUTE, threshold),))


def test_tokens_are_bounded_by_twice_the_share_and_one_call() -> None:
    half = LocalLimits(60_000, lambda: Share(0, 2), lambda: NOON_MS, lambda _key, _group: 0)
    plan_of_tokens = tokens_a_minute(2_000)
    dear = Estimate(10, 890)
    outcomes = [half.take(plan_of_tokens, dear) for _ in range(6)]
    assert [isinstance(one, Taken) for one in outcomes] == [True] * 3 + [False] * 3


def test_settlement_returns_the_margin_of_a_call_that_was_admitted_here(alone: LocalLimits) -> None:
    plan_of_tokens = tokens_a_minute(1_000)
    dear = Estimate(10, 5_000)
    first = alone.take(plan_of_tokens, dear)
    assert isinstance(first, Taken)
    assert isinstance(alone.take(plan_of_tokens, dear), LimitHit)
    alone.record_settlement(first.reservations[0], 10)
    assert isinstance(alone.take(plan_of_tokens, dear), Taken)


def test_margin_that_redis_counted_is_not_returned_here(alone: LocalLimits) -> None:
    plan_of_tokens = tokens_a_minute(1_000)
    dear = Estimate(10, 5_000)
    here = alone.take(plan_of_tokens, dear)
    assert isinstance(here, Taken)
    alone.record_settlement(here.reservations[0]._replace(local=False), 10)
    assert isinstance(alone.take(plan_of_tokens, dear), LimitHit)


def test_calls_in_flight_are_bounded_by_the_share_of_the_threshold() -> None:
    in_flight = [0]
    limits = (Limit(LimitType.CONCURRENT_REQUEST, Unit.MINUTE, 5), Limit(LimitType.REQUEST, Unit.MINUTE, 100))
    limited = plan_of_limits("acme/chat", "g", "tg:{g|acme/chat}", limits)
    place = PlanPlace(limited.key, limited.groups, lambda _place: None)
    half = LocalLimits(60_000, lambda: Share(0, 2), lambda: NOON_MS, lambda _key, _group: in_flight[0])
    for in_flight[0] in range(3):
        granted = half.take(limited, Estimate(1), place)
        assert isinstance(granted, Taken)
        assert granted.place is place
    in_flight[0] = 3
    hit = half.take(limited, Estimate(1), place)
    assert isinstance(hit, LimitHit)
    assert (hit.bound.limit.type, hit.bound.limit.threshold) == (LimitType.CONCURRENT_REQUEST, 5)
    assert hit.retry_after_s == 1
    in_flight[0] = 2
    assert isinstance(half.take(limited, Estimate(1), place), Taken)
