"""Which workers share the counters: each says every few seconds that it lives, and learns how many do.

Only `local` mode asks, once Redis is away: what was last known decides each worker's share of a threshold.
"""

import asyncio
from dataclasses import dataclass

from proxy.edges.redis.pipelined_client import RedisClient

_KEY = b"tg:workers"
_NEVER_S = 10**9
_PRESENT = b"""
local now = redis.call('TIME')[1]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[1], 86400)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


@dataclass(frozen=True, slots=True)
class Share:
    """This worker is the `rank`-th, from 0, of `workers`."""

    rank: int
    workers: int

    def of(self, threshold: int) -> int:
        """This worker's part of a threshold; the parts of all workers are the whole."""
        return threshold // self.workers + (1 if self.rank < threshold % self.workers else 0)


class WorkerRoster:
    """Keeps this worker on the list and the list in mind.

    `share` is None until this worker knows that the others know of it: until then they go by larger shares.
    """

    def __init__(self, client: RedisClient, incarnation: str, interval_s: float) -> None:
        self.share: Share | None = None
        self._client = client
        self._incarnation = incarnation.encode()
        self._interval_s = interval_s
        self._gone_after_s = max(1, round(3 * interval_s))
        self._heard_at = float("-inf")
        self._trusted_from = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def close(self) -> None:
        """Leave the list."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._client.ask(b"ZREM", _KEY, self._incarnation)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._refresh()

    async def _refresh(self) -> None:
        """After Redis, or this worker, was away, the others need time to say that they live: until then nobody is
        struck off the list, and a share only shrinks."""
        now = asyncio.get_running_loop().time()
        was_away = now - self._heard_at > 2.5 * self._interval_s
        if was_away:
            self._trusted_from = now + self._gone_after_s
        is_trusted = now >= self._trusted_from
        gone_after_s = b"%d" % (self._gone_after_s if is_trusted else _NEVER_S)
        workers = await self._client.ask(b"EVAL", _PRESENT, b"1", _KEY, self._incarnation, gone_after_s)
        if not isinstance(workers, list) or self._incarnation not in workers:
            return
        self._heard_at = now
        if self.share is None and was_away and len(workers) > 1:
            return  # just joined: by the next time, each of the others has asked as well
        if is_trusted or self.share is None or len(workers) > self.share.workers:
            self.share = Share(sorted(workers).index(self._incarnation), len(workers))
