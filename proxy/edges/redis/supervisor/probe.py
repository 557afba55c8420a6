"""Whether Redis does for the counters what they need: a real admission of a call that nobody made. The supervisor's."""

from policy.limits.effective import Bound, Plan
from policy.limits.limit import Limit, LimitType, Unit
from proxy.edges.policy.supervisor.hints import HintSubscriber
from proxy.edges.redis.counters import RedisCounters
from proxy.exchange import CountersUnavailableError

_NOBODY = "readiness"
_LIMIT = Limit(LimitType.REQUEST, Unit.MINUTE, 1_000_000)
_PLAN = Plan(_NOBODY, _NOBODY, f"tg:{{{_NOBODY}}}", (Bound(_LIMIT, _NOBODY, _NOBODY),))
_TRIES = 3
"""A busy moment of this machine must not take it out of service."""


class RedisProbe:
    """Asks by the same script, the same user and the same kind of connection as a worker does."""

    def __init__(self, counters: RedisCounters, hints: HintSubscriber) -> None:
        self._counters = counters
        self._hints = hints

    async def trouble(self) -> str:
        """Why calls with limits cannot be admitted by Redis; "" when they can."""
        for _ in range(_TRIES):
            try:
                await self._counters.take(_PLAN, 0)
            except CountersUnavailableError:
                continue
            return ""
        cause = await self._hints.refusal() or "no answer in time"
        return f"Redis does not answer as the counters need it ({cause})"
