"""What a worker remembers in case Redis goes: each (group, slug) once, however often its plan is made anew."""

import pytest

from policy.limits.effective import Bound, Plan
from policy.limits.limit import Limit, LimitType, Unit
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis import local_limits
from proxy.edges.redis.local_limits import LocalLimits
from proxy.edges.redis.worker_roster import Share

NOON_MS = 1_795_262_400_000


def plan(number: int = 0, threshold: int = 10) -> Plan:
    """Made anew each time, as the directory does when it has met many others since."""
    group = f"grp_{number}"
    limits = (Limit(LimitType.REQUEST, Unit.MINUTE, threshold), Limit(LimitType.REQUEST, Unit.DAY, 10 * threshold))
    return Plan("acme/chat", group, f"tg:{{{group}|acme/chat}}", tuple(Bound(one, group, group) for one in limits))


@pytest.fixture
def alone() -> LocalLimits:
    return LocalLimits(60_000, lambda: Share(0, 1), lambda: NOON_MS)


def test_a_plan_that_is_made_anew_goes_on_where_the_last_one_was(alone: LocalLimits) -> None:
    for _ in range(7):
        alone.saw(plan(), 1)
    taken = [alone.take(plan(), 1) for _ in range(4)]
    assert [isinstance(one, Taken) for one in taken] == [True, True, True, False]
    assert isinstance(taken[-1], LimitHit)


def test_a_plan_that_policy_has_changed_is_charged_with_what_was_admitted_before(alone: LocalLimits) -> None:
    for _ in range(7):
        alone.saw(plan(), 1)
    assert isinstance(alone.take(plan(threshold=8), 1), Taken)
    assert isinstance(alone.take(plan(threshold=8), 1), LimitHit)


def test_memory_is_of_the_pairs_that_called_not_of_the_plans_that_were_made(alone: LocalLimits) -> None:
    for turn in range(300):
        alone.saw(plan(turn % 3), 1)
    assert len(alone._admitted) == 3


def test_what_is_idle_is_looked_for_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look passes over all of them: one for each new pair would cost ever more."""
    monkeypatch.setattr(local_limits, "_PLANS_KEPT", 4)
    alone = LocalLimits(60_000, lambda: Share(0, 1), lambda: NOON_MS)
    looks: list[int] = []
    drop = alone._drop_idle

    def look() -> None:
        looks.append(len(alone._admitted))
        drop()

    monkeypatch.setattr(alone, "_drop_idle", look)
    for number in range(100):
        alone.saw(plan(number), 1)
    assert looks == [4, 8, 16, 32, 64]


def test_what_the_others_had_used_is_forgotten_when_it_has_left_the_window() -> None:
    now_ms = [NOON_MS]
    half = LocalLimits(60_000, lambda: Share(0, 2), lambda: now_ms[0])
    half.told(plan(), LimitStatus(10, 0, 40_001, 0))  # the newest of the ten calls was made 20 s ago
    now_ms[0] += 40_000
    assert isinstance(half.take(plan(), 1), LimitHit)
    now_ms[0] += 1
    assert [isinstance(half.take(plan(), 1), Taken) for _ in range(6)] == [True] * 5 + [False]


def test_what_was_told_of_an_older_policy_is_forgotten_with_it(alone: LocalLimits) -> None:
    alone.told(plan(), LimitStatus(10, 0, 60_001, 0))
    alone.saw(plan(threshold=20), 1)
    assert [isinstance(alone.take(plan(threshold=20), 1), Taken) for _ in range(20)] == [True] * 19 + [False]
