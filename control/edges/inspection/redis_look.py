"""What a Redis says of itself: version, persistence, memory, clock."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from control.edges.redis.client import connect

_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class RedisLook:
    """`trouble`: why it cannot be used, or "". `info`: the fields of INFO; empty if its user may not run that.

    `ahead_s`: how far its clock is ahead of ours.
    """

    trouble: str
    info: dict[str, Any]
    ahead_s: float = 0.0


async def look_at_redis(url: str) -> RedisLook:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await _look(url)
    except (RedisError, OSError, TimeoutError) as error:
        return RedisLook(str(error).partition("\n")[0] or "no answer in time", {})
    except ValueError:  # its text may quote a part of the password
        return RedisLook("its URL cannot be read", {})


async def _look(url: str) -> RedisLook:
    redis = connect(url)
    try:
        before_s = time.time()
        seconds, microseconds = await redis.time()
        ahead_s = seconds + microseconds / 1e6 - (before_s + time.time()) / 2
        try:
            info = await redis.info()
        except NoPermissionError:
            info = {}
        return RedisLook("", info, ahead_s)
    finally:
        await redis.aclose()
