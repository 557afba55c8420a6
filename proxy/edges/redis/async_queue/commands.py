"""Commands to the Redis of the queue, of one process: bounded pools, a deadline on every command, named failures.

Nothing is sent twice here, redirects excepted: a command whose reply is lost may have taken effect.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from proxy.async_requests.queues import QueueUnavailableError
from proxy.edges.redis.async_queue.scripts import load_scripts
from proxy.edges.redis.nodes.clock import ExpectedTimes
from proxy.edges.redis.subscription import subscribed, watched
from runtime.redis.node_clients import RedisOptions
from runtime.redis.replicated_writes import ReplicatedWrites
from runtime.redis.routed import Command, RoutedRedis
from runtime.redis.script import Argument, RedisScript

LOG_INTERVAL_S = 30.0
_BACKOFF_S = 0.05, 0.5
"""The pauses before a lost subscription is renewed. They are short: while it is lost, nothing is written."""
_REMEDIES = {
    "OUTOFMEMORY": "Give it more memory (maxmemory), or lower TOLLGATE_ASYNC_MAX_QUEUED_BYTES.",
    "OOM": "Give it more memory (maxmemory), or lower TOLLGATE_ASYNC_MAX_QUEUED_BYTES.",
    "READONLY": "TOLLGATE_ASYNC_REDIS_URL must name a primary. A cluster or sentinels name a new one: wait.",
    "CLUSTERDOWN": "Its cluster has lost nodes: start them, or wait until replicas have replaced them.",
    "SLOTNOTCOVERED": "Its cluster has lost nodes: start them, or wait until replicas have replaced them.",
    "NOPERM": "Give its ACL user the permissions that docs/operating.md names.",
    "UNCONFIRMED": "Check the replicas of its primary, and the network between them.",
    "UNBLOCKED": "Its primary was replaced: wait.",
    "AUTHENTICATION": "Check the user and the password in TOLLGATE_ASYNC_REDIS_URL.",
    "WRONGTYPE": "Another program uses keys that begin with tga: in the same database.",
    "LOADING": "It is reading its data after a start; wait.",
    "BUSY": "Another client's script runs for too long there.",
    "MISCONF": "It cannot write to its disk: check its log.",
}
"""Remedies by a word of the error: of the name of its class in redis-py, or of the server's text."""
_MISSING = "missing"
"""The suffix of a second key for scripts on a workspace. Neither key exists, so a cluster that moves the workspace's
slot makes the script wait (TRYAGAIN) until all keys have arrived. With one key, it would run where only some are."""
_REMEDY = "Check the Redis server, TOLLGATE_ASYNC_REDIS_URL and the network."
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of the commands. Tests replace the scripts and the monotonic clock by those with another clock."""

    connections: int = 32
    """The most connections to each server."""
    timeout_s: float = 5.0
    """The deadline of a command, and of the wait for a free connection."""
    connect_timeout_s: float = 2.0
    piece_bytes: int = 131_072
    """The size of pieces in which larger inputs go."""
    scripts: Mapping[str, str] = field(default_factory=load_scripts)
    clock: Callable[[], float] = time.monotonic


class QueueCommands:
    """The commands of a process. `run`, `write` and `call` raise `QueueUnavailableError` for any fault of Redis."""

    def __init__(self, url: str, options: QueueOptions) -> None:
        self.clock = options.clock
        self._timeout_s = options.timeout_s
        self._times = ExpectedTimes(options.timeout_s)
        bounds = RedisOptions(
            connect_timeout_s=options.connect_timeout_s, connections=options.connections, wait_s=options.timeout_s
        )
        self._redis = RoutedRedis(url, bounds)
        self._writes = ReplicatedWrites(self._redis)
        self._scripts = {name: RedisScript(text) for name, text in options.scripts.items()}
        self._trouble = self._denied = ""
        self._logged_at = float("-inf")

    async def close(self) -> None:
        await self._writes.close()
        await self._redis.aclose()

    @property
    def trouble(self) -> str:
        """The fault of the last command, or the right that is missing. "" if there is none."""
        return self._trouble or self._denied

    async def check_rights(self) -> None:
        """Report a right that the user of Redis lacks, before the first write needs it."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._writes.check_rights()
            self._denied = ""
        except NoPermissionError as error:
            self.report(error)
            self._denied = self._trouble
        except (RedisError, OSError, TimeoutError) as error:
            self.report(error)

    async def run(self, name: str, key: str, *arguments: Argument) -> Any:
        """Run a script. `key`: its KEYS[1], which is a key, or the prefix of a workspace's keys."""
        return await self._timed(key, arguments, partial(self._scripts[name].run, self._redis))

    async def write(self, name: str, key: str, *arguments: Argument) -> Any:
        """Run a script as `run` does. After its reply a replica has what was written, if there is one."""
        return await self._timed(key, arguments, partial(self._writes.run, self._scripts[name]))

    def doubt(self) -> None:
        """Find out again which servers hold the data."""
        self._redis.doubt()

    async def call(self, key: str, command: Command) -> Any:
        """The result of one command of redis-py with this key."""
        return await self._guarded(lambda: self._redis.at(key, command))

    def subscribed(self, channel: str, on_lost: Callable[[Exception], None]) -> AsyncGenerator[str, None]:
        """The channel's messages, on a connection of their own. See `proxy.edges.redis.subscription`."""
        return subscribed(self._redis, channel, on_lost, _BACKOFF_S)

    def watched(self, channel: str, on_lost: Callable[[Exception], None]) -> AsyncGenerator[None, None]:
        """Yield whenever all servers of the queue are subscribed to. See `proxy.edges.redis.subscription`."""
        return watched(self._redis, channel, on_lost, _BACKOFF_S)

    async def _timed(self, key: str, arguments: Sequence[Argument], run: Callable[..., Awaitable[Any]]) -> Any:
        """Run the script with the expected time of the workspace's clock, and learn the true time from its reply."""
        if not _is_workspace(key):
            return await self._guarded(lambda: run([key], *arguments))
        asked_at_s = self.clock()
        expected = self._times.at(key, asked_at_s) or ("", "")
        keys = [key, key + _MISSING]
        now_ms, reply = await self._guarded(lambda: run(keys, *arguments, *expected))
        self._times.learn(key, now_ms, asked_at_s)
        return reply

    async def _guarded(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await work()
        except (RedisError, OSError, TimeoutError) as error:
            self.report(error)
            raise QueueUnavailableError(self._trouble) from error
        if self._trouble:
            self._trouble = ""
            log.warning("The Redis of asynchronous requests answers again.")
        return result

    def report(self, error: Exception) -> None:
        """Log what is wrong with Redis: when it begins, and every `LOG_INTERVAL_S`."""
        trouble = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
        is_new = not self._trouble
        self._trouble = trouble
        if is_new or time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            log.error("Redis does not serve asynchronous requests (%s): they are refused, and none begins. %s",
                      trouble, remedy_for(trouble))  # fmt: skip


def _is_workspace(key: str) -> bool:
    return key.endswith(":")


def remedy_for(trouble: str) -> str:
    words = trouble.upper()
    return next((remedy for word, remedy in _REMEDIES.items() if word in words), _REMEDY)
