"""The spend of groups, by limits in currency. Values only."""

from decimal import Decimal
from typing import NamedTuple


class SpendUse(NamedTuple):
    """The exact amount that a group has spent in a window, and the amount that its calls in flight reserve."""

    spent: Decimal
    reserved: Decimal


class SpendReading(NamedTuple):
    """The figures of several spend limits at one moment. `at_ms`: the time (epoch ms) whose windows they are of."""

    at_ms: int
    uses: tuple[SpendUse, ...]
