"""Percentiles of times to first byte are those of the buckets, linear within one."""

import pytest

from control.resources.traffic.percentiles import percentile_ms
from policy.traffic import BUCKETS, FIRST_BYTE_BOUNDS_MS


def buckets(**counts: int) -> list[int]:
    """`b3=2`: two answers in the bucket with number 3."""
    return [counts.get(f"b{number}", 0) for number in range(BUCKETS)]


@pytest.mark.parametrize(
    ("counts", "percent", "expected"),
    [
        ({}, 50, None),
        ({"b0": 10}, 50, 2.5),
        ({"b0": 1, "b1": 1}, 50, 5.0),
        ({"b0": 1, "b1": 1}, 75, 7.5),
        ({"b2": 100}, 99, 24.9),
        ({"b5": 50, "b7": 50}, 50, 250.0),
        ({"b5": 50, "b7": 50}, 95, 950.0),
        ({"b13": 3}, 50, 60_000.0),
    ],
)
def test_percentile(counts: dict[str, int], percent: int, expected: float | None) -> None:
    assert percentile_ms(buckets(**counts), percent) == expected


def test_percentiles_never_decrease() -> None:
    counts = [number * 7 % 5 for number in range(BUCKETS)]
    percentiles = [percentile_ms(counts, percent) or 0.0 for percent in range(1, 101)]
    assert percentiles == sorted(percentiles)
    assert percentiles[-1] <= FIRST_BYTE_BOUNDS_MS[-1]
