"""Checks whether Redis can admit calls, by admitting one that no caller made. Runs in the supervisor."""

from policy.limits.effective import Plan, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import NO_TOKENS
from proxy.edges.policy.supervisor.hints import HintSubscriber
from proxy.edges.redis.counters import RedisCounters
from proxy.errors import CountersUnavailableError

_LIMIT = Limit(LimitType.REQUEST, Unit.MINUTE, 1_000_000)


def _plan(group: str) -> Plan:
    return plan_of_limits(group, group, f"tg:{{{group}}}", (_LIMIT,))


PLANS = (_plan("readiness"), _plan("readiness-1"), _plan("readiness-2"), _plan("readiness-4"))
"""Several plans: a short overload of this machine must not take it out of service. Their keys lie in the four
quarters of a cluster's slots: while one of its nodes is away, this machine still serves the calls of the others."""


class RedisProbe:
    """Uses the same script, user and kind of connection as a worker."""

    def __init__(self, counters: RedisCounters, hints: HintSubscriber) -> None:
        self._counters = counters
        self._hints = hints

    async def trouble(self) -> str:
        """Return why Redis cannot admit calls with limits; "" if it can."""
        for plan in PLANS:
            try:
                await self._counters.take(plan, NO_TOKENS)
            except CountersUnavailableError:
                continue
            return ""
        cause = await self._hints.refusal() or "no reply in time"
        return f"Redis does not answer the counters' script ({cause})"
