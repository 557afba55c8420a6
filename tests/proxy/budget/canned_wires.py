"""Transports without sockets: a caller that sends one request after another, an upstream and a Redis that answer.

They call the product's protocols as uvloop does, and give each peer's bytes back in the next turn of the loop, so that
eight callers meet in each tick, as they do in a busy worker.
"""

import asyncio
import socket
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, cast

import hiredis
import uvloop

from proxy.edges.redis.scripts import Script
from proxy.edges.upstream.connection import UpstreamConnection
from proxy.edges.upstream.egress import Origin

TakeReply = Callable[[int], bytes]
"""The reply of take.lua that admits that many calls."""
CALL_S = 100e-6
"""The duration of a call by the time of a `CannedLoop`."""
_BEFORE_ESTIMATES = len(("EVALSHA", "script", "1", "key", "layout", "values", "incarnation"))
_COUNTS = slice(6, 8)
"""Position of the numbers of groups and of columns in take.lua's packed values."""
_BEFORE_SPENDING_GROUPS = len(("EVALSHA", "script", "1", "key", "layout", "values"))
_BOUND_BYTES = 18
"""The size of a bound in the packed values of spend's take.lua, behind the number of groups: group, kind, amount."""
_HARD = 2
"""The least kind of a HARD bound."""
_EPOCH = b"0123456789abcdef" * 2 + b"01234567"
_INFO = b"# Replication\r\nrole:master\r\nmaster_replid:%b\r\n" % _EPOCH


class FirstDescriptor:
    """A connection's socket as far as a server looks at it: whether it takes one of the last descriptors."""

    def fileno(self) -> int:
        return 0


