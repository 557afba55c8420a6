"""The simulation behind docs/regions.md: a fail-over never admits more than the formula says, and shares add up."""

from itertools import product

import pytest

from bench.studies.regions import (
    DEMANDS,
    WINDOW_MS,
    Calls,
    Counters,
    divided,
    fail_over,
    shares_of,
    usable,
    worst_window,
)


@pytest.mark.parametrize(("load", "burst"), [(1.0, 1), (3.0, 1), (1.0, 0.5), (3.0, 0.5)])
def test_fail_over_admits_at_most_what_the_replica_had_not_seen(load: float, burst: float) -> None:
    for threshold, lag_ms, seed in product((20, 100), (0, 10, 100, 1000, 5000), range(3)):
        outcome = fail_over(Calls(threshold, load, burst), lag_ms, seed)
        assert outcome.over <= outcome.loss <= outcome.bound, (threshold, lag_ms, seed, outcome)


def test_replica_without_lag_admits_nothing_twice() -> None:
    assert all(fail_over(Calls(20, 3.0), 0, seed).over == 0 for seed in range(5))


def test_simulation_sees_calls_that_are_admitted_twice() -> None:
    assert max(fail_over(Calls(100, 3.0), 5000, seed).over for seed in range(3)) >= 20


def test_bound_is_reached_when_the_whole_threshold_comes_within_the_lag() -> None:
    primary = Counters(50)
    behind = primary.copied()
    burst = [1000] * 80
    admitted = primary.admitted(burst) + Counters(50, behind).admitted([1001] * 80)
    assert worst_window(admitted) == 2 * 50


def test_worst_window_has_both_ends() -> None:
    assert worst_window([]) == 0
    assert worst_window([0, 1, WINDOW_MS, WINDOW_MS + 1, 3 * WINDOW_MS]) == 3


def test_shares_add_up_to_the_threshold_and_none_is_empty() -> None:
    for threshold, part in product((2, 3, 7, 600), (0.01, 0.5, 0.8, 1.0)):
        assert sum(shares_of(threshold, part)) == threshold
        assert min(shares_of(threshold, part)) >= 1


@pytest.mark.parametrize("demand", DEMANDS)
def test_divided_limit_holds_in_every_minute_and_uses_what_the_formula_says(demand: tuple[float, float]) -> None:
    shares = shares_of(60, 0.5)
    demands = (3 * demand[0], 3 * demand[1])
    share, worst = divided(shares, demands, seed=1)
    assert worst <= 60
    assert share == pytest.approx(usable(shares, demands), abs=0.1)
