"""Commands of redis-py, each sent to the server that has its key, whichever kind of Redis the URL names.

Follows redirects and fail-over. Sends nothing twice, retries of lost connections excepted (`RedisOptions`): a command
that was redirected was not executed.

See docs/decisions/0046-redis-py-behind-a-slot-map.md.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from runtime.redis.current_map import CurrentMap
from runtime.redis.discovery import ClusterDiscovery, Discovery, SentinelDiscovery
from runtime.redis.node_clients import NodeClients, RedisOptions, ask
from runtime.redis.slot_map import ONLY, SlotMap
from runtime.redis.slots import Place
from runtime.redis.url import RedisUrl, Topology

_MOST_REDIRECTS = 16
_REDIRECT_S = 0.01
"""The pause before a redirect, times its number: two servers may disagree for a moment."""
_TRY_AGAIN_S = 0.05
_DOUBTFUL = (RedisConnectionError, RedisTimeoutError, ClusterDownError, ReadOnlyError, OSError)
Command = Callable[[Redis], Awaitable[Any]]
"""Sends one command by redis-py's method of its name."""
Keyed = tuple[str, Command]
"""A command with its key."""


@dataclass(frozen=True, slots=True)
class RedisNode:
    """A server that holds data."""

    host: Place
    redis: Redis

    @property
    def name(self) -> str:
        """ "" for the server of a URL that names one."""
        return "" if self.host == ONLY else f"{self.host[0]}:{self.host[1]}"


_Send = Callable[[RedisNode, bool], Awaitable[Any]]
"""The flag: ask the server for a key that moves to it."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A write's result, the server that took it, and how many replicas had it in time; None if that was not asked."""

    result: Any
    node: RedisNode
    replicas: int | None