class CannedTransport(asyncio.Transport):
    """Hands what the product writes to `on_bytes`. Never full, and open until the end."""

    def __init__(self, on_bytes: Callable[[bytes], None]) -> None:
        super().__init__({"socket": FirstDescriptor()})
        self.on_bytes = on_bytes
        self.peer = "127.0.0.1"

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer, 50_000) if name == "peername" else super().get_extra_info(name, default)

    def write(self, data: Any) -> None:
        self.on_bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.on_bytes(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """A canned request came whole."""

    def resume_reading(self) -> None:
        """Do nothing: no more bytes come before the answer."""

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def abort(self) -> None:
        """Do nothing: no connection is open."""


class CannedCaller:
    """Sends the request again with each complete answer, until `calls` are answered.

    `ending`: how the last write of an answer ends; b"" if each answer is one write.
    """

    def __init__(
        self, buffer: memoryview, connection: asyncio.BufferedProtocol, request: bytes, calls: int, ending: bytes = b""
    ) -> None:
        self._request = request
        self._remainder = calls
        self._ending = ending
        self._buffer = buffer
        self._connection = connection
        self._loop = cast("CannedLoop", asyncio.get_running_loop())
        self.end: asyncio.Future[None] = self._loop.create_future()
        self.answers: list[bytes] = []
        """The first and the last one."""
        self.transport = CannedTransport(self._answered)
        connection.connection_made(self.transport)
        self._loop.call_soon(self._send)

    def _send(self) -> None:
        size = len(self._request)
        self._buffer[:size] = self._request
        self._connection.buffer_updated(size)

    def _answered(self, data: bytes) -> None:
        if not data.endswith(self._ending):
            return
        self._remainder -= 1
        self._loop.call_answered()
        if not self.answers or not self._remainder:
            self.answers.append(data)
        if self._remainder:
            self._loop.call_soon(self._send)
        else:
            self.end.set_result(None)


class CannedEgress:
    """Connects to an upstream that answers each request with the same reads. Stands in for `Egress`."""

    def __init__(self, *reads: bytes) -> None:
        self._reads = reads
        self.latest = b""
        """The latest request."""
        self.connected = 0

    async def connect(
        self, origin: Origin, protocol: Callable[[socket.socket], UpstreamConnection], deadline: float
    ) -> UpstreamConnection:
        """A connection of the product's client on a canned transport."""
        loop = asyncio.get_running_loop()
        reads = self._reads
        self.connected += 1
        with socket.socket() as unused:
            connection = protocol(unused)
        buffer = connection.get_buffer(-1)

        def arrive(number: int = 0) -> None:
            size = len(reads[number])
            buffer[:size] = reads[number]
            if number + 1 < len(reads):
                loop.call_soon(arrive, number + 1)
            connection.buffer_updated(size)

        def sent(data: bytes) -> None:
            self.latest = data
            loop.call_soon(arrive)

        transport = CannedTransport(sent)
        connection.connection_made(transport)
        return connection

    def close(self) -> None:
        """Do nothing: no connection is open."""


class CannedRedis:
    """Admits every take, and confirms every settlement and every end."""

    def __init__(self, protocol: asyncio.Protocol, take: Script, spend_take: Script, take_reply: TakeReply) -> None:
        self._protocol = protocol
        self._take = (take.sha, take.text)
        self._spend_take = (spend_take.sha, spend_take.text)
        self._take_reply = take_reply
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self.takes = self.spend_takes = self.settlements = 0

    def received(self, data: bytes) -> None:
        self._reader.feed(data)
        replies = b""
        while (command := self._reader.gets()) is not False:
            replies += self._reply(command)
        self._loop.call_soon(self._protocol.data_received, replies)

    def _reply(self, command: list[bytes]) -> bytes:
        if command[0] == b"INFO":
            return b"$%d\r\n%b\r\n" % (len(_INFO), _INFO)
        if command[0] not in (b"EVALSHA", b"EVAL"):
            return b"+PONG\r\n"
        if command[1] in self._take:
            groups, columns = command[5][_COUNTS]
            admitted = (len(command) - _BEFORE_ESTIMATES - groups) // (2 * columns)
            self.takes += admitted
            return self._take_reply(admitted)
        if command[1] in self._spend_take:
            return self._spend_reply(command)
        self.settlements += 1
        return b":1\r\n"

    def _spend_reply(self, command: list[bytes]) -> bytes:
        """All calls are admitted, and get the whole of what they ask for."""
        groups, *bounds = command[5]
        others = groups + len(bounds) // _BOUND_BYTES + 1  # names, and what follows the amounts
        admitted = (len(command) - _BEFORE_SPENDING_GROUPS - others) // 2
        self.spend_takes += admitted
        figures = b":%d\r\n:0\r\n:0\r\n" % admitted
        if not any(kind >= _HARD for kind in bounds[1::_BOUND_BYTES]):
            return b"*3\r\n%b" % figures
        grants = b"$0\r\n\r\n" * admitted
        return b"*%d\r\n%b$%d\r\n%b\r\n%b" % (4 + admitted, figures, len(_EPOCH), _EPOCH, grants)


class CannedTimer:
    """A timer of a `CannedLoop`."""

    def __init__(self, at_s: float, callback: Callable[..., object], values: tuple[object, ...]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.values = values
        self._is_cancelled = False

    def cancel(self) -> None:
        """Keep it from expiring."""
        self._is_cancelled = True

    def cancelled(self) -> bool:
        """Return whether the timer was cancelled, so that it will not expire."""
        return self._is_cancelled

    def when(self) -> float:
        """Return the time of the loop at which the timer expires."""
        return self.at_s

    def __lt__(self, other: "CannedTimer") -> bool:
        return self.at_s < other.at_s


class CannedLoop(uvloop.Loop):
    """A loop whose only outgoing connection is to a `CannedRedis`, and whose time is the number of answered calls.

    So as many timers expire on a busy machine, and while something counts, as on an idle one.
    """

    def __init__(self, take: Script, spend_take: Script, take_reply: TakeReply) -> None:
        super().__init__()
        self._take = (take, spend_take, take_reply)
        self._now_s = 0.0
        self._timers: list[CannedTimer] = []
        self.redis: CannedRedis

    def time(self) -> float:
        """Seconds since the loop was made, as if a call took 100 µs."""
        return self._now_s

    def call_later(  # type: ignore[override]  # typeshed's has a TypeVarTuple
        self, delay: float, callback: Callable[..., object], *args: object, context: object = None
    ) -> CannedTimer:
        """Call back when so many seconds' calls are answered."""
        return self.call_at(self._now_s + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: object = None
    ) -> CannedTimer:
        """Call back at this time."""
        timer = CannedTimer(when, callback, args)
        heappush(self._timers, timer)
        return timer

    def call_answered(self) -> None:
        """Let the time of a call pass, and what was to happen in it."""
        self._now_s += CALL_S
        while self._timers and self._timers[0].at_s <= self._now_s:
            timer = heappop(self._timers)
            if not timer.cancelled():
                self.call_soon(timer.callback, *timer.values)

    async def create_connection(self, protocol_factory: Any, *place: Any, **options: Any) -> Any:
        protocol = protocol_factory()
        self.redis = CannedRedis(protocol, *self._take)
        transport = CannedTransport(self.redis.received)
        protocol.connection_made(transport)
        return transport, protocol
