"""The overload study in short: with reservations a minute stays near its threshold; without, it does not."""

from bench.studies.limits_overload import compare


def test_reservations_keep_three_times_overload_near_the_threshold() -> None:
    reserving, afterwards = compare(100_000, minutes=8, burst=1)
    assert reserving.utilisation > 0.95
    assert reserving.worst_minute <= 1.25
    assert afterwards.worst_minute > reserving.worst_minute
