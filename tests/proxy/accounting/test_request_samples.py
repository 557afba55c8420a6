"""Samples of calls stand for all: their weights keep the sum, and each call is as likely to be in it."""

from collections import Counter
from random import Random, randrange

import pytest

from proxy.accounting.request_samples import even_weights, picks, shares


@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_few_calls_are_picked_as_they_are(count: int) -> None:
    weights = [number + 1 for number in range(count)]
    assert picks(weights, 10, randrange) == list(enumerate(weights))


def test_weights_of_a_sample_keep_their_sum() -> None:
    random = Random(3)
    for _ in range(300):
        weights = [random.choice((1, 1, 1, 7, 1000)) for _ in range(random.randrange(1, 60))]
        most = random.randrange(1, 40)
        picked = picks(weights, most, random.randrange)
        assert sum(weight for _, weight in picked) == sum(weights)
        assert len(picked) <= most
        assert len({place for place, _ in picked}) == len(picked)
        assert all(weight > 0 for _, weight in picked)


def test_a_call_stands_for_its_weight_on_average() -> None:
    weights = [1, 1, 1, 10, 50, 1, 100, 36]
    sums: Counter[int] = Counter()
    for _ in range(4000):
        for place, weight in picks(weights, 4, randrange):
            sums[place] += weight
    for place, weight in enumerate(weights):
        assert abs(sums[place] / 4000 - weight) < 6


def test_even_weights_sum_up_to_the_calls() -> None:
    for calls in range(1, 40):
        for share in range(1, calls + 1):
            weights = even_weights(calls, share)
            assert (len(weights), sum(weights)) == (share, calls)
            assert max(weights) - min(weights) <= 1


@pytest.mark.parametrize(
    ("successes", "others", "share"),
    [
        (60, 40, (60, 40)),
        (500, 40, (60, 40)),
        (61, 40, (60, 40)),
        (500, 0, (100, 0)),
        (0, 500, (0, 100)),
        (500, 500, (1, 99)),
        (1, 99, (1, 99)),
        (1, 100, (1, 99)),
        (500, 99, (1, 99)),
    ],
)
def test_successes_go_first(successes: int, others: int, share: tuple[int, int]) -> None:
    assert shares(successes, others, 100) == share
