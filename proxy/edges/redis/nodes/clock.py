"""Estimates of Redis' clock, learnt from replies. They turn local deadlines into Redis' time, and tell when the clock
has stepped."""

import math
from collections.abc import Callable
from typing import NamedTuple

from policy.limits.take_numbers import NO_DEADLINE_MS

STEP_MS = 1000
"""An estimate that changes by less is no step, however soon."""
DRIFT = 0.1
"""The part by which a clock may run fast or slow while it is being corrected: chrony's limit is a twelfth."""


class Change(NamedTuple):
    """An estimate differs by `by_ms` from the one made `after_s` before. Both are NaN for the first estimate."""

    by_ms: float
    after_s: float


class RedisClock:
    """An upper bound of how far Redis' clock is ahead of this process' monotonic clock.

    It assumes that Redis read its clock when the request was sent, so the bound is too high by at most the time until
    Redis ran the script, and never too low. A stepped clock, or another server's, is corrected by the next reply.
    """

    __slots__ = ("_ahead_ms", "learnt_at_s", "learnt_ms")

    def __init__(self) -> None:
        self._ahead_ms: int | None = None
        self.learnt_ms: float = math.nan
        """The last estimate, also after `forget`."""
        self.learnt_at_s = math.nan

    def learn(self, redis_ms: int, sent_at_s: float) -> Change | None:
        """Learn from a reply. `redis_ms`: its truncated time. `sent_at_s`: the request's, of the monotonic clock.

        Returns a change that may be a step; `ClockSteps` tells.
        """
        ahead_ms = redis_ms + 1 - math.floor(sent_at_s * 1000)
        by_ms = ahead_ms - self.learnt_ms
        after_s = sent_at_s - self.learnt_at_s
        self._ahead_ms = self.learnt_ms = ahead_ms
        self.learnt_at_s = sent_at_s
        return None if -STEP_MS < by_ms < STEP_MS else Change(by_ms, after_s)

    def forget(self) -> None:
        """Drop the estimate: the next connection may reach another server."""
        self._ahead_ms = None

    def at_most(self, local_s: float) -> int:
        """The latest time, in ms, that Redis' clock can show at `local_s`. `NO_DEADLINE_MS` while nothing is known."""
        return NO_DEADLINE_MS if self._ahead_ms is None else math.ceil(local_s * 1000) + self._ahead_ms


class ExpectedTimes:
    """The expected time of each workspace of the queue, whichever server has it."""

    _MOST = 10_000
    """The most workspaces whose time is known."""

    def __init__(self, slowest_reply_s: float) -> None:
        self._slack_s = slowest_reply_s + STEP_MS / 1000
        self._clocks: dict[str, RedisClock] = {}

    def at(self, key: str, local_s: float) -> tuple[int, int] | None:
        """The time in ms, and by how much more it can be though no clock has stepped. None if nothing is known."""
        clock = self._clocks.get(key)
        if clock is None:
            return None
        more_s = self._slack_s + DRIFT * (local_s - clock.learnt_at_s)
        return clock.at_most(local_s), round(more_s * 1000)

    def learn(self, key: str, now_ms: int, asked_at_s: float) -> None:
        """Learn a workspace's time. `now_ms`: the time in the reply to a question of `asked_at_s`."""
        clock = self._clocks.pop(key, None) or RedisClock()
        clock.learn(now_ms, asked_at_s)
        self._clocks[key] = clock
        if len(self._clocks) > self._MOST:
            del self._clocks[next(iter(self._clocks))]


class ClockSteps:
    """Tells steps of servers' clocks from drift and slow replies. `on_step`: called with the server's name, and by how
    many ms its clock stepped.

    The first estimate of a server is compared with the latest of another: after a fail-over its clock is the limits'.
    """

    def __init__(self, slowest_reply_s: float, on_step: Callable[[str, int], None]) -> None:
        self._slowest_reply_s = slowest_reply_s
        self._on_step = on_step
        self._clocks: dict[str, RedisClock] = {}

    def check(self, server: str, clock: RedisClock, change: Change) -> None:
        if math.isnan(change.by_ms):
            latest = max(self._clocks.values(), key=lambda one: one.learnt_at_s, default=None)
            reference = self._clocks.get(server, latest)
            self._clocks[server] = clock
            if reference is None:
                return
            change = Change(clock.learnt_ms - reference.learnt_ms, clock.learnt_at_s - reference.learnt_at_s)
        if abs(change.by_ms) > STEP_MS + 1000 * (self._slowest_reply_s + DRIFT * change.after_s):
            self._on_step(server, round(change.by_ms))
