"""The answers of spend limits and a balance to a call: `SpendTaken`, the one that refused it, or `SpendUnavailable`.

See docs/reference/money.md#spend-limits.
"""

from dataclasses import dataclass

from policy.spend.effective import BalanceBound, SpendBound, SpendPlan

GUESS_MS = 60_000
"""The wait for room that only reservations take: nobody knows when their calls end."""


@dataclass(slots=True, kw_only=True)
class SpendTaken:
    """A call that spend limits and balance admit, and what is reserved for it until its event is counted.

    `plan`: tells the Redis hash, and the groups in which it is reserved. `picos`: 10^-12 of the currency; with a HARD
    limit or a balance, the most that the call may cost. Not `is_counted`: nothing is reserved, as nobody counts what
    the tree spends now, or Redis is away.
    """

    plan: SpendPlan
    event_key: str
    picos: int
    is_counted: bool


@dataclass(frozen=True, slots=True)
class SpendUnavailable:
    """A call that a HARD limit or a balance binds, while nobody can tell what is left. Nothing is reserved for it.

    `cause`: a phrase for log lines.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class SpendHit:
    """A call that is refused, by the first limit without room, or by the balance. Nothing is reserved for it.

    `is_spent`: what is spent alone leaves no room in a window, and `retry_after_ms` is when the last such window ends.
    Else calls in flight hold the room. Of a balance: what is drawn alone leaves no room; `retry_after_ms` says nothing.
    """

    bound: SpendBound | BalanceBound
    retry_after_ms: int
    is_spent: bool

    @property
    def retry_after_s(self) -> int:
        """The wait that the caller is told: whole seconds, at least one."""
        return max(1, -(-self.retry_after_ms // 1000))
