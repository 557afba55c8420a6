"""The study of the second sum in short: ordinary traffic keeps nine in ten of its calls."""

import pytest

from bench.studies.reservation_bound import LOADS, ORDINARY, Workload, compare


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("workload", ORDINARY, ids=lambda workload: workload.name)
def test_ordinary_traffic_keeps_nine_in_ten_calls(workload: Workload, load: float) -> None:
    first_sum, both_sums = compare(workload, load, minutes=6)
    assert both_sums >= 0.9 * first_sum
