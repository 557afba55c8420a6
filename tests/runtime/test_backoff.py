"""Pauses between tries double up to a bound, and processes that failed together come back apart."""

import random
from collections import Counter

import pytest

from runtime.backoff import jittered_s, pause_s

PROXIES = 200


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(20261124)


def test_pause_doubles_up_to_the_longest_and_is_at_least_half_of_that() -> None:
    for failures, whole_s in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 5.0), (10_000, 5.0)):
        pauses = [pause_s(failures, 0.5, 5.0) for _ in range(100)]
        assert all(whole_s / 2 <= pause <= whole_s for pause in pauses)
        assert max(pauses) - min(pauses) > whole_s / 3


def test_jitter_takes_at_most_half() -> None:
    assert all(3.0 <= jittered_s(6.0) <= 6.0 for _ in range(100))


@pytest.mark.parametrize(("first_s", "longest_s", "most"), [(0.5, 60.0, 15), (0.5, 5.0, 25), (0.1, 15.0, 15)])
def test_proxies_that_lost_control_together_find_it_again_apart(first_s: float, longest_s: float, most: int) -> None:
    """Policy, reports and events: all fail at 0 s and every later try until control is back at 20 s. In step, the
    first tries afterwards would be 200 in a tenth of a second."""
    tenths: Counter[int] = Counter()
    for _ in range(PROXIES):
        at_s = 0.0
        failures = 0
        while at_s < 20:
            failures += 1
            at_s += pause_s(failures, first_s, longest_s)
        tenths[int(at_s * 10)] += 1
    assert max(tenths.values()) <= most
