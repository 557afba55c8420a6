"""The primary that Redis Sentinel names: asked for at each connection, and watched, because it may change meanwhile.

See docs/reference/limits.md#redis-topologies.
"""

import asyncio
from collections.abc import Callable

import hiredis

from proxy.edges.redis.nodes.connection import RedisConnection
from proxy.edges.redis.nodes.dialing import Dialer, LoginRefusedError, ask
from runtime.backoff import jittered_s
from runtime.redis.slots import Place
from runtime.redis.url import RedisAddress, RedisUrl
from runtime.redis.votes import most_named

_WATCH_S = 2.0
_ASK_S = 0.8
"""Seconds that all sentinels may be silent: less than `open` has as a whole, so that its error says what is wrong."""


class SentinelPrimary:
    """A `Server`: the primary of one service."""

    def __init__(self, url: RedisUrl) -> None:
        self.name = f"The Redis primary of {url.service}"
        self._url = url
        self._dialer = Dialer(url.login.tls)
        self._place: Place | None = None

    async def open(self, on_idle: Callable[[], None]) -> RedisConnection:
        """Connect. Raises ConnectionError if the server is not the primary yet: the fail-over is still under way."""
        self._place = place = await self.find()
        connection = await self._dialer.open(self._url.login.at(*place), on_idle)
        try:
            role = await ask(connection, "ROLE")
            if isinstance(role, hiredis.ReplyError):
                raise LoginRefusedError(str(role).split(" ", 1)[0])
            if role[0] != b"master":
                raise ConnectionError(f"{place.host}:{place.port} is named as the primary and is still a replica")
        except BaseException:
            connection.abort()
            raise
        return connection

    async def find(self) -> Place:
        """The primary that most sentinels name. Raises ConnectionError if none names one in time."""
        place = await most_named([self._named_by(sentinel) for sentinel in self._url.servers], _ASK_S)
        if place is None:
            raise ConnectionError(f"no sentinel of TOLLGATE_REDIS_URL names a primary of {self._url.service}")
        return place

    async def watch(self, on_moved: Callable[[], None]) -> None:
        """Call `on_moved` when the sentinels name another primary than the one that we use: it may be cut off from
        them, and still answer us."""
        while True:
            await asyncio.sleep(jittered_s(_WATCH_S))
            try:
                place = await self.find()
            except ConnectionError:
                continue  # the primary may be well; if it is not, `open` tells
            if place != self._place:
                on_moved()

    async def _named_by(self, sentinel: RedisAddress) -> Place | None:
        """The primary that a sentinel names. None if it is unreachable, refuses us, or does not know the service."""
        try:
            connection = await self._dialer.open(sentinel)
        except (OSError, LoginRefusedError):
            return None
        try:
            reply = await ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
        except ConnectionError:
            return None
        finally:
            connection.abort()
        return Place(reply[0].decode(), int(reply[1])) if isinstance(reply, list) else None
