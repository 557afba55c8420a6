"""One connection of a caller: HTTP/1.1 requests in, answered one after the other in the order in which they came.

httptools parses what comes (`request_parser.py`). The connection's one task hands the requests to the pipeline, and is
cancelled when the caller leaves. What comes ahead of its turn is bounded: beyond that the socket is not read.
"""

import asyncio
import logging
import select
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from proxy.edges.http.http_exchange import HttpExchange
from proxy.edges.http.limits import ExchangeLimits, HttpLimits
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.http.request_parser import RequestParser
from proxy.exchange import Incoming, Outgoing
from proxy.http_rules.header_names import HeaderNames

Handle = Callable[[Incoming, Outgoing], Awaitable[None]]

MAX_QUEUED = 8
"""With so many requests waiting for their turn, nothing more is read or parsed."""
MAX_UNREAD_BYTES = 131_072
"""With more than this of bodies unread, nothing more is read."""
SLICE_BYTES = 16_384
"""At most this much is parsed before `MAX_QUEUED` is looked at again, bodies of known length aside."""
_HEAD_END = b"\r\n\r\n"
_NOTHING = memoryview(b"")
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

log = logging.getLogger(__name__)


class Server(Protocol):
    """What a connection needs of its server."""

    handle: Handle
    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    exchange_limits: ExchangeLimits
    names: HeaderNames
    buffer: memoryview
    """Shared by all connections: what was read is parsed, and what is kept copied, before the next read."""
    draining: bool

    def date(self) -> str: ...
    def opened(self, connection: "Connection") -> None: ...
    def closed(self, connection: "Connection") -> None: ...

    def began(self) -> None:
        """One more request is being served."""
        ...

    def ended(self) -> None:
        """It is served, or given up."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The transport's protocol, and the task that serves what it brings."""

    __slots__ = (
        "_arriving",
        "_exchange",
        "_half_closed",
        "_head_since",
        "_held",
        "_idle_since",
        "_ignoring",
        "_lingering",
        "_loop",
        "_parser",
        "_paused",
        "_queue",
        "_request_came",
        "_room",
        "_server",
        "_task",
        "_unread_bytes",
        "transport",
        "writing_paused",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._parser = RequestParser(self, server.names, server.limits)
        self.transport: asyncio.Transport | None = None
        self.writing_paused = False
        self._room: asyncio.Future[None] | None = None  # while the answer waits for the caller to read
        self._task: asyncio.Task[None] | None = None
        self._request_came: asyncio.Future[None] | None = None  # while the task waits for one
        self._queue: deque[HttpExchange] = deque()
        self._exchange: HttpExchange | None = None  # being served
        self._arriving: HttpExchange | None = None  # whose body is still to come
        self._held = _NOTHING  # read, but not parsed yet
        self._unread_bytes = 0  # of bodies
        self._paused = False  # reading
        self._ignoring = False  # whatever still comes
        self._half_closed = False
        self._lingering: asyncio.TimerHandle | None = None
        self._head_since = self._idle_since = 0.0

    # --- what the server does with it ---------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come that is not answered yet."""
        return self._half_closed or (self._exchange is None and not self._head_since and not self._queue)

    def half_close(self) -> None:
        """Send FIN and ignore what still comes: a peer whose request crosses the FIN meets no reset."""
        transport = self.transport
        if not self._half_closed and transport is not None and not transport.is_closing():
            self._half_closed = True
            self._ignore_the_rest()
            transport.write_eof()

    def force_close(self) -> None:
        """Close now; what was written still leaves."""
        self._ignore_the_rest()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once, which cancels the call in flight."""
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """Close the connection if a head is late, if it was idle for too long, or if its peer left unnoticed."""
        transport, limits = self.transport, self._server.limits
        if transport is None or transport.is_closing():
            return
        if self._head_since and now - self._head_since > limits.head_timeout_s:
            transport.write(_TOO_SLOW)
            self.force_close()
        elif not transport.is_reading() and _peer_left(transport):
            transport.abort()
        elif self.is_idle and not self._half_closed and now - self._idle_since > limits.keepalive_timeout_s:
            self.force_close()

    # --- the transport's callbacks ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by duck-typing only
        self._idle_since = self._loop.time()
        self._server.opened(self)
        self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._ignore_the_rest()
        self._server.closed(self)
        if self._lingering is not None:
            self._lingering.cancel()
        task, self._task = self._task, None  # a cancelled task holds its traceback, and that holds this connection
        if task is not None:
            task.cancel()
        self._parser.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ignoring:
            return
        data = self._server.buffer[:nbytes]
        if self._held:
            self._held = memoryview(bytes(self._held) + bytes(data))
        elif nbytes <= SLICE_BYTES and len(self._queue) < MAX_QUEUED:
            self._parser.parse(data)
        elif rest := self._parse_slices(data):
            self._held = memoryview(bytes(rest))
        self._react()

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _parse_slices(self, data: memoryview) -> memoryview:
        """Parse as many requests as may wait; returns what is left."""
        while data and not self._ignoring and len(self._queue) < MAX_QUEUED:
            size = self._slice_bytes(data)
            self._parser.parse(data[:size])
            data = data[size:]
        return _NOTHING if self._ignoring else data

    def _slice_bytes(self, data: memoryview) -> int:
        """How much of `data` to parse at once: to the end of a body of known length, or of a head if that is here."""
        arriving = self._arriving
        if arriving is None:
            end = bytes(data[:SLICE_BYTES]).find(_HEAD_END)
            return end + len(_HEAD_END) if end >= 0 else SLICE_BYTES
        if arriving.declared_bytes is None:
            return SLICE_BYTES
        return arriving.declared_bytes - arriving.received_bytes

    def _react(self) -> None:
        """Something was parsed: wake the task, watch over a head that has begun, read no more than is wanted."""
        if self._queue:
            if self._request_came is not None and not self._request_came.done():
                self._request_came.set_result(None)
        elif self._exchange is None and not self._head_since and not self._ignoring:
            self._head_since = self._loop.time()
        if self._is_full() and not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def _is_full(self) -> bool:
        return self._unread_bytes > MAX_UNREAD_BYTES or len(self._queue) >= MAX_QUEUED or bool(self._held)

    def _read_on(self) -> None:
        """Reading is paused, but there may be room again."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._held:
            self._held = self._parse_slices(self._held)
            self._react()
        if not self._is_full():
            self._paused = False
            transport.resume_reading()

    def _ignore_the_rest(self) -> None:
        self._ignoring = True
        self._held = _NOTHING
        self._head_since = 0.0

    # --- what the parser tells ----------------------------------------------------------------------------------------

    def head_came(self, head: ParsedHead) -> None:
        exchange = HttpExchange(self._server, self, head)
        self._queue.append(exchange)
        self._arriving = exchange
        if head.fault:  # nothing that follows can be told apart
            exchange.break_off(head.fault)
            self._ignore_the_rest()

    def body_came(self, part: bytes) -> None:
        if self._arriving is not None:
            self._unread_bytes += len(part)
            self._arriving.body_came(part)

    def body_ended(self) -> None:
        if self._arriving is not None:
            self._arriving.body_ended()
            self._arriving = None

    def broke(self, fault: str) -> None:
        """What came is not HTTP: it breaks the body that is arriving, or is refused as a request of its own."""
        if self._arriving is None:
            self.head_came(ParsedHead.unreadable(fault))
        elif not self._ignoring:
            self._arriving.body_broke()
            self._ignore_the_rest()

    # --- what the exchange needs --------------------------------------------------------------------------------------

    def body_read(self, size: int) -> None:
        self._unread_bytes -= size
        if self._paused:
            self._read_on()

    async def room(self) -> None:
        if self.writing_paused:
            self._room = self._loop.create_future()
            await self._room

    # --- serving ------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Answer the requests one after the other, until one ends the connection."""
        queue = self._queue
        while True:
            if self._paused:
                self._read_on()
            if not queue:
                self._request_came = self._loop.create_future()
                await self._request_came
            self._exchange = exchange = queue.popleft()
            self._head_since = 0.0
            if queue:
                await asyncio.sleep(0)  # requests sent all at once take turns with the other connections'
            self._server.began()
            try:
                await self._server.handle(exchange, exchange)
            except asyncio.CancelledError:
                self.abort()
                raise
            except Exception:
                # The pipeline answers for whatever goes wrong in it. What it lets through, nobody else would log.
                log.exception("Request failed outside of the pipeline, which is a bug; closing its connection.")
                break
            finally:
                self._server.ended()
                self._unread_bytes -= exchange.received_bytes - exchange.read_bytes
            if not exchange.keep_alive:
                break
            self._wait_for_another()
        self._close_after(exchange)

    def _wait_for_another(self) -> None:
        self._exchange = None
        self._idle_since = self._loop.time()
        if self._parser.in_head and not self._queue:
            self._head_since = self._idle_since

    def _close_after(self, exchange: HttpExchange) -> None:
        """Close at once if all that came was read. Otherwise send FIN first and read on for a while: closing with
        bytes unread resets the connection, and the answer could be lost (RFC 9112 9.6)."""
        transport = self.transport
        self._exchange = None
        if transport is None or transport.is_closing():
            return
        if exchange.complete and not self._ignoring and not self._held and not self._queue:
            transport.close()
            return
        self.half_close()
        if self._paused:
            transport.resume_reading()
        self._lingering = self._loop.call_later(self._server.limits.lingering_s, transport.close)


def _peer_left(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed its side, though nobody reads ours."""
    sock = transport.get_extra_info("socket")
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
