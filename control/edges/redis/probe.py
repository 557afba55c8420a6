"""Checks for `/readyz` that Redis does what control needs: usage, request windows, hints."""

import asyncio

from redis.exceptions import RedisError

from control.edges.redis.hints import CHANNEL
from control.edges.redis.throttle_windows import RedisWindows
from control.edges.redis.usage_counters import UsageCounters
from control.errors import UsageUnavailableError
from control.records.usage import Bucket, Meter
from control.throttle import Allowance
from policy.limits.kinds import LimitType, Unit
from runtime.redis.routed import RoutedRedis

_DEADLINE_S = 1.0
_ALLOWANCE = Allowance("readiness", 1_000_000, 1_000)
_METER = Meter(Bucket("tg:{readiness}", "readiness"), LimitType.REQUEST, Unit.MINUTE)
_CONSEQUENCE = "hints, usage figures or request limits shared by several control processes fail"
_REMEDY = "Check the Redis server, TOLLGATE_REDIS_URL and the permissions of its user"


class RedisProbe:
    """Performs each operation once, for no tenant."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis
        self._windows = RedisWindows(redis)
        self._counters = UsageCounters(redis)

    async def trouble(self, revision: int) -> str:
        """Cause, consequence and remedy of what fails; "" if nothing fails. Publishes `revision` once more."""
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await self._windows.ask("readiness", _ALLOWANCE)
                await self._redis.anywhere(lambda server: server.publish(CHANNEL, str(revision)))
                await self._counters.used([_METER])
        except (RedisError, OSError, TimeoutError, UsageUnavailableError) as error:
            cause = str(error.__cause__ or error).partition("\n")[0] or "no answer in time"
            return f"Redis is not usable ({cause}): {_CONSEQUENCE}. {_REMEDY}"
        return ""
