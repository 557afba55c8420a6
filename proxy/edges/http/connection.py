"""One connection of a caller: its HTTP/1.1 requests are answered one after the other, in order.

httptools parses heads and chunked bodies (`request_parser.py`); bodies of known length are counted. One task per
connection passes each request to the pipeline; it is cancelled when the caller disconnects. An answer may be finished
after that, by the journal. Pipelined requests and unread bodies are bounded: above that reading pauses.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from proxy.edges.http.draining import peer_left
from proxy.edges.http.heads_seen import HeadsSeen
from proxy.edges.http.http_exchange import OUTSIDE, TOO_SLOW, AnswerOpenings, HttpExchange
from proxy.edges.http.http_limits import ExchangeLimits, HttpLimits
from proxy.edges.http.read_turns import LONG_BYTES, ReadTurns
from proxy.edges.http.request_head import ParsedHead
from proxy.edges.http.request_parser import RequestParser
from proxy.http_rules.header_names import HeaderNames
from proxy.records.messages import Incoming, Outgoing

Handle = Callable[[Incoming, Outgoing], Awaitable[None]]

MAX_QUEUED = 8
"""Reading and parsing pause at this many waiting requests."""
MAX_UNREAD_BYTES = 131_072
"""Reading pauses above this many bytes of parsed bodies that the pipeline has not read. One recalled may be longer."""
SLICE_BYTES = 16_384
"""Bytes parsed at once, between two checks of `MAX_QUEUED`. Bodies of known length may be longer."""
_HEAD_END = b"\r\n\r\n"
_NOTHING = memoryview(b"")

log = logging.getLogger(__name__)


class Server(Protocol):
    """The part of the server that a connection uses."""

    handle: Handle
    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    exchange_limits: ExchangeLimits
    names: HeaderNames
    buffer: memoryview
    """The read buffer that all connections share: copy what must outlive the current read."""
    read_turns: ReadTurns
    draining: bool
    openings: AnswerOpenings
    heads_seen: HeadsSeen

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection", task: asyncio.Task[None] | None) -> None:
        """Forget a connection. `task`: which served it, if a call is left that settles."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The transport's protocol, and the task that serves its requests."""

    __slots__ = (
        *("_arriving", "_closing_since", "_coming", "_exchange", "_half_closed", "_head_since", "_idle_since"),
        *(
            "_ignoring",
            "_input",
            "_lingering",
            "_loop",
            "_parser",
            "_peer",
            "_queue",
            "_request_came",
            "_rest_bytes",
            "_room",
        ),
        *("reading_paused", "server", "task", "transport", "unread_bytes", "writing_paused"),
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loop = server.loop
        self._parser = RequestParser(self, server.names, server.limits)
        self.transport: asyncio.Transport | None = None
        self.writing_paused = False
        self._room: asyncio.Future[None] | None = None  # set while the answer waits for the caller to read
        self._peer: str | None = None  # asked for by few calls
        self.task: asyncio.Task[None] | None = None
        """Answers the requests. It may outlive the connection, as a cancelled call settles."""
        self._coming: asyncio.Future[None]  # what the task waits for between two requests
        self._request_came: asyncio.Future[None] | None = None  # the same, once the answer before is complete
        self._queue: list[HttpExchange] = []  # at most a few: a deque takes ten times as much memory
        self._exchange: HttpExchange | None = None  # the request being served
        self._arriving: HttpExchange | None = None  # the request whose body is incomplete
        self._input = _NOTHING  # bytes read but not parsed yet
        self._rest_bytes = 0  # what is missing of the body that is arriving, if it is not parsed
        self.unread_bytes = 0  # parsed bodies that the pipeline has not read
        self.reading_paused = False  # reading is paused
        self._ignoring = False  # drop all further bytes
        self._half_closed = False
        self._lingering: asyncio.TimerHandle | None = None
        self._head_since = self._idle_since = self._closing_since = 0.0

    @property
    def peer(self) -> str:
        """The address of the other end; "" if it had gone when it was first asked for."""
        if self._peer is None:
            name = None if self.transport is None else self.transport.get_extra_info("peername")
            self._peer = str(name[0]) if isinstance(name, tuple) else ""
        return self._peer

    # --- for the server -----------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if no request is arriving, waiting or being served."""
        return self._half_closed or (self._exchange is None and not self._head_since and not self._queue)

    def half_close(self) -> None:
        """Send FIN and ignore further bytes, so that a request that crosses the FIN causes no reset."""
        transport = self.transport
        if not self._half_closed and transport is not None and not transport.is_closing():
            self._half_closed = True
            self._ignore_the_rest()
            transport.write_eof()

    def force_close(self) -> None:
        """Close; bytes already written are still sent."""
        self._ignore_the_rest()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once, which cancels the call in flight."""
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float) -> None:
        """Close the connection if a head is late, it is idle too long, or its peer has gone or does not read."""
        transport = self.transport
        limits = self.server.limits
        if transport is None:
            return
        if transport.is_closing():  # once its peer has read what was written
            self._closing_since = self._closing_since or now
            if now - self._closing_since > limits.exchange.stall_s:
                transport.abort()
        elif self._head_since and now - self._head_since > limits.head_timeout_s:
            transport.write(TOO_SLOW)
            self.force_close()
        elif not transport.is_reading() and peer_left(transport):
            transport.abort()
        elif self.is_idle and not self._half_closed and now - self._idle_since > limits.keepalive_timeout_s:
            self.force_close()

    # --- the transport's callbacks ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport lacks the base class
        self._idle_since = self._loop.time()
        self._request_came = self._coming = self._loop.create_future()
        self.task = self._loop.create_task(self._serve())
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._ignore_the_rest()
        if self._lingering is not None:
            self._lingering.cancel()
        task = self.task
        self.task = None  # break the cycle: a cancelled task refers to this connection
        if task is not None:
            task.cancel()
        self.server.closed(self, task if self._exchange is not None else None)
        self._parser.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.server.read_turns.room

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes >= LONG_BYTES:
            self.server.read_turns.long_read(self)
        if self._ignoring:
            return
        parser = self._parser
        request_came = self._request_came
        if request_came is None or parser.in_head or parser.in_body:
            self._parse(self.server.buffer[:nbytes])
            return
        server = self.server
        request = server.heads_seen.recall(server.buffer, nbytes)
        if request is None:
            self._parse_one(server.buffer[:nbytes])
            return
        self._exchange = HttpExchange(self, *request)
        self._request_came = None
        if not request_came.done():  # done: the task was cancelled
            request_came.set_result(None)

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _parse(self, data: memoryview) -> None:
        if self._rest_bytes and not (data := self._take_rest(data)):
            return
        if self._input:
            self._input = memoryview(bytes(self._input) + bytes(data))
        elif len(data) <= SLICE_BYTES and len(self._queue) < MAX_QUEUED:
            self._parser.parse(data)
        elif rest := self._parse_slices(data):
            self._input = memoryview(bytes(rest))
        self._react()

    def _parse_one(self, data: memoryview) -> None:
        """Parse bytes that begin with a request; remember its head if only its body follows."""
        heads = self.server.heads_seen
        queue = self._queue
        request = heads.recall_begun(data)
        if request is not None:
            self._begin(*request)
            return
        self._parse(data)
        if len(queue) == 1 and (queue[0].complete or self._rest_bytes) and not self._parser.in_head:
            heads.remember(data, queue[0].head, queue[0].received_bytes)

    def _begin(self, head: ParsedHead, part: bytes, declared_bytes: int) -> None:
        """Queue a request whose head was seen before; `part` is the beginning of its body."""
        self.head_came(head)
        self._queue[0].declared_bytes = declared_bytes
        self._rest_bytes = declared_bytes - len(part)
        if part:
            self.body_came(part)
        self._react()

    def _parse_slices(self, data: memoryview) -> memoryview:
        """Parse until `MAX_QUEUED` requests wait; returns the unparsed bytes."""
        while data and not self._ignoring and len(self._queue) < MAX_QUEUED:
            size = self._slice_bytes(data)
            self._parser.parse(data[:size])
            data = data[size:]
        return _NOTHING if self._ignoring else data

    def _slice_bytes(self, data: memoryview) -> int:
        """Bytes of `data` to parse at once: to the end of a body of known length, or of a head if it is complete."""
        arriving = self._arriving
        if arriving is None:
            end = bytes(data[:SLICE_BYTES]).find(_HEAD_END)
            return end + len(_HEAD_END) if end >= 0 else SLICE_BYTES
        size = arriving.declared_bytes
        return SLICE_BYTES if size is None else size - arriving.received_bytes

    def _take_rest(self, data: memoryview) -> memoryview:
        """Add the bytes that belong to the arriving body; return those that follow it."""
        part = bytes(data[: self._rest_bytes])
        arriving = self._arriving
        assert arriving is not None
        self._rest_bytes -= len(part)
        self.unread_bytes += len(part)
        arriving.body_came(part)
        if not self._rest_bytes:
            self.body_ended()
        elif self.unread_bytes > MAX_UNREAD_BYTES:
            self._pause_if_full()
        return data[len(part) :]

    def _react(self) -> None:
        """Act on parsed bytes: wake the task, time an unfinished head, pause reading if the bounds are reached."""
        if self._queue:
            request_came = self._request_came
            self._request_came = None
            if request_came is not None and not request_came.done():
                request_came.set_result(None)
        elif self._exchange is None and not self._head_since and self._parser.in_head and not self._ignoring:
            self._head_since = self._loop.time()
        arriving = self._arriving
        parser = self._parser
        if parser.in_body and arriving is not None and arriving.head.is_plain and not self._input:
            self._rest_bytes = (arriving.declared_bytes or 0) - arriving.received_bytes
            parser.skip_body()
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        transport = self.transport
        if self._is_full() and not self.reading_paused and transport is not None and not transport.is_closing():
            self.reading_paused = True
            transport.pause_reading()

    def _is_full(self) -> bool:
        return self.unread_bytes > MAX_UNREAD_BYTES or len(self._queue) >= MAX_QUEUED or bool(self._input)

    def _ignore_the_rest(self) -> None:
        self._ignoring = True
        self._input = _NOTHING
        self._head_since = 0.0

    # --- the parser's events ------------------------------------------------------------------------------------------

    def head_came(self, head: ParsedHead) -> None:
        exchange = HttpExchange(self, head)
        self._head_since = 0.0
        self._queue.append(exchange)
        self._arriving = exchange
        if head.fault:  # where the next request begins is unknown
            exchange.break_off(head.fault)
            self._ignore_the_rest()

    def body_came(self, part: bytes) -> None:
        if self._arriving is not None:
            self.unread_bytes += len(part)
            self._arriving.body_came(part)

    def body_ended(self) -> None:
        if self._arriving is not None:
            self._arriving.body_ended()
            self._arriving = None

    def broke(self, fault: str) -> None:
        """Fail the body that is arriving for malformed bytes, or else refuse them as a request of their own."""
        if self._arriving is None:
            self.head_came(ParsedHead.unreadable(fault))
        elif not self._ignoring:
            self._arriving.body_broke()
            self._ignore_the_rest()

    # --- for the exchange ---------------------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Parse the held bytes, and resume reading in turn if the bounds allow it."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._input:
            self._input = self._parse_slices(self._input)
            self._react()
        if not self._is_full():
            self.reading_paused = False
            self.server.read_turns.join(self)

    def hold(self) -> None:
        """Pause reading until `read_now`."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def read_now(self) -> None:
        """Resume reading, unless the connection is closing or full."""
        transport = self.transport
        if transport is not None and not transport.is_closing() and not self.reading_paused:
            transport.resume_reading()

    async def room(self) -> None:
        if self.writing_paused:
            self._room = self._loop.create_future()
            await self._room

    # --- serving ------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Answer the requests one after the other, until the connection is lost."""
        handle = self.server.handle
        loop = self._loop
        queue = self._queue
        while True:
            await self._coming
            exchange = self._exchange
            if exchange is None:  # it was parsed
                self._exchange = exchange = queue.pop(0)
                if queue:
                    await asyncio.sleep(0)  # let other connections run between pipelined requests
            self._coming = loop.create_future()
            try:
                await handle(exchange, exchange)
            except asyncio.CancelledError:
                self.abort()
                raise
            except Exception:
                log.exception(OUTSIDE)
                exchange.keep_alive = exchange.finishes_later = False
            if not exchange.finishes_later:
                self.ended(exchange)

    def ended(self, exchange: HttpExchange) -> None:
        """End a complete answer: close, or wake the task with the next request."""
        if not exchange.keep_alive:
            self._close_after(exchange)  # the task is cancelled when the connection is lost
            return
        self._exchange = None
        if self.unread_bytes:
            exchange.drop_body()
        if self.reading_paused:
            self.read_on()
        if not self._queue:
            self._request_came = self._coming
            self._idle_since = self._loop.time()
            if self._parser.in_head:
                self._head_since = self._idle_since
        elif not self._coming.done():  # done: the task was cancelled
            self._coming.set_result(None)

    def _close_after(self, exchange: HttpExchange) -> None:
        """Close at once if all bytes received were read. Otherwise send FIN and keep reading for `lingering_s`: closing
        with unread bytes resets the connection, and the caller could lose the answer (RFC 9112 9.6)."""
        self._exchange = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        is_read = exchange.complete and not self._parser.in_head
        if is_read and not self._ignoring and not self._input and not self._queue:
            transport.close()
            return
        self.half_close()
        if self.reading_paused:
            self.reading_paused = False
            self.read_now()
        self._lingering = self._loop.call_later(self.server.limits.lingering_s, transport.close)
