"""One HTTP/1.1 connection to an upstream, which carries one exchange at a time.

`client.py` pools connections; httptools parses answers. An exchange needs no task: the consumer of an answer waits on
one future, which the protocol's callbacks wake. Error texts never name a host, an address or a credential.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from time import perf_counter
from typing import Protocol, cast

import httptools

from proxy.edges.upstream.answer import HELD_BYTES, HttpAnswer
from proxy.edges.upstream.request_writer import RequestWriter
from proxy.edges.upstream.status_lines import FINAL, FINAL_BYTES, StatusLines
from proxy.exchange import (
    UpstreamCall,
    UpstreamCutError,
    UpstreamResetError,
    UpstreamTimeoutError,
)
from proxy.http_rules.header_names import HeaderNames

READ_BYTES = 65_536
"""Size of the read buffer that all connections of a client share: each read is parsed before the next one."""
HEAD_BYTES = 65_536
"""Most bytes in a row that are not body: a head, trailers, chunk extensions, interim answers."""
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110 9.2.2


class StaleConnectionError(UpstreamResetError):
    """A kept connection was closed before the request reached the upstream. The request may be sent again."""


class _BrokenHttpError(Exception):
    """The parser accepted the bytes, but they are not an answer to this request."""


class OwningPool(Protocol):
    """The pool of a connection. `release`: the connection is free again. `forget`: it is closed."""

    def release(self, connection: "UpstreamConnection") -> None: ...
    def forget(self, connection: "UpstreamConnection") -> None: ...


class SharedState:
    """What all connections of one client share: the read buffer and the decoded header names."""

    __slots__ = ("buffer", "loop", "names")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.names = HeaderNames()


class UpstreamConnection(asyncio.BufferedProtocol):
    """A connection and the exchange on it. A free connection waits in its pool."""

    __slots__ = (
        "_answer",
        "_awaited",
        "_exchanges",
        "_fields",
        "_interim",
        "_non_body_bytes",
        "_parser",
        "_pieces",
        "_pool",
        "_reading_paused",
        "_received_any",
        "_received_at",
        "_reusable",
        "_shared",
        "_sock",
        "_status_lines",
        "_timer",
        "_timer_at",
        "_writer",
        "freed_at",
        "loop",
        "on_body",
        "on_message_begin",
        "transport",
    )

    def __init__(self, pool: OwningPool, shared: SharedState, sock: socket.socket) -> None:
        self._pool = pool
        self._shared = shared
        self._sock = sock
        self.loop = shared.loop
        self.transport: asyncio.Transport
        self._pieces: list[bytes] = []
        """What the parser found of a body in the read that it is fed."""
        self._awaited: list[None] = []
        """As many entries as answers may begin, so that one without a request fails."""
        # Two of the parser's callbacks, which must cost nothing: methods of the lists, not of ours.
        self.on_body = self._pieces.append
        self.on_message_begin = self._awaited.pop
        self._parser = httptools.HttpResponseParser(self)
        self._status_lines: StatusLines | None = None
        self._answer: HttpAnswer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._exchanges = 0
        self._fields: list[tuple[str, str]] = []
        self._writer: RequestWriter
        self._non_body_bytes = 0
        self._received_any = self._interim = self._reading_paused = False
        self._reusable = True
        self._received_at = 0.0
        self.freed_at = 0.0

    # --- called by the pool -------------------------------------------------------------------------------------------

    def begin(self, answer: HttpAnswer, call: UpstreamCall, head: bytes) -> None:
        """Send a request on a free connection. Once the answer's `waiter` is done, it has a status or a failure.

        `StaleConnectionError` as its failure: the request may be sent again.
        """
        if self.transport.is_closing():  # closed since the pool handed it out: no callback would follow
            answer.exchange = None
            answer.failure = StaleConnectionError("the connection was closed before it was used")
            answer.wake()
            return
        self._answer = answer
        self._exchanges += 1
        self._received_any = self._reusable = False
        self._non_body_bytes = 0
        self._awaited.append(None)
        self._status_lines = None
        silent_at = perf_counter() + call.idle_timeout_s
        until = silent_at if silent_at < call.deadline else call.deadline
        if self._timer is None or self._timer_at > until:  # a timer of an earlier exchange that fires sooner will do
            self._set_timer(until)
        call.written = True
        if call.upload is None:
            self._writer.write(head, call.body)
        else:
            self._writer.upload(head, call.upload, self._fail)

    def drop(self) -> None:
        """Close at once and discard unsent bytes."""
        self._pool.forget(self)
        self._writer.stop()
        self.transport.abort()

    def abandon(self) -> None:
        """The rest of the answer is not wanted: close the connection, unless nothing was sent on it."""
        if self._answer is None and not self.transport.is_closing():
            self._pool.release(self)
            return
        self._answer = None
        self.drop()

    # --- sending ------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport does not inherit from it
        self._writer = RequestWriter(self.loop, self.transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        answer = self._answer
        if answer is None:  # bytes without a request: a 408 before an idle close, or worse
            self.drop()
            return
        had_head, pieces, piece, is_http = answer.status, self._pieces, b"", True
        self._received_at = perf_counter()
        self._non_body_bytes += nbytes
        data = self._shared.buffer[:nbytes]
        try:
            if not had_head:
                if not self._received_any and bytes(data[:FINAL_BYTES]) not in FINAL:
                    self._status_lines = StatusLines()
                if self._status_lines is not None and not self._status_lines.are_http(data):
                    raise _BrokenHttpError("not HTTP/1.0 or HTTP/1.1")
            self._parser.feed_data(data)
        except (_BrokenHttpError, httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_http = self._reusable = False
        self._received_any = True
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            waiter = answer.waiter
            if answer.sink is not None and waiter is not None and not (waiter.done() or answer.complete) and is_http:
                self._non_body_bytes = 0  # nearly every read of a stream: pass it on without a layer between
                try:
                    if not answer.sink(piece):
                        waiter.set_result(False)
                except Exception as error:  # noqa: BLE001  # raised again in `pour`
                    answer.fail_pour(error)
                return
            if answer.method == "HEAD":  # only the parser expects a body there
                piece = b""
            else:
                answer.chunks.append(piece)
                answer.held_bytes += len(piece)
        if answer.complete and not had_head:
            answer.whole = piece
        if not is_http:
            self._break("what the upstream sent is not HTTP")
            return
        if answer.complete:
            self._finish()
        elif piece:
            self._non_body_bytes = 0
            if answer.held_bytes > HELD_BYTES:
                self._pause_receiving()
        elif self._non_body_bytes > HEAD_BYTES:
            self._break("the upstream's head is too large")
            return
        waiter = answer.waiter
        if answer.status and waiter is not None and not waiter.done():
            if answer.sink is None:
                waiter.set_result(True)
            else:
                answer.wake()

    def resume_receiving(self) -> None:
        """Read from the socket again."""
        if self._reading_paused:
            self._reading_paused = False
            self._received_at = perf_counter()  # the idle timeout must not count the time that we paused
            self.transport.resume_reading()

    def _pause_receiving(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def _finish(self) -> None:
        """The answer is complete: release the connection if it can carry another exchange, else close it."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.exchange = None
        if self._reading_paused:
            self.resume_receiving()
        if self._reusable and self._writer.is_free:
            self.freed_at = self._received_at
            self._pool.release(self)
        else:
            self.drop()

    # --- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        known = self._shared.names[name]
        if known == "transfer-encoding" and (value.strip().lower() != b"chunked" or self._has_field(known)):
            raise _BrokenHttpError("a transfer coding other than one `chunked`")
        self._fields.append((known, value.decode("utf-8", "replace")))

    def _has_field(self, known: str) -> bool:
        return any(name == known for name, _ in self._fields)

    def on_headers_complete(self) -> None:
        answer = self._answer
        assert answer is not None
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if 200 <= status <= 599:
            answer.headers = fields
            answer.status = status
            if answer.method == "HEAD":  # the parser would wait for a body of `content-length`
                answer.complete = True
            elif status >= 400 and self._writer.is_sending:
                self._writer.stop()  # the upstream refused: stop sending the body (RFC 9112 9.3)
        elif status in (100, 102, 103):
            self._interim = True
        else:
            raise _BrokenHttpError("a status outside 200 to 599 that is not 100, 102 or 103")

    def on_message_complete(self) -> None:
        answer = self._answer
        if self._interim:
            self._interim = False
            self._awaited.append(None)
        elif answer is not None and not answer.complete:
            answer.complete = True
            self._reusable = self._parser.should_keep_alive()
        self._fields.clear()  # trailers

    # --- ends ---------------------------------------------------------------------------------------------------------

    def eof_received(self) -> None:
        answer = self._answer
        if answer is None:
            self._pool.forget(self)
        elif answer.status and not any(name in ("content-length", "transfer-encoding") for name, _ in answer.headers):
            answer.complete = True
            self._finish()
            answer.wake()
        else:
            self._break("the upstream closed the connection", closed_in_order=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.forget(self)
        if self._answer is not None:
            self._break("the connection to the upstream broke off")
        self._writer.stop()
        del self._parser  # it refers to our bound methods: break the cycle

    def _break(self, text: str, closed_in_order: bool = False) -> None:
        answer = self._answer
        if answer is None:
            self.drop()
        elif answer.complete:
            self._finish()
            answer.wake()
        elif answer.status:
            self._fail(UpstreamCutError(text))
        elif self._exchanges > 1 and not self._received_any and self._may_repeat(answer.method, closed_in_order):
            self._fail(StaleConnectionError(text))
        else:
            self._fail(UpstreamResetError(text))

    def _fail(self, failure: Exception) -> None:
        answer, self._answer = self._answer, None
        self.drop()
        if answer is not None:
            answer.exchange = None
            answer.failure = failure
            answer.wake()

    def _may_repeat(self, method: str, closed_in_order: bool) -> bool:
        """Whether the request may be sent again, given that no byte of an answer arrived.

        RFC 9110 9.2.2: idempotent methods may be repeated; others only by "means to detect that the original request
        was never applied". An orderly close (FIN) acknowledges all bytes that the upstream's kernel had received. If
        every byte of the request is still unacknowledged, none of it had arrived: the upstream closed the idle
        connection while the request was on its way. A reset proves nothing: acknowledgements may lag behind it.
        """
        if method in IDEMPOTENT:
            return True
        if not closed_in_order:
            return False
        unacknowledged = _unacknowledged_bytes(self._sock)
        handed_over = self._writer.written_bytes - self.transport.get_write_buffer_size()
        return unacknowledged is not None and unacknowledged >= handed_over

    # --- time ---------------------------------------------------------------------------------------------------------

    def _set_timer(self, at: float) -> None:
        """Call `_on_timer` at `at` (`perf_counter` seconds)."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(0.0, at - perf_counter()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        answer = self._answer
        if answer is None:
            return
        now = perf_counter()
        if now >= answer.deadline:
            self._fail(UpstreamTimeoutError("the deadline passed"))
        elif not answer.status or self._reading_paused:
            self._set_timer(min(answer.deadline, now + answer.idle_timeout_s))
        elif now >= self._received_at + answer.idle_timeout_s:
            self._fail(UpstreamTimeoutError("the upstream fell silent"))
        else:
            self._set_timer(min(answer.deadline, self._received_at + answer.idle_timeout_s))


def _unacknowledged_bytes(sock: socket.socket) -> int | None:
    """Bytes in the kernel's send queue that the peer has not acknowledged; None where the system does not report it."""
    if sys.platform != "linux" or sock.fileno() < 0:
        return None
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    except OSError:
        return None
    return int(struct.unpack("i", answer)[0])
