"""The proxy's front door: aiohttp's low-level server, HTTP/1.1 in, one call of the pipeline per request.

Its four traps are answered here: a handler is cancelled when its caller leaves; the body is capped by `receive`, not at
1 MiB; `Expect: 100-continue` is answered when the body is wanted; a disconnect is noticed while reading is paused.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import DEFAULT_CHUNK_SIZE
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.http_exceptions import BadHttpMethod, InvalidHeader, InvalidURLError, LineTooLong
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestPayloadError

from proxy.edges.http.draining import close_when_idle, turn_away
from proxy.edges.http.http_exchange import HttpDate, WireCall, WireOptions
from proxy.edges.http.read_buffer import READ_BYTES, Intake
from proxy.exchange import Incoming, Outgoing
from runtime.http_server import says_http

Handle = Callable[[Incoming, Outgoing], Awaitable[None]]

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LONG_BYTES = 32 << 10
"""What is read of a long body goes past the parser, which would copy it."""
_HEAD_BYTES = 16 << 10
_HEAD_END = b"\r\n\r\n"
_CANCEL_S = 2.0
"""How long calls may take to end once they are cancelled."""
_CLOSE_S = 0.1
_HANDLING = web.RequestHandler._handle_request.__code__


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Limits of the wire. `head_timeout_s`: from a head's first byte to its last.

    While draining: `drain_handshake_s` is how long a connection that is just being made may take to be there,
    `drain_idle_s` how long an idle one may still bring a request, `drain_linger_s` how long its peer has to close
    after us.
    """

    keepalive_timeout_s: float = 75.0
    head_timeout_s: float = 15.0
    lingering_s: float = 5.0
    drain_handshake_s: float = 0.1
    drain_idle_s: float = 1.0
    drain_linger_s: float = 0.5
    max_line_bytes: int = 8190
    max_field_bytes: int = 16_380
    max_headers: int = 128
    watch_interval_s: float = 1.0
    """How often connections whose reading is paused are asked whether their peer is still there."""
    wire: WireOptions = field(default_factory=WireOptions)

    def parser(self, connection: web.RequestHandler) -> HttpRequestParser:
        """One as aiohttp makes for a connection, with these limits."""
        return HttpRequestParser(
            connection,
            asyncio.get_running_loop(),
            DEFAULT_CHUNK_SIZE,
            max_line_size=self.max_line_bytes,
            max_field_size=self.max_field_bytes,
            max_headers=self.max_headers,
            payload_exception=RequestPayloadError,
            auto_decompress=False,
            max_msg_queue_size=MAX_MSG_QUEUE_SIZE,
        )


