"""Bounds how many values of a metric's label are distinguished, so that labels cannot exhaust memory.

First come, first served. A hundredth of the bound is guaranteed to each workspace even when the bound is reached, so
one workspace cannot have the calls of all others counted as `_other`.
"""

from collections import defaultdict
from collections.abc import Iterable

OTHER = "_other"
GUARANTEED_FRACTION = 100


class BoundedLabels:
    """The values of one label, by workspace."""

    def __init__(self, most: int) -> None:
        self._max_values = most
        self._guaranteed = most // GUARANTEED_FRACTION
        self._values: defaultdict[str, set[str]] = defaultdict(set)
        self._count = 0

    def bounded(self, workspace: str, value: str) -> str:
        """`value`, or `_other` when there is no room for one more. The empty value needs no room."""
        values = self._values[workspace]
        if value in values or not value:
            return value
        if self._count >= self._max_values and len(values) >= self._guaranteed:
            return OTHER
        values.add(value)
        self._count += 1
        return value

    def keep(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Forget all values but these (workspace, value)."""
        self._values.clear()
        for workspace, value in pairs:
            if value not in ("", OTHER):
                self._values[workspace].add(value)
        self._count = sum(map(len, self._values.values()))
