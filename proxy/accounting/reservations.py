"""What a take in the counters answers: `Taken`, or the limit that refused it.

See docs/reference/limits.md.
"""

from dataclasses import dataclass, field

from policy.limits.effective import Bound
from policy.limits.settlement import Reservation


@dataclass(slots=True)
class LimitStatus:
    """The tightest limit of one type after a decision, for the `x-ratelimit-*` headers."""

    limit: int
    remaining: int
    reset_ms: int
    bound: int = field(default=0, compare=False)  # its index in the plan


@dataclass(slots=True)
class Taken:
    """A take that succeeded."""

    reservations: tuple[Reservation, ...] = ()
    """Tokens held until the call is settled; empty if no TOKEN limit binds."""
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    returnable: tuple[Reservation, ...] = ()
    """Everything that was taken, requests included. Returned if the call is never dispatched."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A take that was refused, by the first limit hit. Nothing was taken from any bucket.

    `retry_after_ms`: when there is room if nothing else happens. `counted_retry_after_ms`: when there is room if every
    token reservation settles at zero now. `hard_retry_after_ms`: until then nothing can make room.
    """

    bound: Bound
    retry_after_ms: int
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    counted_retry_after_ms: int = 0
    hard_retry_after_ms: int = 0
