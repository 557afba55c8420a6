"""The claim of the overload bench, in a short form: reserving holds the minute, charging afterwards does not."""

from bench.studies.limits_overload import compare


def test_three_times_overload_stays_near_the_threshold() -> None:
    reserving, afterwards = compare(100_000, minutes=8, burst=1)
    assert reserving.utilisation > 0.95
    assert reserving.worst_minute <= 1.25
    assert afterwards.worst_minute > reserving.worst_minute
