"""Rolling windows for the management API's request limits: in Redis, or in this process while Redis is unreachable."""

import asyncio
import secrets
import time
from collections import OrderedDict, deque

from redis.exceptions import RedisError

from control.throttle import Allowance
from runtime.redis.routed import RoutedRedis
from runtime.redis.script import RedisScript

_MAX_KEYS = 10_000
_DEADLINE_S = 0.25
_PAUSE_S = 1.0

# One sorted set per API key and limit: a member per admitted request, scored by Redis' clock. Decides, then counts. If
# the clock stepped back, all scores are moved along, so that the requests keep their age.
_ADMIT = RedisScript("""
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local window, allowed = tonumber(ARGV[1]), tonumber(ARGV[2])
local newest = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local ahead = newest[2] and newest[2] - now or 0
if ahead > 0 then
  local scored = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for i = 1, #scored, 2 do redis.call('ZADD', KEYS[1], scored[i + 1] - ahead, scored[i]) end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window - 1)
if redis.call('ZCARD', KEYS[1]) < allowed then
  redis.call('ZADD', KEYS[1], now, ARGV[3])
  redis.call('PEXPIRE', KEYS[1], window + 1000)
  return 0
end
local oldest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return oldest[2] + window + 1 - now
""")


class LocalWindows:
    """Counts in this process. Exact. Beyond ten thousand keys it drops those idle longest."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    async def admit(self, key_prefix: str, allowance: Allowance) -> int:
        now_ms = time.monotonic() * 1000
        times = self._times.setdefault((key_prefix, allowance.name), deque())
        self._times.move_to_end((key_prefix, allowance.name))
        if len(self._times) > _MAX_KEYS:
            self._times.popitem(last=False)
        while times and times[0] + allowance.window_ms < now_ms:
            times.popleft()
        if len(times) < allowance.requests:
            times.append(now_ms)
            return 0
        return int(times[0] + allowance.window_ms - now_ms) + 1


class RedisWindows:
    """Counts in Redis. While Redis does not answer, counts in this process and tries Redis again every second."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis
        self._local = LocalWindows()
        self._pause_until_s = float("-inf")

    async def admit(self, key_prefix: str, allowance: Allowance) -> int:
        if time.monotonic() < self._pause_until_s:
            return await self._local.admit(key_prefix, allowance)
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await self.ask(key_prefix, allowance)
        except (RedisError, OSError, TimeoutError):
            self._pause_until_s = time.monotonic() + _PAUSE_S
            return await self._local.admit(key_prefix, allowance)

    async def ask(self, key_prefix: str, allowance: Allowance) -> int:
        """Ask Redis. Raises redis-py's errors."""
        key = f"tg:throttle:{{{key_prefix}}}:{allowance.name}"
        arguments = allowance.window_ms, allowance.requests, secrets.token_hex(8)
        return int(await _ADMIT.run(self._redis, [key], *arguments))
