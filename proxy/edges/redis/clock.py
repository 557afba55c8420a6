"""Redis' clock as a worker knows it: from the replies of takes, each of which tells its time."""

import math

from policy.limits.take_numbers import NO_DEADLINE_MS


class RedisClock:
    """How far Redis' clock is ahead of this process' monotonic one, at most.

    The estimate assumes that a reply's time is that of its request's departure, so it is too high by the way there, and
    never too low. A server's clock may be stepped, and another server has another: the next reply corrects it.
    """

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms: int | None = None

    def learn(self, redis_ms: int, asked_at_s: float) -> None:
        """A reply told `redis_ms`, truncated, to a request that left at `asked_at_s` of the monotonic clock."""
        self._ahead_ms = redis_ms + 1 - math.floor(asked_at_s * 1000)

    def forget(self) -> None:
        """The server may be another one now."""
        self._ahead_ms = None

    def at_most(self, local_s: float) -> int:
        """The latest that Redis' clock can show at `local_s`, in ms; `NO_DEADLINE_MS` while nothing is known of it."""
        return NO_DEADLINE_MS if self._ahead_ms is None else math.ceil(local_s * 1000) + self._ahead_ms
