"""One server that has every key: the one of the URL, or the primary that sentinels name."""

import asyncio
from collections.abc import Callable

from proxy.edges.redis.nodes.connection import RedisConnection
from proxy.edges.redis.nodes.dialing import Dialer
from proxy.edges.redis.nodes.pipelined_client import RedisClient, RedisClientOptions
from proxy.edges.redis.nodes.redis_node import RedisNode
from proxy.edges.redis.nodes.sentinel import SentinelPrimary
from runtime.background import cancelled
from runtime.redis.url import RedisAddress, RedisUrl, Topology


class FixedServer:
    """A `Server` that always has the same address."""

    def __init__(self, address: RedisAddress, dialer: Dialer, name: str = "Redis") -> None:
        self.name = name
        self._address = address
        self._dialer = dialer

    async def open(self, on_idle: Callable[[], None]) -> RedisConnection:
        return await self._dialer.open(self._address, on_idle)


class SingleNode:
    """`RedisNodes` that are one server."""

    def __init__(self, url: RedisUrl, options: RedisClientOptions) -> None:
        self._primary = SentinelPrimary(url) if url.topology is Topology.SENTINEL else None
        server = self._primary or FixedServer(url.login, Dialer(url.login.tls))
        self._node = RedisNode(RedisClient(server, options))
        self.schedule_flush = self._node.client.schedule_flush
        self._watching: asyncio.Task[None] | None = None

    def hook(self, before_flush: Callable[[], None], on_recovered: Callable[[], None]) -> None:
        def recovered() -> None:
            self._node.clock.forget()
            on_recovered()

        self._node.client.hook(before_flush, recovered)

    async def start(self) -> None:
        await self._node.client.start()
        if self._primary is not None:
            self._watching = asyncio.create_task(self._primary.watch(self._node.client.reconnect))

    async def close(self) -> None:
        if self._watching is not None:
            await cancelled(self._watching)
        await self._node.client.close()

    def of(self, slot: int) -> RedisNode:
        return self._node

    def redirected(self, slot: int, error: str) -> None:
        if error.startswith("READONLY"):  # a fail-over made it a replica; another one may stand at its address
            self._node.client.reconnect()

    @property
    def any_serves(self) -> bool:
        return self._node.serves
