"""What the counters answer: granted, with what is held until the call's end, or refused by a limit."""

from dataclasses import dataclass, field

from policy.limits.effective import Bound
from policy.limits.settlement import Reservation


@dataclass(slots=True)
class Standing:
    """The tightest limit of one type after a decision, for the `x-ratelimit-*` headers."""

    limit: int
    remaining: int
    reset_ms: int
    bound: int = field(default=0, compare=False)  # its place in the plan


@dataclass(slots=True)
class Grant:
    """The buckets' yes: what it holds until settled (nothing where no TOKEN limit binds), the headers' figures, and all
    that it took, requests too, which is given back when the call is never dispatched."""

    reservations: tuple[Reservation, ...] = ()
    requests: Standing | None = None
    tokens: Standing | None = None
    taken: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitHit:
    """The buckets' no: the first limit hit; nothing was consumed anywhere.

    `retry_after_ms`: when there is room if nothing happens until then. `counted_retry_after_ms`: when, if all token
    reservations were settled at zero now. `hard_retry_after_ms`: until when nothing can make room.
    """

    bound: Bound
    retry_after_ms: int
    requests: Standing | None = None
    tokens: Standing | None = None
    counted_retry_after_ms: int = 0
    hard_retry_after_ms: int = 0
