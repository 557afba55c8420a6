"""What a group has spent of the spend limits that bind it (docs/reference/management-api.md#group-spend).

Knows the limits and which group's spend each bounds; a `SpendSource` reads the counters.
"""

from collections.abc import Sequence
from typing import Protocol

from control.records.spend import SpendReading
from policy.spend.effective import SpendBound


class SpendSource(Protocol):
    """Reads what groups have spent. Raises `UsageUnavailableError`, of which `SpendNotCountedError` is one."""

    async def spend_of(self, bounds: Sequence[SpendBound], key: str) -> SpendReading:
        """One use per bound, in order, all of one moment: of its `counting_group`, in the window of its unit.

        `key`: the hash of the tree. The window is that of the hash's `c` if this is later than Redis' clock.
        """
        ...
