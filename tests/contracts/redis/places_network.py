"""A network in one process between real clients of Redis and a real Redis, in skipped time.

A loop on which idle time passes at once connects unix sockets to `Link`s. Each link runs commands on the real server at
once, holds them, or holds their answers; it can be cut, with commands under way. Redis' clock follows the loop's.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import hiredis

from tests.contracts.redis.counters_world import CLOCK_KEY, START_MS
from tests.redis_server import RedisServer
from tests.skipping_loop import SkippingLoop

TICK_S = 1e-8
Ran = Callable[[list[bytes], Any], None]
"""Called with each command that has run, and its reply."""


class Server:
    """The real Redis. Its clock is the loop's, and what that was stepped by."""

    def __init__(self, server: RedisServer, loop: asyncio.AbstractEventLoop, ran: Ran) -> None:
        self._loop = loop
        self._ran = ran
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(server.socket_path))
        self._replies = hiredis.Reader()
        self.stepped_ms = 0

    @property
    def now_ms(self) -> int:
        return START_MS + round(self._loop.time() * 1000) + self.stepped_ms

    def close(self) -> None:
        self._socket.close()

    def ask(self, *command: bytes | str | int) -> Any:
        """Run one command that no link carries."""
        return self._run([command])[0]

    def run(self, data: bytes) -> bytes:
        """Run the commands that a client wrote. Returns what Redis answers."""
        reader = hiredis.Reader()
        reader.feed(data)
        commands: list[list[bytes]] = []
        while (command := reader.gets()) is not False:
            commands.append(cast(list[bytes], command))
        replies = self._run([("SET", CLOCK_KEY, self.now_ms), *commands])[1:]
        for command, reply in zip(commands, replies, strict=True):
            self._ran(command, reply)
        return b"".join(map(_encoded, replies))

    def _run(self, commands: "list[Any]") -> list[Any]:
        self._socket.sendall(b"".join(hiredis.pack_command(tuple(command)) for command in commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._replies.gets()
            if reply is False:
                self._replies.feed(self._socket.recv(1 << 16))
            else:
                replies.append(reply)
        return replies


def _encoded(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case hiredis.ReplyError():
            return b"-%b\r\n" % str(reply).encode()
    return b"*%d\r\n%b" % (len(reply), b"".join(map(_encoded, reply)))


class Link:
    """The way of one process to Redis. `is_up`: new connections stand. `healthy_since`: the time since when nothing was
    held or cut."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.is_up = True
        self.holds_requests = False
        self.holds_replies = False
        self.healthy_since = loop.time()
        self.under_way: list[bytes] = []
        """Commands that cut connections carry: they may arrive yet."""
        self._wires: list[Wire] = []

    @property
    def is_healthy(self) -> bool:
        return self.is_up and not self.holds_requests and not self.holds_replies

    def connect(self, protocol: asyncio.Protocol) -> "Wire":
        if not self.is_up:
            raise ConnectionRefusedError
        wire = Wire(self, protocol)
        self._wires.append(wire)
        return wire

    def cut(self, *, arrives: bool) -> None:
        """Break the connections, and refuse others. `arrives`: what was held is under way."""
        self.is_up = False
        for wire in self._wires:
            if arrives:
                self.under_way += wire.requests
            wire.lose()
        self._wires.clear()

    def deliver(self) -> None:
        """Run what is under way. Nobody hears the answers."""
        for data in self.under_way:
            self.server.run(data)
        self.under_way.clear()

    def heal(self) -> None:
        self.is_up = True
        self.holds_requests = self.holds_replies = False
        self.healthy_since = self.loop.time()
        for wire in self._wires:
            wire.pass_on()


class Wire(asyncio.Transport):
    """One connection, as its client sees it. `requests` and `replies`: what the link holds."""

    def __init__(self, link: Link, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._link = link
        self._protocol = protocol
        self.requests: list[bytes] = []
        self.replies: list[bytes] = []
        self._is_lost = False

    def write(self, data: Any) -> None:
        if not self._is_lost:
            self.requests.append(bytes(data))
            self.pass_on()

    def pass_on(self) -> None:
        if self._link.holds_requests:
            return
        for data in self.requests:
            self.replies.append(self._link.server.run(data))
        self.requests.clear()
        if not self._link.holds_replies:
            for answer in self.replies:
                self._link.loop.call_soon(self._receive, answer)
            self.replies.clear()

    def _receive(self, data: bytes) -> None:
        if not self._is_lost:
            self._protocol.data_received(data)

    def lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._link.loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self._link.under_way += self.requests
        self.lose()

    def close(self) -> None:
        self.abort()

    def is_closing(self) -> bool:
        return self._is_lost


class LinkedLoop(SkippingLoop):
    """Connects unix sockets to the links of their paths."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, Link] = {}

    def time(self) -> float:
        """The loop's time, later at each reading: a timer that comes too early by a rounding error must not again."""
        self._skipping.now_s += TICK_S
        return super().time()

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **_options: Any) -> Any:
        """Connect as asyncio's does."""
        protocol = protocol_factory()
        wire = self.links[str(path)].connect(protocol)
        protocol.connection_made(wire)
        return wire, protocol

    def now(self, work: Any) -> Any:
        """Do something at once, and all that follows from it in this moment."""

        async def all_of_it() -> Any:
            result = await work if asyncio.iscoroutine(work) else work()
            await asyncio.sleep(0.0001)
            return result

        return self.run_until_complete(all_of_it())
