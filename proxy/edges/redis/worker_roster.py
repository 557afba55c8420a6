"""The list of live workers in Redis. Each worker renews its entry every few seconds and reads the list.

Only `local` mode uses it: while Redis is away, the last known list decides each worker's share of a threshold.

See docs/reference/limits.md#redis-loss.
"""

import asyncio
from dataclasses import dataclass

from proxy.edges.redis.nodes.redis_node import RedisNodes, execute

_KEY = b"tg:workers"
_NEVER_S = 10**9
_STEP_S = 3
"""A smaller difference between Redis' clock and this worker's is no step."""
_RENEW = b"""
local now, own = tonumber(redis.call('TIME')[1]), redis.call('ZSCORE', KEYS[1], ARGV[1])
local step = own and now - own - ARGV[3] or 0
if math.abs(step) > tonumber(ARGV[4]) then  -- Redis' clock has stepped since this worker's last renewal
  local entries = redis.call('ZRANGE', KEYS[1], 0, -1)
  for _, worker in ipairs(entries) do redis.call('ZINCRBY', KEYS[1], step, worker) end
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], 86400)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


@dataclass(frozen=True, slots=True)
class Share:
    """A worker's share of every threshold: it has rank `rank`, from 0, among `workers`."""

    rank: int
    workers: int

    def of(self, threshold: int) -> int:
        """The worker's part of a threshold. The parts of all workers add up to the threshold."""
        return threshold // self.workers + (1 if self.rank < threshold % self.workers else 0)


class WorkerRoster:
    """Keeps this worker on the list, and remembers its share.

    `share` is None until the other workers have read this worker's entry: until then their shares are too large.
    """

    def __init__(self, nodes: RedisNodes, incarnation: str, interval_s: float) -> None:
        self.share: Share | None = None
        self._nodes = nodes
        self._incarnation = incarnation.encode()
        self._interval_s = interval_s
        self._expires_after_s = max(1, round(3 * interval_s))
        self._refreshed_at = float("-inf")
        self._trusted_from = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def close(self) -> None:
        """Remove this worker from the list."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await execute(self._nodes, _KEY, b"ZREM", _KEY, self._incarnation)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._refresh()

    async def _refresh(self) -> None:
        """Renew this worker's entry and read the list.

        After Redis, or this worker, was away, the others need time to renew their entries. Until then no entry is
        removed, and a share only shrinks.
        """
        now = asyncio.get_running_loop().time()
        was_away = now - self._refreshed_at > 2.5 * self._interval_s
        if was_away:
            self._trusted_from = now + self._expires_after_s
        is_trusted = now >= self._trusted_from
        expires_after_s = self._expires_after_s if is_trusted else _NEVER_S
        since_s = 0 if self.share is None else round(now - self._refreshed_at)
        figures = (b"%d" % figure for figure in (expires_after_s, since_s, _STEP_S))
        renewal = (b"EVAL", _RENEW, b"1", _KEY, self._incarnation, *figures)
        workers = await execute(self._nodes, _KEY, *renewal)
        if not isinstance(workers, list) or self._incarnation not in workers:
            return
        self._refreshed_at = now
        if self.share is None and was_away and len(workers) > 1:
            return  # just joined: at the next refresh, every other worker has read this entry
        if is_trusted or self.share is None or len(workers) > self.share.workers:
            self.share = Share(sorted(workers).index(self._incarnation), len(workers))
