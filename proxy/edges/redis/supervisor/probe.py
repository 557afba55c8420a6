"""Checks whether Redis can admit calls, by admitting one that no caller made. Runs in the supervisor."""

from policy.limits.effective import Bound, Plan
from policy.limits.limit import Limit, LimitType, Unit
from proxy.edges.policy.supervisor.hints import HintSubscriber
from proxy.edges.redis.counters import RedisCounters
from proxy.exchange import CountersUnavailableError

_GROUP = "readiness"
_LIMIT = Limit(LimitType.REQUEST, Unit.MINUTE, 1_000_000)
_PLAN = Plan(_GROUP, _GROUP, f"tg:{{{_GROUP}}}", (Bound(_LIMIT, _GROUP, _GROUP),))
_TRIES = 3
"""Several, so that a short overload of this machine does not take it out of service."""


class RedisProbe:
    """Uses the same script, user and kind of connection as a worker."""

    def __init__(self, counters: RedisCounters, hints: HintSubscriber) -> None:
        self._counters = counters
        self._hints = hints

    async def trouble(self) -> str:
        """Why Redis cannot admit calls with limits. "" if it can."""
        for _ in range(_TRIES):
            try:
                await self._counters.take(_PLAN, 0)
            except CountersUnavailableError:
                continue
            return ""
        cause = await self._hints.refusal() or "no reply in time"
        return f"Redis does not answer the counters' script ({cause})"