class RoutedRedis:
    """Connects on use. Its commands raise redis-py's errors and OSError, and have no deadline but `options`'."""

    def __init__(self, url: str, options: RedisOptions) -> None:
        """Raises ValueError for a URL that cannot be read."""
        parsed = RedisUrl.parse(url)
        is_one = parsed.topology is Topology.SERVER
        self.topology = parsed.topology
        self._clients = NodeClients(parsed.login, options, url if is_one else "")
        slot_map = SlotMap.of_primary(ONLY) if is_one else None
        self._map = CurrentMap(self._clients, _discovery(parsed, self._clients, options), slot_map)

    async def aclose(self) -> None:
        await self._map.close()
        await self._clients.close()

    async def at(self, key: str, command: Command) -> Any:
        """The command's result, from the server that has the key."""
        async with self._doubting():
            return await self._redirected(key, partial(_send, command))

    async def write(self, key: str, command: Command, wait_ms: int | None) -> WriteResult:
        """Do the same as `at`. `wait_ms`: how long to wait for a replica; None: not at all."""
        async with self._doubting():
            write: WriteResult = await self._redirected(key, partial(_send_write, command, wait_ms))
        return write

    async def owner(self, key: str) -> RedisNode:
        """The server that has the key, as far as is known."""
        host = (await self._map.get()).owner(key)
        return RedisNode(host, self._clients.at(host))

    def has_primary(self, node: RedisNode) -> bool:
        """Return whether the server holds data, as far as is known."""
        return self._map.has_primary(node.host)

    async def find_primaries(self) -> None:
        """Find out which servers hold data now. Raises redis-py's error if nobody tells."""
        await self._map.find_anew()

    async def changed(self) -> None:
        """Wait until other servers hold the data than now."""
        await self._map.changed()

    async def each(self, commands: Sequence[Keyed]) -> list[Any]:
        """The results in order, after a round trip to each server. Raises the first error when all have answered."""
        async with self._doubting():
            results = await self._by_server(commands)
            for place, result in enumerate(results):
                if isinstance(result, AskError | TryAgainError):
                    key, command = commands[place]
                    results[place] = await self._redirected(key, partial(_send, command))
                elif isinstance(result, BaseException):
                    raise result
        return results

    async def anywhere(self, command: Command) -> Any:
        """The result of a command without a key, from any server."""
        async with self._doubting():
            return await command((await self.any_node()).redis)

    async def any_node(self) -> RedisNode:
        return random.choice(await self.data_servers())  # noqa: S311 (spreads load, keeps no secret)

    async def data_servers(self) -> list[RedisNode]:
        """The servers that hold data, in the order of their slots."""
        return [RedisNode(host, self._clients.at(host)) for host in (await self._map.get()).primaries]

    async def uncovered_slots(self) -> int:
        return (await self._map.get()).uncovered

    def doubt(self) -> None:
        """Find out again which server holds what: a node was used that fails."""
        self._map.doubt()

    async def _redirected(self, key: str, send: _Send) -> Any:
        """Follow redirects. While a slot is moved, wait for the keys of a command that are on both sides."""
        host = (await self._map.get()).owner(key)
        is_asking = False
        redirects = 0
        while True:
            try:
                return await send(RedisNode(host, self._clients.at(host)), is_asking)
            except TryAgainError:
                await asyncio.sleep(_TRY_AGAIN_S)
                host = (await self._map.get()).owner(key)
                is_asking = False
                redirects = 0
            except AskError as error:
                if redirects == _MOST_REDIRECTS:
                    raise
                await asyncio.sleep(_REDIRECT_S * redirects)
                redirects += 1
                host = Place(str(error.host) or host[0], int(error.port))
                is_asking = not isinstance(error, MovedError)
                if not is_asking:
                    self._map.move(int(error.slot_id), host)

    async def _by_server(self, commands: Sequence[Keyed]) -> list[Any]:
        """Results and errors, in order."""
        slot_map = await self._map.get()
        places = dict[Place, list[int]]()
        for place, (key, _) in enumerate(commands):
            places.setdefault(slot_map.owner(key), []).append(place)
        answers = await asyncio.gather(
            *(_pipelined(self._clients.at(host), [commands[place] for place in of_host])
              for host, of_host in places.items())
        )  # fmt: skip
        results: list[Any] = [None] * len(commands)
        for of_host, answer in zip(places.values(), answers, strict=True):
            for place, result in zip(of_host, answer, strict=True):
                results[place] = result
        return results

    @asynccontextmanager
    async def _doubting(self) -> AsyncIterator[None]:
        try:
            yield
        except (*_DOUBTFUL, asyncio.CancelledError):
            # A caller's deadline cancels, and nothing else tells of a server that hangs.
            self._map.doubt()
            raise


async def _send(command: Command, node: RedisNode, is_asking: bool) -> Any:
    if not is_asking:
        return await command(node.redis)
    async with node.redis.client() as one_connection:
        await ask(one_connection, "ASKING")
        return await command(one_connection)


async def _send_write(command: Command, wait_ms: int | None, node: RedisNode, is_asking: bool) -> WriteResult:
    """Write in one round trip and on one connection: WAIT counts what its own connection wrote."""
    if wait_ms is None:
        return WriteResult(await _send(command, node, is_asking), node, None)
    pipeline = node.redis.pipeline(transaction=False)
    if is_asking:
        pipeline.execute_command("ASKING")
    command(pipeline)
    pipeline.wait(1, wait_ms)
    *_, result, replicas = await pipeline.execute(raise_on_error=False)
    for reply in (result, replicas):
        if isinstance(reply, BaseException):
            raise reply
    return WriteResult(result, node, replicas)


async def _pipelined(redis: Redis, commands: Sequence[Keyed]) -> Sequence[Any]:
    """Results and errors. If the server does not answer, that error for each command."""
    pipeline = redis.pipeline(transaction=False)
    for _, command in commands:
        command(pipeline)
    try:
        return await pipeline.execute(raise_on_error=False)
    except _DOUBTFUL as error:
        return [error] * len(commands)


def _discovery(url: RedisUrl, nodes: NodeClients, options: RedisOptions) -> Discovery | None:
    match url.topology:
        case Topology.SERVER:
            return None
        case Topology.CLUSTER:
            return ClusterDiscovery(url, nodes)
        case Topology.SENTINEL:
            return SentinelDiscovery(url, nodes, NodeClients(url.servers[0], options))
