"""The counters' answers to a take: `Taken`, or the limit that refused it.

See docs/reference/limits.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policy.limits.effective import Bound, Plan
from policy.limits.kinds import LimitType
from policy.limits.settlement import Reservation

LONGEST_GUESS_MS = 60_001
"""Longest `retry-after` for tokens that are only reserved. A day's reservation may last for the request timeout (20
minutes), but usually settles much earlier, so no caller is told to wait longer than a rate limit's window."""


LimitDecision = tuple[str, str, str]
"""The outcome of a take for the metrics: outcome, type and unit. The last two are "" unless a limit has refused."""
ADMITTED: LimitDecision = ("admitted", "", "")
UNAVAILABLE: LimitDecision = ("unavailable", "", "")
SPEND = "SPEND"
"""The type of a decision by a spend limit."""
BALANCE = "BALANCE"
"""The type of a decision by a prepaid balance, which has no unit."""


@dataclass(slots=True)
class LimitStatus:
    """The tightest limit of one type after a decision, for the `x-ratelimit-*` headers."""

    limit: int
    remaining: int
    reset_ms: int
    bound: int = field(default=0, compare=False)  # its index in the plan


Tightest = tuple[LimitStatus | None, LimitStatus | None]
"""Status of the REQUEST and of the TOKEN limits. None for a type without a limit."""


def no_limits() -> Tightest:
    return None, None


CLOSED_RETRY_MS = 60_000
"""`retry-after` for callers of a slug with a threshold of 0. Only a change of the limit admits them."""


class Place(Protocol):
    """The place of a call in flight, in each group that limits them."""

    def release(self) -> None:
        """Free it: the call has ended, or was not sent. Once per call."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one call in the hashes of several plans."""

    each: Sequence[Place]

    def release(self) -> None:
        for place in self.each:
            place.release()


@dataclass(slots=True)
class Taken:
    """A take that succeeded."""

    reservations: tuple[Reservation, ...] = ()
    """Tokens held until the call is settled; empty if no TOKEN limit binds."""
    returnable: tuple[Reservation, ...] = ()
    """Everything that was taken, requests included. Returned if the call is never dispatched."""
    lines: str = ""
    """The `x-ratelimit-*` lines."""
    tightest: Callable[[], Tightest] = field(default=no_limits, compare=False, repr=False)
    """The figures in `lines`. Most calls do not need them apart."""
    place: Place | None = field(default=None, compare=False, repr=False)
    """Held until the call has ended; None if no limit of calls in flight binds."""

    @property
    def requests(self) -> LimitStatus | None:
        return self.tightest()[0]

    @property
    def tokens(self) -> LimitStatus | None:
        return self.tightest()[1]


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

    @property
    def leaves_no_room(self) -> bool:
        """Return whether a usage limit refuses all calls of its window, whatever those in flight will cost."""
        return not self.bound.limit.is_rate and self.counted_retry_after_ms > 0

    @property
    def retry_after_s(self) -> int:
        """The wait that the caller is told: whole seconds, at least one."""
        wait_ms = max(self.counted_retry_after_ms, min(self.retry_after_ms, LONGEST_GUESS_MS))
        return max(1, -(-wait_ms // 1000))


def closed_hit(plan: Plan) -> LimitHit | None:
    """The refusal of every call by a threshold of 0, which needs no counter. None if the plan has none."""
    bound = next((bound for bound in plan.bounds if bound.limit.threshold == 0), None)
    if bound is None:
        return None
    status = LimitStatus(0, 0, CLOSED_RETRY_MS)
    return LimitHit(
        bound,
        CLOSED_RETRY_MS,
        status if bound.limit.type is LimitType.REQUEST else None,
        status if bound.limit.type is LimitType.TOKEN else None,
        CLOSED_RETRY_MS,
        CLOSED_RETRY_MS,
    )
