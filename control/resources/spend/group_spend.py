"""The spend of a group, of each spend limit that binds it (docs/reference/management-api.md#group-spend).

Knows the limits and which group's spend each bounds; a `SpendSource` reads the counters.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from control.records.spend import SpendReading, SpendUse
from policy.limits.windows import until_end_ms
from policy.prices import sum_of
from policy.spend.effective import SpendBound, SpendPlan


class SpendSource(Protocol):
    """Reads what groups have spent. Raises `UsageUnavailableError`, of which `SpendNotCountedError` is one."""

    async def spend_of(self, bounds: Sequence[SpendBound], key: str, at_ms: int | None = None) -> SpendReading:
        """One use per bound, in order, all of one moment: of its `counting_group`, in the window of its unit.

        `key`: the hash of the tree. The window is the one that has `at_ms`; by default, Redis' clock, or the hash's `c`
        if this is later.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundSpend:
    """A spend limit that binds a group, what is spent and reserved of it, and when its window ends (epoch ms)."""

    bound: SpendBound
    use: SpendUse
    resets_at_ms: int

    @property
    def remaining(self) -> Decimal:
        """The rest of the amount, exactly; negative if more than it is spent or reserved."""
        limit = self.bound.limit
        parts = (limit.amount, self.use.spent.copy_negate(), self.use.reserved.copy_negate())
        return sum_of((limit.currency, part) for part in parts)[limit.currency]


async def read_spend(source: SpendSource | None, plan: SpendPlan | None) -> list[BoundSpend]:
    """Read the spend of each limit of the plan, in its order. Without a source, nothing counts.

    Raises `UsageUnavailableError` if Redis does not answer, or what is spent is not counted yet.
    """
    if plan is None:
        return []
    reading = _nothing(plan) if source is None else await source.spend_of(plan.bounds, plan.key)
    return [
        BoundSpend(bound, use, reading.at_ms + until_end_ms(bound.limit.unit, reading.at_ms))
        for bound, use in zip(plan.bounds, reading.uses, strict=True)
    ]


def _nothing(plan: SpendPlan) -> SpendReading:
    unused = SpendUse(spent=Decimal(0), reserved=Decimal(0))
    return SpendReading(time.time_ns() // 1_000_000, (unused,) * len(plan.bounds))
