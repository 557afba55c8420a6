"""One server that holds counters, what the counters have learnt of it, and what they need of all servers together."""

from collections.abc import Callable
from typing import Any, Protocol

import hiredis

from proxy.edges.redis.nodes.clock import RedisClock
from proxy.edges.redis.nodes.epoch import ServerEpoch
from proxy.edges.redis.nodes.pipelined_client import RedisClient
from runtime.redis.slots import slot_of


class RedisNode:
    """A server. `clock`: an estimate of its clock. `answered_through`: the highest number of a take that it answered.

    `has_settle`, `has_places`, `has_end`: it has loaded settle.lua, places.lua, or end.lua of spend limits, as far as
    is known. `epoch`: that of its data.
    """

    __slots__ = ("answered_through", "client", "clock", "epoch", "has_end", "has_places", "has_settle")

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.clock = RedisClock()
        self.epoch = ServerEpoch(client)
        self.answered_through = 0
        self.has_settle = False
        self.has_places = False
        self.has_end = False

    @property
    def serves(self) -> bool:
        """True if the server is connected and replied lately."""
        return self.client.available and self.client.connected


class RedisNodes(Protocol):
    """All servers of one URL."""

    def hook(self, before_flush: Callable[[], None], on_recovered: Callable[[], None]) -> None:
        """`before_flush`: called once per flush, to enqueue more. `on_recovered`: a server replies again after a loss,
        or a key has moved to another server; what was stored there may be lost."""

    async def start(self) -> None:
        """Connect. Returns within a second, connected or not."""

    async def close(self) -> None: ...

    def schedule_flush(self) -> None:
        """Flush in this tick of the event loop."""

    def of(self, slot: int) -> RedisNode:
        """The server of a slot, as far as is known."""

    def redirected(self, slot: int, error: str) -> RedisNode | None:
        """The server that a command's error reply names: the caller enqueues it there at once, before anything else.
        None if the error is another one."""

    @property
    def any_serves(self) -> bool:
        """True if at least one server replies."""


async def execute(nodes: RedisNodes, key: bytes, *command: bytes) -> Any:
    """The reply to a command for `key`, which may be a `hiredis.ReplyError`. None if there is none in time."""
    slot = slot_of(key)
    reply = await nodes.of(slot).client.execute(*command)
    if isinstance(reply, hiredis.ReplyError):
        node = nodes.redirected(slot, str(reply))
        if node is not None:
            return await node.client.execute(*command)
    return reply
