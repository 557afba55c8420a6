"""An estimate of Redis' clock, learnt from the replies of takes. It turns local deadlines into Redis' time."""

import math

from policy.limits.take_numbers import NO_DEADLINE_MS


class RedisClock:
    """An upper bound of how far Redis' clock is ahead of this process' monotonic clock.

    It assumes that Redis read its clock when the request was sent, so the bound is too high by at most the time until
    Redis ran the script, and never too low. A stepped clock, or another server's, is corrected by the next reply.
    """

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms: int | None = None

    def learn(self, redis_ms: int, sent_at_s: float) -> None:
        """`redis_ms`: the truncated time in the reply to a request sent at `sent_at_s` of the monotonic clock."""
        self._ahead_ms = redis_ms + 1 - math.floor(sent_at_s * 1000)

    def forget(self) -> None:
        """Drop the estimate: the next connection may reach another server."""
        self._ahead_ms = None

    def at_most(self, local_s: float) -> int:
        """The latest time, in ms, that Redis' clock can show at `local_s`. `NO_DEADLINE_MS` while nothing is known."""
        return NO_DEADLINE_MS if self._ahead_ms is None else math.ceil(local_s * 1000) + self._ahead_ms
