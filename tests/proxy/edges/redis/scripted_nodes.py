"""Redis servers that a test answers by hand: a fake of `proxy/edges/redis/nodes/`.

Commands wait in a list until the test replies to them, in order, as on one connection. `sent_batch` reads a batch as
settle.lua does.
"""

import asyncio
import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis

from policy.limits.settlement import Reservation, Settlement
from proxy.edges.redis.nodes.connection import AwaitedCommand, RedisCommand, encode
from proxy.edges.redis.nodes.redis_node import RedisNode
from proxy.edges.redis.scripts import GIVEN_BACK, WITHOUT_REDIS


class ScriptedClient:
    """A server's client. `commands`: those without a reply, oldest first."""

    def __init__(self) -> None:
        self.commands: list[RedisCommand] = []
        self._arrived = asyncio.Event()

    def enqueue(self, command: RedisCommand) -> None:
        self.commands.append(command)
        self._arrived.set()

    async def execute(self, *arguments: bytes) -> Any:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.enqueue(AwaitedCommand(encode(*arguments), reply))
        return await reply

    async def next_command(self) -> RedisCommand:
        """The oldest command without a reply, as soon as there is one."""
        while not self.commands:
            self._arrived.clear()
            await self._arrived.wait()
        return self.commands[0]

    def reply(self, reply: Any) -> None:
        """Answer the oldest command. None: no reply came in time."""
        command = self.commands.pop(0)
        command.on_reply(command, reply)


class ScriptedNodes:
    """One server for all slots, and another one to which `MOVED` sends a command."""

    def __init__(self) -> None:
        self.client = ScriptedClient()
        self.other_client = ScriptedClient()
        self.node = RedisNode(self.client)  # type: ignore[arg-type]  # a client by shape
        self.other_node = RedisNode(self.other_client)  # type: ignore[arg-type]
        self.flushes = 0

    def hook(self, before_flush: Callable[[], None], on_recovered: Callable[[], None]) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def schedule_flush(self) -> None:
        self.flushes += 1

    def of(self, slot: int) -> RedisNode:
        return self.node

    def redirected(self, slot: int, error: str) -> RedisNode | None:
        return self.other_node if error.startswith("MOVED") else None

    @property
    def any_serves(self) -> bool:
        return True


@dataclass(frozen=True)
class SentBatch:
    """A call of settle.lua. `script`: its text after EVAL, its digest after EVALSHA."""

    command: bytes
    script: bytes
    marker: bytes
    lease_ms: int
    settlements: list[Settlement]

    @property
    def numbers(self) -> list[int]:
        return [settlement.number for settlement in self.settlements]


def sent_batch(redis_command: RedisCommand) -> SentBatch:
    reader = hiredis.Reader()
    reader.feed(redis_command.encoded)
    command, script, _, key, layout, values, *names, marker = reader.gets()
    figures = iter(struct.unpack(layout.decode().replace("I6", "6s").replace("I8", "Q"), values))
    lease_ms = int.from_bytes(next(figures), "little")
    settlements = []
    for number in figures:
        admitted_at, reserved, margin, actual, flags, count = itertools.islice(figures, 6)
        buckets = tuple((names[next(figures) - 1].decode(), next(figures)) for _ in range(count))
        local = bool(flags & WITHOUT_REDIS)
        given_back = bool(flags & GIVEN_BACK)
        reservation = Reservation(
            key=key.decode(),
            buckets=buckets,
            admitted_at_ms=admitted_at,
            reserved_tokens=reserved,
            local=local,
            margin_tokens=margin,
        )
        settlements.append(
            Settlement(reservation=reservation, number=number, actual_tokens=actual, given_back=given_back)
        )
    return SentBatch(command, script, marker, lease_ms, settlements)
