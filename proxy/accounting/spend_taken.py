"""The spend counters' answers to a take: `SpendTaken`, or the spend limit that refused it.

See docs/reference/money.md#spend-limits.
"""

from dataclasses import dataclass

from policy.spend.effective import SpendBound
from proxy.accounting.reservations import LONGEST_GUESS_MS


@dataclass(frozen=True, slots=True)
class SpendTaken:
    """A take that succeeded: what the call is expected to cost is reserved until it ends."""

    key: str
    """The Redis hash of the tree."""
    event_key: str
    groups: tuple[str, ...]
    """The groups in which it is reserved."""
    picos: int
    """The amount, in 10^-12 of the currency."""
    is_counted: bool = True
    """False: the call was admitted although nothing counts what the tree spends, or Redis did not answer."""


@dataclass(frozen=True, slots=True)
class SpendHit:
    """A take that was refused, by the first spend limit hit. Nothing was reserved.

    `retry_after_ms`: until the limit's window ends. `is_spent`: what is spent leaves no room; else calls in flight may.
    """

    bound: SpendBound
    retry_after_ms: int
    is_spent: bool

    @property
    def retry_after_s(self) -> int:
        """The wait that the caller is told: whole seconds, at least one."""
        wait_ms = self.retry_after_ms if self.is_spent else min(self.retry_after_ms, LONGEST_GUESS_MS - 1)
        return max(1, -(-wait_ms // 1000))
