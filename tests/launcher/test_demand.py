"""Checks how many replicas a load needs, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.demand import DEFAULT_CALLS_PER_REPLICA, GAP_S, Demand, Load, replicas_for

IDLE_S = 60.0


@pytest.mark.parametrize(
    ("calls", "max_concurrency", "expected"),
    [
        (0, 1, 0),
        (1, 1, 1),
        (3, 1, 3),
        (1, 4, 1),
        (4, 4, 1),
        (5, 4, 2),
        (DEFAULT_CALLS_PER_REPLICA, None, 1),
        (DEFAULT_CALLS_PER_REPLICA + 1, None, 2),
    ],
)
def test_a_replica_is_needed_for_each_full_or_begun_share_of_the_calls(
    calls: int, max_concurrency: int | None, expected: int
) -> None:
    assert replicas_for(calls, max_concurrency) == expected


def test_calls_of_every_kind_count() -> None:
    assert Load(in_flight=1, queued=2, parked=4).calls == 7


@given(st.lists(st.tuples(st.floats(0.1, 0.9 * GAP_S), st.integers(0, 20)), min_size=1))
def test_peak_is_the_highest_need_within_the_idle_timeout(looks: list[tuple[float, int]]) -> None:
    demand = Demand(IDLE_S)
    now = 0.0
    samples = list[tuple[float, int]]()
    for pause_s, calls in looks:
        now += pause_s
        samples.append((now, calls))
        demand.observe(now, Load(in_flight=calls), 1)
        assert demand.peak() == max(calls for at, calls in samples if at > now - IDLE_S)


def test_call_between_two_looks_counts() -> None:
    demand = Demand(IDLE_S)
    demand.observe(0, Load(last_request_at="a"), None)
    assert demand.peak() == 0
    demand.observe(1, Load(last_request_at="b"), None)
    assert demand.peak() == 1
    demand.observe(2, Load(last_request_at="b"), None)
    for second in range(3, 70):
        demand.observe(second, Load(last_request_at="b"), None)
    assert demand.peak() == 0


def test_nothing_becomes_idle_while_the_load_is_unknown() -> None:
    demand = Demand(IDLE_S)
    demand.observe(0, Load(in_flight=3), 1)
    demand.observe(1000, Load(), 1)
    assert demand.peak() == 3
    for second in range(1, 61):
        demand.observe(1000 + second, Load(), 1)
    assert demand.peak() == 0
