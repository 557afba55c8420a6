"""Which values of a metric's label are told apart, so that labels cannot eat the supervisor's memory.

First come, first served, up to a bound. A hundredth of the bound is each workspace's own, also when others have taken
all: so one workspace cannot have the calls of all others counted as `_other`.
"""

from collections import defaultdict
from collections.abc import Iterable

OTHER = "_other"
OWN_PART = 100


class BoundedLabels:
    """The values of one label, by workspace."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._own = most // OWN_PART
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._count = 0

    def bounded(self, workspace: str, value: str) -> str:
        """`value`, or `_other` where there is no room for one more. No value needs no room."""
        known = self._known[workspace]
        if value in known or not value:
            return value
        if self._count >= self._most and len(known) >= self._own:
            return OTHER
        known.add(value)
        self._count += 1
        return value

    def keep(self, used: Iterable[tuple[str, str]]) -> None:
        """Forget all values but these (workspace, value)."""
        self._known.clear()
        for workspace, value in used:
            if value not in ("", OTHER):
                self._known[workspace].add(value)
        self._count = sum(map(len, self._known.values()))
