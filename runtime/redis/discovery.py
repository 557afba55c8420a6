"""Finds out which servers hold the data: from the nodes of a cluster, or from sentinels.

Asks one node after the other, in random order, because one may be away, or cut off from the others and wrong. Sentinels
vote.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from runtime.redis.node_clients import NodeClients, ask
from runtime.redis.slot_map import SlotMap
from runtime.redis.slots import Place
from runtime.redis.url import RedisUrl
from runtime.redis.votes import most_named

ASK_S = 1.0
"""The time that one server may take to answer."""


class Discovery(Protocol):
    """One kind of Redis."""

    async def find(self, last: SlotMap | None) -> SlotMap:
        """Find the map; `last` is the one before. Raises redis-py's ConnectionError, which names the last server."""

    async def close(self) -> None:
        """Close connections that are not `NodeClients`'."""


class ClusterDiscovery:
    """Asks the nodes that are known, then those of the URL: these may all be gone while the cluster lives on."""

    def __init__(self, url: RedisUrl, nodes: NodeClients) -> None:
        self._hosts = [Place(server.host, server.port) for server in url.servers]
        self._nodes = nodes

    async def find(self, last: SlotMap | None) -> SlotMap:
        hosts = _shuffled(last.nodes if last is not None else ())
        return await _first([*hosts, *_shuffled(self._hosts)], self._ask)

    async def _ask(self, host: Place) -> SlotMap:
        slot_map = SlotMap.of_cluster(await ask(self._nodes.at(host), "CLUSTER", "SLOTS"), host)
        if not slot_map.nodes:
            raise RedisConnectionError("it knows no node that serves slots")
        return slot_map

    async def close(self) -> None:
        """Do nothing: there are no connections."""


class SentinelDiscovery:
    """Asks the sentinels of the URL, and the server that they name whether it is a primary."""

    def __init__(self, url: RedisUrl, nodes: NodeClients, sentinels: NodeClients) -> None:
        self._hosts = [Place(server.host, server.port) for server in url.servers]
        self._service = url.service
        self._nodes = nodes
        self._sentinels = sentinels

    async def find(self, last: SlotMap | None) -> SlotMap:
        primary = await most_named([self._named_by(sentinel) for sentinel in self._hosts], ASK_S)
        if primary is None:
            raise RedisConnectionError(f"no sentinel of the URL names a primary of {self._service}")
        return await _first([primary], self._ask)

    async def _named_by(self, sentinel: Place) -> Place | None:
        """None if it cannot be reached, refuses us, or does not know the service."""
        try:
            reply = await ask(self._sentinels.at(sentinel), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        except (RedisError, OSError):
            return None
        return None if reply is None else Place(reply[0].decode(), int(reply[1]))

    async def _ask(self, primary: Place) -> SlotMap:
        role = (await ask(self._nodes.at(primary), "ROLE"))[0]
        if role != b"master":
            raise RedisConnectionError("sentinels name it as the primary, and it is a replica")
        return SlotMap.of_primary(primary)

    async def close(self) -> None:
        await self._sentinels.close()


async def _first(hosts: Iterable[Place], ask: Callable[[Place], Awaitable[SlotMap]]) -> SlotMap:
    """The answer of the first host that gives one. Raises what the last one said."""
    trouble = ""
    for host in hosts:
        try:
            async with asyncio.timeout(ASK_S):
                return await ask(host)
        except (RedisError, OSError, TimeoutError) as error:
            trouble = f"{host[0]}:{host[1]}: " + (str(error).partition("\n")[0] or "no answer in time")
    raise RedisConnectionError(f"none says which servers hold the data; the last one asked, {trouble}")


def _shuffled(hosts: Iterable[Place]) -> list[Place]:
    order = list(hosts)
    random.shuffle(order)
    return order
