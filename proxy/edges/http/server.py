"""The HTTP server of a worker: accepts on one listening socket, watches its connections, and drains.

It and `connection.py` ensure that a call is cancelled when its caller disconnects, also while reading is paused, and
that `100 Continue` is sent only when the pipeline reads the body.
"""

import asyncio
import contextlib
import copy
import socket
from dataclasses import replace

from proxy.edges.http.accepting import Acceptor
from proxy.edges.http.connection import Connection, Handle
from proxy.edges.http.draining import close_when_idle, turn_away
from proxy.edges.http.heads_seen import HeadsSeen
from proxy.edges.http.http_exchange import AnswerOpenings
from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.http.read_turns import ReadTurns
from proxy.http_rules.header_names import HeaderNames
from runtime.background import is_set_within
from runtime.exhaustion import REFUSING_DESCRIPTORS, SPARE_DESCRIPTORS, highest_descriptor
from runtime.http.tls_layer import HANDSHAKE_S, TlsListener

READ_BYTES = 512 << 10
"""Size of the one read buffer. All connections share it, so it stays in the CPU cache."""
KEEP_HEADS_S = 600.0
"""The longest time for which parsed heads are kept, with the credentials in them."""
CROWDED_S = 2.0
"""Seconds that a connection on one of the last file descriptors may be without a request."""
_CANCEL_S = 2.0
"""Seconds that cancelled calls may take to settle."""


class HttpServer:
    """Serves one listening socket with `handle`.

    `refuse` answers the one request of a connection that takes one of the last file descriptors. `tls`: how it speaks
    TLS; None: it speaks plain HTTP.
    """

    def __init__(
        self,
        handle: Handle,
        limits: HttpLimits | None = None,
        refuse: Handle | None = None,
        tls: TlsListener | None = None,
    ) -> None:
        self.handle = handle
        self.limits = limits or HttpLimits()
        self.exchange_limits = self.limits.exchange
        self.names = HeaderNames()
        self.heads_seen = HeadsSeen()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.read_turns = ReadTurns(self.buffer)
        self.openings = AnswerOpenings()
        self.draining = False
        self.loop: asyncio.AbstractEventLoop
        self.connections: set[Connection] = set()
        self.accepting: Acceptor | None = None
        self._sock: socket.socket | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # of lost connections whose calls settle
        self._heads_dropped_at = 0.0
        self._refuse = refuse or handle
        self._tls = tls
        if tls is not None:
            tls.allowed_s = self._handshake_s
        self._crowded: HttpServer
        self._refused: set[Connection] = set()

    async def start(self, sock: socket.socket) -> None:
        """Accept on `sock`, which must be bound; the server owns it from here on."""
        self.loop = asyncio.get_running_loop()
        sock.setblocking(False)
        # Accepted sockets inherit both: TCP_NODELAY sends stream pieces at once, SO_KEEPALIVE detects dead peers.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock = sock
        self.accepting = Acceptor(sock, self._new_protocol)
        self._crowded = self._make_crowded()
        await self.accepting.start()
        self._watch = self.loop.call_later(self.limits.watch_interval_s, self._check_connections)

    def announce_close(self) -> None:
        """End each connection after its present answer, which says `connection: close` if its head is not sent yet."""
        self.draining = True

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, let requests in flight or arriving end within `timeout_s`, abort the rest. Idempotent."""
        accepting = self.accepting
        limits = self.limits
        self.accepting = None
        if accepting is None:
            return
        ends_at = self.loop.time() + timeout_s
        self.announce_close()
        assert self._sock is not None
        if limits.drain_handshake_s and turn_away(self._sock):
            await asyncio.sleep(min(limits.drain_handshake_s, timeout_s))
        queued = self._take_queue()
        accepting.close()  # at once: without a SYN filter, a connection made in between would be reset
        for sock in queued:
            sock.setblocking(False)
            await self.loop.connect_accepted_socket(self._new_protocol, sock)
        if self._tls is not None:  # the requests of connections in their handshake follow
            await is_set_within(self._tls.no_handshakes, min(HANDSHAKE_S, ends_at - self.loop.time()))
        await close_when_idle(lambda: list(self.connections), ends_at, limits.drain_idle_s, limits.drain_linger_s)
        if self._watch is not None:
            self._watch.cancel()
        await self._cut()

    async def _cut(self) -> None:
        """Abort all connections; their calls are cancelled and settle."""
        if self._tls is not None:
            self._tls.abort_handshakes()
        tasks = self._tasks | {connection.task for connection in self.connections if connection.task is not None}
        for connection in list(self.connections):
            connection.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)

    def _make_crowded(self) -> "HttpServer":
        """Copy this server for connections that are answered once and closed. The copy shares all parts."""
        crowded = copy.copy(self)
        crowded.handle = self._refuse
        crowded.draining = True
        crowded.limits = replace(self.limits, keepalive_timeout_s=CROWDED_S, head_timeout_s=CROWDED_S)
        return crowded

    def _refuse_or_pause(self, connection: Connection, descriptor: int) -> None:
        """Refuse a connection that takes one of the last descriptors; accept no more while there are too many."""
        if descriptor <= highest_descriptor(SPARE_DESCRIPTORS + REFUSING_DESCRIPTORS):
            return
        connection.server = self._crowded
        self._refused.add(connection)
        if descriptor > highest_descriptor(SPARE_DESCRIPTORS) and self.accepting is not None:
            self.accepting.pause()

    def _new_protocol(self) -> asyncio.BaseProtocol:
        """The protocol of an accepted connection."""
        return Connection(self) if self._tls is None else self._tls.layer(lambda: Connection(self))

    def _handshake_s(self, transport: asyncio.Transport) -> float:
        """Seconds that a new connection may shake hands: a moment if it takes one of the last descriptors."""
        descriptor = transport.get_extra_info("socket").fileno()
        if descriptor <= highest_descriptor(SPARE_DESCRIPTORS + REFUSING_DESCRIPTORS):
            return HANDSHAKE_S
        if descriptor > highest_descriptor(SPARE_DESCRIPTORS) and self.accepting is not None:
            self.accepting.pause()  # until the next check
        return CROWDED_S

    def _take_queue(self) -> list[socket.socket]:
        """Accept all queued connections, which closing the listener would reset."""
        assert self._sock is not None
        queued: list[socket.socket] = []
        with contextlib.suppress(OSError):  # BlockingIOError: the queue is empty; others: no descriptor is left
            while True:
                queued.append(self._sock.accept()[0])
        return queued

    def _resume(self) -> None:
        if self.accepting is not None:
            self.accepting.resume()

    def _check_connections(self) -> None:
        now = self.loop.time()
        self._resume()
        self.openings.renew()
        for connection in list(self.connections):
            connection.check(now)
        if now - self._heads_dropped_at > KEEP_HEADS_S:
            self._heads_dropped_at = now
            self.heads_seen.drop()
        self._watch = self.loop.call_later(self.limits.watch_interval_s, self._check_connections)

    # --- for the connections ------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        assert connection.transport is not None
        self._refuse_or_pause(connection, connection.transport.get_extra_info("socket").fileno())
        self.connections.add(connection)

    def closed(self, connection: Connection, task: asyncio.Task[None] | None) -> None:
        self.connections.discard(connection)
        if task is not None and not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if connection in self._refused:
            self._refused.remove(connection)
            if not self._refused:
                self._resume()
