"""A histogram's observations between two flushes."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class HistogramCounts:
    """Observations since the last flush: a count per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def drain(self) -> list[Any]:
        """Return the counts and their sum, and begin again with the same list: one made now would stay (0052)."""
        state = [self.counts.copy(), self.sum]
        self.counts[:] = [0] * len(self.counts)
        self.sum = 0.0
        return state

    def observe(self, values: Sequence[float]) -> None:
        counts = self.counts
        bounds = self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)
