"""The HTTP server of a worker: accepts on one listening socket, watches its connections, and drains.

Its four traps are answered here and in `connection.py`: a call is cancelled when its caller leaves; `receive` caps the
body; `Expect: 100-continue` is answered when the body is wanted; a disconnect is noticed while reading is paused.
"""

import asyncio
import contextlib
import socket

from proxy.edges.http.connection import Connection, Handle
from proxy.edges.http.draining import close_when_idle, turn_away
from proxy.edges.http.http_exchange import HttpDate
from proxy.edges.http.limits import HttpLimits
from proxy.http_rules.header_names import HeaderNames

READ_BYTES = 512 << 10
"""One buffer for all connections, so that it stays in the cache: it is parsed before the next one reads."""
_BACKLOG = 1024
_CANCEL_S = 2.0
"""How long calls may take to end once they are cancelled."""


class HttpServer:
    """Serves one listening socket with `handle`."""

    def __init__(self, handle: Handle, limits: HttpLimits | None = None) -> None:
        self.handle = handle
        self.limits = limits or HttpLimits()
        self.exchange_limits = self.limits.exchange
        self.names = HeaderNames()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.date = HttpDate()
        self.draining = False
        self.loop: asyncio.AbstractEventLoop
        self.connections: set[Connection] = set()
        self.accepting: asyncio.Server | None = None
        self._sock: socket.socket | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._serving = 0
        self._idle: asyncio.Event | None = None  # while somebody waits for it

    async def start(self, sock: socket.socket) -> None:
        """Accept on `sock`, which is bound and from here on ours."""
        self.loop = asyncio.get_running_loop()
        sock.setblocking(False)
        # Accepted sockets inherit both: no piece of a stream waits for another; a dead peer is found out in the end.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock = sock
        self.accepting = await self.loop.create_server(self._connection, sock=sock, backlog=_BACKLOG)
        self._watch = self.loop.call_later(self.limits.watch_interval_s, self._check_connections)

    def announce_close(self) -> None:
        """From here on each answer ends its connection, and says so where its head is still to be sent."""
        self.draining = True

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, let what is in flight or still arriving end within `timeout_s`, cut the rest. Idempotent."""
        accepting, limits = self.accepting, self.limits
        self.accepting = None
        if accepting is None:
            return
        ends_at = self.loop.time() + timeout_s
        self.announce_close()
        assert self._sock is not None
        if limits.drain_handshake_s and turn_away(self._sock):
            await asyncio.sleep(min(limits.drain_handshake_s, timeout_s))
        queued = self._take_queue()
        accepting.close()  # nothing between: where nobody is turned away, who connects meanwhile is reset
        for sock in queued:
            sock.setblocking(False)
            await self.loop.connect_accepted_socket(self._connection, sock)
        await close_when_idle(lambda: list(self.connections), ends_at, limits.drain_idle_s, limits.drain_linger_s)
        if self._watch is not None:
            self._watch.cancel()
        await self._cut()

    async def _cut(self) -> None:
        """Abort what is left; calls in flight are cancelled, and settle."""
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._serving:
            self._idle = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    await self._idle.wait()

    def _connection(self) -> Connection:
        return Connection(self)

    def _take_queue(self) -> list[socket.socket]:
        """The connections that wait to be accepted: closing the listener would reset them."""
        assert self._sock is not None
        queued: list[socket.socket] = []
        with contextlib.suppress(OSError):  # BlockingIOError: there are no more; others: there is no descriptor left
            while True:
                queued.append(self._sock.accept()[0])
        return queued

    def _check_connections(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self._watch = self.loop.call_later(self.limits.watch_interval_s, self._check_connections)

    # --- what connections tell ----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def began(self) -> None:
        self._serving += 1

    def ended(self) -> None:
        self._serving -= 1
        if self._idle is not None and not self._serving:
            self._idle.set()
