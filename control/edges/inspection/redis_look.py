"""Facts that a Redis, or each primary of a cluster, tells of itself: version, persistence, memory, clock."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from control.edges.redis.client import connect
from runtime.redis.routed import RedisNode
from runtime.redis.url import RedisUrlError

_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class RedisLook:
    """`trouble`: why it cannot be used, or "". `info`: the fields of INFO; empty if its user may not run that.

    `ahead_s`: how far its clock is ahead of ours. `node`: host and port, if a cluster or sentinels named it.
    `may_wait`: whether its user may run WAIT.
    """

    trouble: str
    info: dict[str, Any]
    ahead_s: float = 0.0
    node: str = ""
    may_wait: bool = True


async def look_at_redis(url: str) -> list[RedisLook]:
    """Look at a server, or at each primary of a cluster."""
    try:
        redis = connect(url)
    except RedisUrlError as error:
        return [RedisLook(f"its URL cannot be read: {error}", {})]
    except ValueError:  # its text may quote a part of the password
        return [RedisLook("its URL cannot be read", {})]
    try:
        async with asyncio.timeout(_DEADLINE_S):
            looks = await asyncio.gather(*map(_look, await redis.data_servers()))
            uncovered = await redis.uncovered_slots()
    except (RedisError, OSError, TimeoutError) as error:
        return [RedisLook(_cause(error), {})]
    finally:
        await redis.aclose()
    if uncovered:
        looks.append(RedisLook(f"{uncovered} slots of the cluster are served by no node", {}))
    return looks


async def _look(node: RedisNode) -> RedisLook:
    try:
        async with asyncio.timeout(_DEADLINE_S - 1):
            return await _ask(node)
    except (RedisError, OSError, TimeoutError) as error:
        return RedisLook(_cause(error), {}, 0.0, node.name)


async def _ask(node: RedisNode) -> RedisLook:
    before_s = time.time()
    seconds, microseconds = await node.redis.time()
    ahead_s = seconds + microseconds / 1e6 - (before_s + time.time()) / 2
    try:
        info = await node.redis.info()
    except NoPermissionError:
        info = {}
    try:
        await node.redis.wait(0, 0)
        may_wait = True
    except NoPermissionError:
        may_wait = False
    return RedisLook("", info, ahead_s, node.name, may_wait)


def _cause(error: Exception) -> str:
    return str(error).partition("\n")[0] or "no answer in time"
