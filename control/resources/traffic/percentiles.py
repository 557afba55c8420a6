"""Percentiles from buckets of times to first byte.

See docs/reference/management-api.md#traffic.
"""

from collections.abc import Sequence

from policy.traffic import FIRST_BYTE_BOUNDS_MS

_EDGES_MS = (0, *FIRST_BYTE_BOUNDS_MS, FIRST_BYTE_BOUNDS_MS[-1])
"""The lower ends of the buckets. The last bucket has no upper end, so all in it counts as its lower one."""


def percentile_ms(buckets: Sequence[int], percent: int) -> float | None:
    """The time within which `percent` of a hundred answers began, linear within a bucket; None without an answer."""
    total = sum(buckets)
    if not total:
        return None
    place_in_total = total * percent / 100
    before = 0
    for place, count in enumerate(buckets):
        if count and before + count >= place_in_total:
            low_ms = _EDGES_MS[place]
            high_ms = _EDGES_MS[place + 1]
            return round(low_ms + (high_ms - low_ms) * (place_in_total - before) / count, 1)
        before += count
    raise AssertionError("the buckets add up to their total")