class Listener:
    """Serves one listening socket."""

    def __init__(self, handle: Handle, options: ListenerOptions | None = None) -> None:
        self._handle = handle
        self._options = options or ListenerOptions()
        self._front: _Front | None = None
        self._sock: socket.socket | None = None
        self.server: asyncio.Server | None = None
        self._watch: asyncio.TimerHandle | None = None

    async def start(self, sock: socket.socket) -> None:
        """Accept on `sock`, which is bound and from here on ours."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(cast(Any, task_unless_handling))
        sock.setblocking(False)
        self._sock = sock
        self._front = _Front(self._handle, self._options)
        self.server = await loop.create_server(self._front, sock=sock, backlog=1024)
        self._watch = loop.call_later(self._options.watch_interval_s, self._look_around)

    def announce_close(self) -> None:
        """From here on each answer ends its connection, and says so where its head is still to be sent."""
        if self._front is not None:
            self._front.draining = True

    async def drain(self, timeout_s: float) -> None:
        """Accept no more, let what is in flight or still arriving end within `timeout_s`, cut the rest. Idempotent."""
        server, front, options = self.server, self._front, self._options
        self.server = None
        if server is None or front is None:
            return
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + timeout_s
        self.announce_close()
        assert self._sock is not None
        if options.drain_handshake_s and turn_away(self._sock):
            await asyncio.sleep(min(options.drain_handshake_s, timeout_s))
        queued = self._take_queue()
        server.close()  # nothing between: where nobody is turned away, who connects meanwhile is reset
        for sock in queued:
            sock.setblocking(False)
            await loop.connect_accepted_socket(front, sock)
        connections = cast("Callable[[], list[_Connection]]", lambda: front.connections)
        await close_when_idle(connections, ends_at, options.drain_idle_s, options.drain_linger_s)
        if self._watch is not None:
            self._watch.cancel()
        for connection in connections():
            if connection.call is not None and connection.transport is not None:
                connection.transport.abort()  # cancels the call, which settles
        await front.idle_within(_CANCEL_S)
        await front.shutdown(timeout=_CLOSE_S)

    def _take_queue(self) -> list[socket.socket]:
        """The connections that wait to be accepted: closing the listener would reset them."""
        assert self._sock is not None
        queued: list[socket.socket] = []
        with contextlib.suppress(OSError):  # BlockingIOError: there are no more; others: there is no descriptor left
            while True:
                queued.append(self._sock.accept()[0])
        return queued

    def _look_around(self) -> None:
        """Once in a while: cut heads that do not come to their end, and find out who left while reading is paused."""
        assert self._front is not None
        loop = asyncio.get_running_loop()
        patience_ends = loop.time() - self._options.head_timeout_s
        for connection in self._front.connections:
            cast(_Connection, connection).look(patience_ends)
        self._watch = loop.call_later(self._options.watch_interval_s, self._look_around)


class _Front(web.Server):
    """The server: makes one `_Connection` per connection and one `WireCall` per request."""

    def __init__(self, handle: Handle, options: ListenerOptions) -> None:
        # A WireCall is all that aiohttp touches of a request and of a response, without being either by type.
        super().__init__(cast(Any, self.serve), request_factory=cast(Any, self._call), handler_cancellation=True)
        self._handle = handle
        self._limits = options
        self._idle: asyncio.Event | None = None  # while somebody waits for it
        self.busy = 0
        self.draining = False
        self.options = options.wire
        self.date = HttpDate()
        self._buffer = memoryview(bytearray(READ_BYTES))

    def __call__(self) -> Any:  # the base class makes a protocol of bytes
        return Intake(_Connection(self, self._limits), self._buffer)

    async def idle_within(self, timeout_s: float) -> None:
        """Returns when nothing is in flight, or when the time is up."""
        if not self.busy:
            return
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return

    def _call(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: "_Connection",
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> WireCall:
        call = WireCall(self, protocol, message, payload, writer)
        protocol.head_since = 0.0  # the head is complete
        protocol.call = call
        if fault := _framing_fault(message, protocol.line):
            call.break_off(fault)
        protocol.line = b""
        if protocol._messages:
            call.is_followed = True
            call.check_body()
        return call

    async def serve(self, call: WireCall) -> WireCall:
        self.busy += 1
        try:
            if call.is_followed:
                await asyncio.sleep(0)  # requests sent all at once take turns with the other connections'
            await self._handle(call, call)
        finally:
            self.busy -= 1
            if self._idle is not None and not self.busy:
                self._idle.set()
        return call


class _Connection(web.RequestHandler):
    """One connection; knows since when a head is incomplete, and makes calls of malformed ones too."""

    __slots__ = ("_body", "_body_left", "_half_closed", "_limits", "call", "head_since", "line")

    def __init__(self, front: _Front, limits: ListenerOptions) -> None:
        super().__init__(
            front,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),
            keepalive_timeout=limits.keepalive_timeout_s,
            lingering_time=limits.lingering_s,
        )
        self._limits = limits
        self._parser = limits.parser(self)
        self._body: StreamReader | None = None  # what goes past the parser
        self._body_left = 0
        self._half_closed = False
        self.head_since = 0.0
        self.line = b""  # what has come of a request line, and of what follows it
        self.call: WireCall | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come that is not answered yet."""
        return self._half_closed or (self.call is None and not self.head_since and not self._messages)

    def half_close(self) -> None:
        """Send FIN and drop what still comes: a peer whose request crosses the FIN meets no reset."""
        if not self._half_closed:
            self._half_closed = True
            self.close()
            if self.transport is not None and not self.transport.is_closing():
                self.transport.write_eof()

    def came(self, data: memoryview) -> None:
        if len(data) > _LONG_BYTES and self._body is None:
            data = self._parse_head(data)
        if self._body is not None:
            data = self._feed(self._body, data)
        if data:
            self.data_received(bytes(data))

    def _parse_head(self, data: memoryview) -> memoryview:
        """What follows a head in `data`; where that is the rest of a body of known length, the parser sees no more."""
        start = bytes(data[:_HEAD_BYTES])
        end = start.find(_HEAD_END) + len(_HEAD_END)
        if end < len(_HEAD_END):
            return data
        self.data_received(start[:end])
        if self._messages and not self._reading_paused:
            message, body = self._messages[-1]
            if isinstance(message, RawRequestMessage) and not message.upgrade and not body.is_eof():
                length = message.headers.get("content-length")
                if length is not None:
                    self._body, self._body_left = body, int(length) - body.total_bytes
        return data[end:]

    def _feed(self, body: StreamReader, data: memoryview) -> memoryview:
        """What follows the body in `data`. The parser would wait for it for ever, so there a new one takes over."""
        if self._close or self._force_close:
            return data[len(data) :]
        part = bytes(data[: self._body_left])
        self._body_left -= len(part)
        body.feed_data(part)
        if not self._body_left:
            self._body = None
            self._parser = self._limits.parser(self)
            body.feed_eof()
        return data[len(part) :]

    def data_received(self, data: bytes) -> None:
        if self.head_since:
            if b"\n" not in self.line.lstrip(b"\r\n"):
                self.line += data
        elif self.call is None and not self._messages:
            self.line = data
        super().data_received(data)
        if self._messages:  # the head is complete; beside a call in flight, one more is
            if self.call is not None:
                self.call.check_body()
        elif self.call is None and not self.head_since:
            self.head_since = self._loop.time()

    def look(self, patience_ends: float) -> None:
        """Cut the connection if its head began before `patience_ends`, or if its peer left while reading is paused."""
        transport = self.transport
        if transport is None:
            return
        if self.head_since and self.head_since < patience_ends:
            transport.write(_TOO_SLOW)
            self.force_close()
        elif not transport.is_reading() and _peer_left(transport):
            transport.abort()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """The base class parses and resumes on every read of a body, also when nothing was ever paused."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[Any, bool]:
        """A WireCall has written its answer already; the base class is needed for declined upgrades only."""
        self.call = None
        if self._upgraded:
            return await super().finish_response(request, resp, start_time)
        return resp, False

    def _make_error_handler(self, err_info: Any) -> Any:
        """A head or chunk that breaks HTTP's rules is a call as well: refused, counted and logged like any other."""
        front = cast(_Front, self._manager)

        async def refuse(call: WireCall) -> WireCall:
            call.break_off(_fault(err_info.exc))
            return await front.serve(call)

        return refuse

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> Any:
        """A bug of ours: the pipeline has answered and logged what could be."""
        raise ConnectionResetError


