"""Writes that count once a replica has them, where their primary has a replica online.

A primary that stalls may acknowledge what lay in its socket after others have replaced it. Then its replicas have left
it, so WAIT tells. Without a replica online its word counts, if it is still the primary when it is asked again.

See docs/decisions/0069-writes-wait-for-a-replica.md.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from runtime.background import cancelled
from runtime.redis.routed import RedisNode, RoutedRedis
from runtime.redis.script import Argument, RedisScript
from runtime.redis.slots import Place

WAIT_MS = 400
"""The time that a replica may take."""
ALONE_S = 1.0
"""The time that a primary counts as one without a replica, before it is asked again."""
LOOK_S = 3.0
"""The time that it may take to find out whether a primary has a replica, and is one."""
SILENT_S = 10
"""A replica that its primary has not heard of for so long is not online, though its connection is open."""
_REPLACED = "the primary was replaced while it wrote"


class UnconfirmedWriteError(RedisError):
    """The write may be lost, or take effect."""


class ReplicatedWrites:
    """One per client."""

    def __init__(self, redis: RoutedRedis) -> None:
        self._redis = redis
        self._replicated: set[Place] = set()
        """Primaries that had a replica when they were last asked."""
        self._alone_until: dict[Place, float] = {}
        self._looks: dict[Place, asyncio.Task[None]] = {}

    async def close(self) -> None:
        for look in list(self._looks.values()):
            await cancelled(look)

    async def check_rights(self) -> None:
        """Raises redis-py's NoPermissionError if the user of Redis may not do what writes need."""
        for node in await self._redis.data_servers():
            await node.redis.info("replication")
            await node.redis.wait(0, 0)

    async def run(self, script: RedisScript, keys: Sequence[str], *arguments: Argument) -> Any:
        """The script's reply. Raises `UnconfirmedWriteError`, or what else is wrong with Redis."""
        node = await self._redis.owner(keys[0])
        waits = await self._has_replica(node)
        write = await script.write(self._redis, keys, arguments, WAIT_MS if waits else None)
        if not write.replicas:
            self._replicated.discard(write.node.host)
            if await self._has_replica(write.node):
                raise UnconfirmedWriteError(f"no replica had a write within {WAIT_MS} ms")
        if not self._redis.has_primary(write.node):
            raise UnconfirmedWriteError(_REPLACED)
        return write.result

    async def _has_replica(self, node: RedisNode) -> bool:
        host = node.host
        if host in self._replicated:
            return True
        if time.monotonic() < self._alone_until.get(host, 0.0):
            return False
        look = self._looks.get(host)
        if look is None:
            look = self._looks[host] = asyncio.create_task(self._look(node))
            look.add_done_callback(lambda look: self._looked(host, look))
        await asyncio.shield(look)
        return host in self._replicated

    def _looked(self, host: Place, look: asyncio.Task[None]) -> None:
        del self._looks[host]
        if not look.cancelled():
            look.exception()  # told to those that still wait

    async def _look(self, node: RedisNode) -> None:
        """Look in a task of its own: callers with short deadlines would never see its end."""
        async with asyncio.timeout(LOOK_S):
            replication = await node.redis.info("replication")
            if _has_replica_online(replication):
                self._replicated.add(node.host)
                return
            await self._redis.find_primaries()
            if replication["role"] != "master" or not self._redis.has_primary(node):
                raise UnconfirmedWriteError(_REPLACED)
        self._alone_until[node.host] = time.monotonic() + ALONE_S


def _has_replica_online(replication: Mapping[str, Any]) -> bool:
    """`replication`: the section of INFO. A replica that still loads its data has acknowledged nothing yet."""
    replicas = (one for name, one in replication.items() if name.startswith("slave") and isinstance(one, dict))
    return any(one["state"] == "online" and one["offset"] > 0 and one["lag"] < SILENT_S for one in replicas)
