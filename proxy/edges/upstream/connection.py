"""One HTTP/1.1 connection to an upstream: one exchange at a time.

Sits below `client.py`, which pools connections. httptools parses what comes; nothing of ours blocks, and no task is
made for an exchange: the reader of an answer waits on one future, which the protocol's callbacks wake.
Error texts never name a host, an address or a credential.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from time import perf_counter
from typing import Protocol, cast

import httptools

from proxy.edges.upstream.answer import HELD_BYTES, HttpAnswer
from proxy.exchange import (
    UpstreamCall,
    UpstreamCutError,
    UpstreamError,
    UpstreamResetError,
    UpstreamTimeoutError,
)
from proxy.json_text.segmented_body import RequestBody, SegmentedBody

READ_BYTES = 65_536
"""One buffer for all connections of a client: it is parsed, and what is kept copied, before the next is read."""
HEAD_BYTES = 65_536
"""The most that a head, or trailers, or anything else that is no body, may take."""
WRITE_BYTES = 65_536
"""A request up to this size is one buffer and one write."""
WHOLE_BYTES = 1 << 20
"""One up to this size is still one write, of all its parts."""
PIECE_BYTES = 131_072
"""The body of a longer one goes piece by piece as the socket takes it."""
KNOWN_NAMES = 512
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})  # RFC 9110 9.2.2


class StaleConnectionError(UpstreamResetError):
    """A kept connection was closed before the request reached the upstream; it may be sent again on a new one."""


class _BrokenHttpError(Exception):
    """What came is well-formed enough for the parser, but not for us."""


class OwningPool(Protocol):
    """Where a connection belongs: told when it is free again, and when it is no more."""

    def release(self, connection: "UpstreamConnection") -> None: ...
    def forget(self, connection: "UpstreamConnection") -> None: ...


class SharedState:
    """What all connections of one client share: the read buffer, and the header names seen so far, decoded."""

    __slots__ = ("buffer", "loop", "names")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.names: dict[bytes, str] = {}

    def name(self, raw: bytes) -> str:
        """`raw` in lower case. Names repeat from answer to answer; an endless variety of them is not kept."""
        name = raw.decode("latin-1").lower()
        if len(self.names) < KNOWN_NAMES:
            self.names[raw] = name
        return name


class UpstreamConnection(asyncio.BufferedProtocol):
    """A connection and the one exchange on it. Free of exchanges it waits in its home's pool."""

    __slots__ = (
        "_answer",
        "_exchanges",
        "_fields",
        "_given_bytes",
        "_heard",
        "_heard_at",
        "_interim",
        "_parser",
        "_paused",
        "_pool",
        "_reusable",
        "_shared",
        "_silent_bytes",
        "_sock",
        "_stopped_writing",
        "_timer",
        "_timer_at",
        "_truncated",
        "_unsent",
        "freed_at",
        "loop",
        "transport",
    )

    def __init__(self, pool: OwningPool, shared: SharedState, sock: socket.socket) -> None:
        self._pool = pool
        self._shared = shared
        self._sock = sock
        self.loop = shared.loop
        self.transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._answer: HttpAnswer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._exchanges = 0
        self._fields: list[tuple[str, str]] = []
        self._unsent: Iterator[bytes | memoryview] | None = None
        self._given_bytes = 0
        self._silent_bytes = 0
        self._heard = self._interim = self._paused = self._stopped_writing = self._truncated = False
        self._reusable = True
        self._heard_at = 0.0
        self.freed_at = 0.0

    # --- what the pool does with it -----------------------------------------------------------------------------------

    async def exchange(self, call: UpstreamCall, head: bytes) -> HttpAnswer:
        """Send a request and wait for the head of its answer. The connection must be free."""
        if self.transport.is_closing():  # closed since it was handed out: nothing would ever be heard of it
            raise StaleConnectionError("the connection was closed before it was used")
        answer = self._answer = HttpAnswer(call, self)
        self._exchanges += 1
        self._heard = self._reusable = False
        self._silent_bytes = 0
        silent_at = perf_counter() + call.idle_timeout_s
        until = silent_at if silent_at < call.deadline else call.deadline
        if self._timer is None or self._timer_at > until:  # one left from an earlier exchange will do
            self._watch(until)
        body = call.body
        call.written = True
        if isinstance(body, bytes) and len(head) + len(body) <= WRITE_BYTES:
            self._given_bytes = len(head) + len(body)
            self._unsent = None
            self.transport.write(head + body)
        else:
            self._send_long(head, body)
        answer.waiter = waiter = self.loop.create_future()
        try:
            await waiter
        except asyncio.CancelledError:
            answer.close()
            raise
        if not answer.status and answer.failure is not None:
            raise answer.failure
        return answer

    def drop(self) -> None:
        """Close at once; what is still unsent stays so."""
        self._pool.forget(self)
        self.transport.abort()

    def abandon(self) -> None:
        """Nobody wants the rest of the answer."""
        self._answer = None
        self.drop()

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send_long(self, head: bytes, body: RequestBody) -> None:
        if len(body) <= WHOLE_BYTES:
            self._given_bytes = len(head) + len(body)
            self._unsent = None
            self.transport.writelines((head, body) if isinstance(body, bytes) else (head, *body.segments))
            return
        self._given_bytes = len(head)
        self._unsent = (SegmentedBody(body) if isinstance(body, bytes) else body).pieces(PIECE_BYTES)
        self.transport.write(head)
        self._send_more()

    def _send_more(self) -> None:
        """As much of a long body as the transport takes; `resume_writing` comes back for the rest."""
        while self._unsent is not None and not self._stopped_writing and not self.transport.is_closing():
            if piece := next(self._unsent, b""):
                self._given_bytes += len(piece)
                self.transport.write(piece)
            else:
                self._unsent = None

    def pause_writing(self) -> None:
        self._stopped_writing = True

    def resume_writing(self) -> None:
        self._stopped_writing = False
        self._send_more()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by duck-typing only

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        answer = self._answer
        if answer is None:  # nobody asked: a 408 before an idle close, or worse
            self.drop()
            return
        self._heard = True
        self._heard_at = perf_counter()
        held_bytes, self._silent_bytes = answer.held_bytes, self._silent_bytes + nbytes
        data = self._shared.buffer[:nbytes]
        try:
            if not answer.status and not answer.status_lines.are_http(data):
                raise _BrokenHttpError("an answer of a protocol or a version that nobody asked for")
            self._parser.feed_data(data)
        except (_BrokenHttpError, httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reusable = False
            self._break_off("what the upstream sent is not HTTP")
            return
        if answer.complete:
            self._end()
        elif answer.held_bytes > held_bytes:
            self._silent_bytes = 0
            if answer.held_bytes > HELD_BYTES:
                self._deafen()
        elif self._silent_bytes > HEAD_BYTES:
            self._break_off("the upstream's head is too large")
            return
        if answer.status and answer.waiter is not None:
            answer.wake()

    def listen(self) -> None:
        """There is room again for what the upstream has to say."""
        if self._paused:
            self._paused = False
            self._heard_at = perf_counter()  # the silence so far was ours
            self.transport.resume_reading()

    def _deafen(self) -> None:
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _end(self) -> None:
        """The answer is whole: free the connection, if it can carry another exchange."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.exchange = None
        if self._paused:
            self.listen()
        if self._reusable and self._unsent is None and not self._stopped_writing and not self._truncated:
            self.freed_at = self._heard_at
            self._pool.release(self)
        else:
            self.drop()

    # --- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        answer = self._answer
        if answer is None or answer.complete:
            raise _BrokenHttpError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        known = self._shared.names.get(name) or self._shared.name(name)
        if known == "transfer-encoding" and (value.strip().lower() != b"chunked" or self._is_given(known)):
            raise _BrokenHttpError("a transfer coding that nobody asked for")
        self._fields.append((known, value.decode("utf-8", "replace")))

    def _is_given(self, known: str) -> bool:
        return any(name == known for name, _ in self._fields)

    def on_headers_complete(self) -> None:
        answer = self._answer
        assert answer is not None
        status = self._parser.get_status_code()
        fields, self._fields = self._fields, []
        if 200 <= status <= 599:
            answer.headers = fields
            answer.status = status
            if answer.method == "HEAD":  # the parser would wait for the body that content-length speaks of
                answer.complete = True
            elif status >= 400 and self._unsent is not None:
                self._unsent, self._truncated = None, True  # it refuses the body: stop sending it (RFC 9112 9.3)
        elif status in (100, 102, 103):
            self._interim = True
        else:
            raise _BrokenHttpError("a status that does not exist, or one that nobody asked for")

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if answer is not None and not answer.complete:
            answer.chunks.append(body)
            answer.held_bytes += len(body)

    def on_message_complete(self) -> None:
        answer = self._answer
        if self._interim:
            self._interim = False
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
            self._end()
            answer.wake()
        else:
            self._break_off("the upstream closed the connection", in_order=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.forget(self)
        if self._answer is not None:
            self._break_off("the connection to the upstream broke off")
        self._unsent = None
        del self._parser  # it holds our bound methods: a cycle

    def _break_off(self, text: str, in_order: bool = False) -> None:
        answer = self._answer
        if answer is None:
            self.drop()
        elif answer.complete:
            self._end()
            answer.wake()
        elif answer.status:
            self._fail(UpstreamCutError(text))
        elif self._exchanges > 1 and not self._heard and self._may_repeat(answer.method, in_order):
            self._fail(StaleConnectionError(text))
        else:
            self._fail(UpstreamResetError(text))

    def _fail(self, failure: UpstreamError) -> None:
        answer, self._answer = self._answer, None
        self.drop()
        if answer is not None:
            answer.exchange = None
            answer.failure = failure
            answer.wake()

    def _may_repeat(self, method: str, in_order: bool) -> bool:
        """Whether sending the request again cannot make it happen twice, given that no byte of an answer came.

        RFC 9110 9.2.2: idempotent methods may be repeated; others only by "means to detect that the original request
        was never applied". Closing in order (FIN) acknowledges all that the upstream's kernel had received until
        then. If every byte of the request is still unacknowledged, none of it had come: the upstream closed an idle
        connection while the request was on its way. A reset tells nothing: acknowledgements may lag behind it.
        """
        if method in IDEMPOTENT:
            return True
        if not in_order:
            return False
        unacknowledged = _unacknowledged_bytes(self._sock)
        handed_over = self._given_bytes - self.transport.get_write_buffer_size()
        return unacknowledged is not None and unacknowledged >= handed_over

    # --- time ---------------------------------------------------------------------------------------------------------

    def _watch(self, at: float) -> None:
        """See to it that `_on_time` runs at `at`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(0.0, at - perf_counter()), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        answer = self._answer
        if answer is None:
            return
        now = perf_counter()
        if now >= answer.deadline:
            self._fail(UpstreamTimeoutError("the deadline passed"))
        elif not answer.status or self._paused:
            self._watch(min(answer.deadline, now + answer.idle_timeout_s))
        elif now >= self._heard_at + answer.idle_timeout_s:
            self._fail(UpstreamTimeoutError("the upstream fell silent"))
        else:
            self._watch(min(answer.deadline, self._heard_at + answer.idle_timeout_s))


def _unacknowledged_bytes(sock: socket.socket) -> int | None:
    """How much of what the kernel was given to send is not acknowledged by the peer; None where that is not told."""
    if sys.platform != "linux" or sock.fileno() < 0:
        return None
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    except OSError:
        return None
    return int(struct.unpack("i", answer)[0])