def task_unless_handling(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> Awaitable[Any]:
    """The loop's task factory. The server wants a task for each request, only to await it: its connection's task, which
    is cancelled with the connection, awaits the request itself, without two more turns of the loop. (From Python 3.12
    on the server starts that task eagerly, which comes to the same, and asks no factory.)
    """
    if getattr(coro, "cr_code", None) is _HANDLING:
        return coro
    return asyncio.Task(coro, loop=loop, **options)


def _framing_fault(message: RawRequestMessage, line: bytes) -> str:
    """What the parser accepts though another one may read it in another way; "" when all is well.

    Codings beside chunked, an empty one, and chunked in HTTP/1.0 are where two parsers disagree (RFC 9112 6.1).
    """
    is_known = message.version == HttpVersion11 or message.version == HttpVersion10
    if not is_known or not says_http(line, message.method, message.path):
        return "the request's version must be HTTP/1.0 or HTTP/1.1"
    coding = message.headers.get("transfer-encoding")
    if coding is None:
        return ""
    plain = coding.strip().lower() == "chunked" and message.version == HttpVersion11
    return "" if plain else "transfer-encoding must be chunked, in HTTP/1.1, or absent"


def _fault(error: BaseException | None) -> str:
    match error:
        case LineTooLong():
            return "the request line or a header field is too long"
        case BadHttpMethod():
            return "the request line has no valid method"
        case InvalidURLError():
            return "the request target is malformed"
        case InvalidHeader():
            return "a header field is malformed"
        case _:
            return "the request breaks a rule of HTTP"


def _peer_left(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed its side, though nobody reads ours."""
    sock = transport.get_extra_info("socket")
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
