"""Percentiles from buckets of times to first byte.

See docs/reference/management-api.md#traffic.
"""

from collections.abc import Sequence

from policy.traffic import FIRST_BYTE_BOUNDS_MS

_EDGES_MS = (0, *FIRST_BYTE_BOUNDS_MS, FIRST_BYTE_BOUNDS_MS[-1])
"""What lies in the last bucket counts as its lower end: it has no other."""


def percentile_ms(buckets: Sequence[int], percent: int) -> float | None:
    """The time within which `percent` of a hundred answers began, linear within a bucket; None without an answer."""
    total = sum(buckets)
    if not total:
        return None
    wanted = total * percent / 100
    before = 0
    for place, count in enumerate(buckets):
        if count and before + count >= wanted:
            low_ms = _EDGES_MS[place]
            high_ms = _EDGES_MS[place + 1]
            return round(low_ms + (high_ms - low_ms) * (wanted - before) / count, 1)
        before += count
    raise AssertionError("the buckets add up to their total")
