"""One request and its answer on the wire: the stages' `Incoming` and `Outgoing` in one object.

`connection.py` creates it when a head is complete and feeds it the body. A whole answer is one write to the transport,
and so is each piece of a stream. Nothing here interprets a request.
"""

import asyncio
import logging
import re
import socket
import struct
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from time import gmtime, perf_counter, strftime
from typing import Any, Protocol

from proxy.accounting.journaled_call import GoOn, UnwrittenRecord
from proxy.answers import Headers
from proxy.edges.http.http_limits import ExchangeLimits
from proxy.edges.http.request_head import ParsedHead
from proxy.errors import CallerGoneError
from proxy.refusals import MalformedBodyError, MalformedRequestError, SlowBodyError

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_NO_SNIFFING = "x-content-type-options: nosniff\r\n"
"""A browser must not take an upstream's text for a page or a script of the gateway's host."""
TOO_SLOW = f"HTTP/1.1 408 Request Timeout\r\n{_NO_SNIFFING}connection: close\r\ncontent-length: 0\r\n\r\n".encode()
_LAST_WRITE_S = 5.0
_JOINED_BYTES = 65_536
"""Up to this size, joining the parts costs less than writing them separately."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BODILESS = frozenset((204, 304))
_NOT_VISIBLE = re.compile(r"[^\x20-\x7e]")
MAX_REASON_CHARS = 200
OUTSIDE = "Request failed outside the pipeline, which is a bug; closing its connection. Please report it."
"""The pipeline answers and logs its own failures; one that escapes it is logged here."""
MAX_LATER_BYTES = 32_768
"""The most last bytes that leave without waiting for room. With more, the call's task waits for the caller."""
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
log = logging.getLogger(__name__)


class ExchangeConnection(Protocol):
    """The part of the connection that an exchange uses."""

    transport: asyncio.Transport | None
    writing_paused: bool
    unread_bytes: int
    """Parsed bodies that were not read."""
    reading_paused: bool

    @property
    def peer(self) -> str:
        """The address of the other end; "" if it has none, or has gone."""
        ...

    @property
    def server(self) -> "ExchangeServer": ...

    def read_on(self) -> None:
        """Receive more, if the bounds allow it: bytes of a body were read."""
        ...

    async def room(self) -> None:
        """Wait until the transport accepts more bytes."""
        ...

    def ended(self, exchange: "HttpExchange") -> None:
        """Go on to the next request, or close: the answer is complete."""
        ...


class ExchangeServer(Protocol):
    """The part of the server that an exchange uses."""

    draining: bool
    loop: asyncio.AbstractEventLoop
    exchange_limits: ExchangeLimits
    openings: "AnswerOpenings"


class AnswerOpenings(dict[int, str]):
    """The first lines of answers by status: status line and constant fields. Each is kept until `renew`, a second."""

    def __init__(self) -> None:
        super().__init__()
        self.renew()

    def __missing__(self, status: int) -> str:
        opening = self[status] = f"{_STATUS_LINES.get(status) or _unnamed(status)}{self._fields}"
        return opening

    def renew(self) -> None:
        """Set the date field to the present second."""
        self.clear()
        date = strftime("date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime())
        self._fields = f"{date}{_NO_SNIFFING}"

    def with_reason(self, status: int, reason: str) -> str:
        """The first lines of an answer with this reason, which may be any text."""
        return f"{status_line(status, reason)}{self._fields}"


class HttpExchange:
    """`Incoming` and `Outgoing`, from a complete head to the last byte of the answer."""

    __slots__ = (
        "_aborted",
        "_bodiless",
        "_broken",
        "_came_at",
        "_chunked",
        "_connection",
        "_continued",
        "_flows",
        "_parts",
        "_pending",
        "_waiter",
        "_wanted_bytes",
        "body_wait_s",
        "complete",
        "declared_bytes",
        "facts",
        "fault",
        "finishes_later",
        "has_started",
        "head",
        "keep_alive",
        "method",
        "received_at",
        "received_bytes",
        "room_wait_s",
        "sent_bytes",
    )

    def __init__(self, connection: ExchangeConnection, head: ParsedHead, whole: bytes | None = None) -> None:
        """Begin an exchange. `whole`: the body, if it came with a head that was seen before. Else it may follow."""
        # `start` sets `_bodiless`, `_chunked` and `_pending`, unless it sends all of the answer. What only the wait for
        # a body reads is unset if the body is here.
        self._connection = connection
        self.head = head
        self.method = head.method
        self.facts: dict[str, Any] = head.facts
        self.fault: Exception | None = None
        self.received_at = perf_counter()
        self.body_wait_s = self.room_wait_s = 0.0
        self.sent_bytes = 0
        self.keep_alive = self.has_started = self._aborted = self.finishes_later = False
        if whole is None:
            self._parts: list[bytes] = []
            self.declared_bytes = head.declared_bytes
            self.complete = False
            self.received_bytes = 0
            self._broken = self._continued = False
            self._wanted_bytes = 0  # wake the waiter when so many were received
            self._waiter: asyncio.Future[None] | None = None
        else:
            self._parts = [whole]
            self.declared_bytes = size = len(whole)
            self.complete = True  # the whole body was received
            connection.unread_bytes += size

    # --- for the connection -------------------------------------------------------------------------------------------

    def body_came(self, part: bytes) -> None:
        """Add a piece of the body."""
        self.received_bytes += len(part)
        self._parts.append(part)
        self._came_at = perf_counter()
        if self.received_bytes >= self._wanted_bytes:
            self._wake()

    def body_ended(self) -> None:
        self.complete = not self._broken
        self._wake()

    def body_broke(self) -> None:
        """Fail the body: its framing is malformed, and its end unknown."""
        self._broken = True
        self._wake()

    def break_off(self, fault: str) -> None:
        """Refuse a malformed request: its fields are not used, and no request may follow on this connection."""
        self.fault = MalformedRequestError(fault)
        self.method = ""
        self._broken = True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drop_body(self) -> None:
        """Drop the part of the body that was not read."""
        self._connection.unread_bytes -= sum(map(len, self._parts))
        self._parts.clear()

    # --- Incoming -----------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def request_target(self) -> str:
        return self.head.target if self.fault is None else ""

    @property
    def repeats(self) -> bool:
        return self.head.repeats

    @property
    def headers(self) -> Headers:
        return self.head.fields

    def header(self, name: str) -> str | None:
        return self.head.first.get(name)

    def header_values(self, name: str) -> Sequence[str]:
        return self.head.values(name)

    def whole(self) -> bytes | None:
        parts = self._parts
        if not self.complete or len(parts) != 1:
            return None
        connection = self._connection
        body = parts.pop()
        connection.unread_bytes -= len(body)
        if connection.reading_paused:
            connection.read_on()
        return body

    async def read(self, at_least: int = 1) -> bytes:
        if not self.complete:
            if self.fault is not None:
                raise self.fault
            here = sum(map(len, self._parts))
            if here < at_least and not self._broken:
                await self._wait_for_body(at_least - here)
            if self._broken:
                raise MalformedBodyError("the body breaks a rule of its transfer-encoding")
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        size = len(data)
        connection = self._connection
        connection.unread_bytes -= size
        if connection.reading_paused:
            connection.read_on()
        return data

    async def _wait_for_body(self, more: int) -> None:
        """Wait for `more` bytes of the body. Raises `SlowBodyError` if it pauses or trickles in for too long."""
        if not self._continued:
            self._continued = True
            if self.head.modern and (self.header("expect") or "").lower() == "100-continue":
                self._write([_CONTINUE])
        self._came_at = began_at = perf_counter()
        self._wanted_bytes = self.received_bytes + more
        try:
            while not (self.complete or self._broken) and self.received_bytes < self._wanted_bytes:
                await self._wait(self._allowed_s(began_at))
        finally:
            self.body_wait_s += perf_counter() - began_at

    def _allowed_s(self, began_at: float) -> float:
        """Seconds that the next byte may take in a wait since `began_at`. Raises `SlowBodyError` if they are over."""
        limits = self._connection.server.exchange_limits
        now = perf_counter()
        of_all_s = limits.body_idle_s + self.received_bytes / limits.body_bytes_per_s
        allowed_s = min(self._came_at + limits.body_idle_s, began_at + of_all_s - self.body_wait_s) - now
        if allowed_s <= 0:
            raise SlowBodyError
        return allowed_s

    async def _wait(self, most_s: float) -> None:
        loop = self._connection.server.loop
        self._waiter = loop.create_future()
        timer = loop.call_later(most_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            timer.cancel()

    # --- Outgoing -----------------------------------------------------------------------------------------------------

    def start(
        self, status: int, headers: Headers, lines: str = "", reason: str = "", whole: bytes | None = None
    ) -> bool:
        connection = self._connection
        server = connection.server
        text = server.openings.with_reason(status, reason) if reason else server.openings[status]
        for name, value in headers:
            text += f"{name}: {value}\r\n"
        if self.complete and not self.head.closes and not server.draining:
            self.keep_alive = True
        else:
            lines += "connection: close\r\n"
        bodiless = status in _BODILESS or self.method == "HEAD"
        if whole is not None and not bodiless and (size := len(whole)) <= _JOINED_BYTES:
            transport = connection.transport
            if transport is not None and not transport.is_closing():  # nearly every answer that is not a stream
                self.has_started = True
                self.sent_bytes = size
                text = f"{text}{lines}content-length: {size}\r\n\r\n"
                transport.write(text.encode("utf-8", "surrogateescape") + whole)
                return not connection.writing_paused
        self._bodiless = bodiless
        self._chunked = self.head.modern and not bodiless
        self._flows = False  # the head of a chunked answer was sent
        self._pending: str | None = text + lines
        return whole is None or self.finish(whole)

    def write(self, data: bytes) -> bool:
        connection = self._connection
        size = len(data)
        transport = connection.transport
        if self._flows and 0 < size <= _JOINED_BYTES and transport is not None and not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (size, data))
            self.sent_bytes += size
        else:
            self._write_first_or_large(data)
        return not connection.writing_paused

    async def room(self) -> None:
        began_at = perf_counter()
        try:
            async with asyncio.timeout(self._connection.server.exchange_limits.stall_s):
                await self._connection.room()
        except TimeoutError:
            self.keep_alive = False
            if self._connection.transport is not None:
                self._connection.transport.abort()
            raise CallerGoneError from None
        finally:
            self.room_wait_s += perf_counter() - began_at

    def _write_first_or_large(self, data: bytes) -> None:
        framing = "transfer-encoding: chunked\r\n" if self._chunked else ""
        parts = [] if self._pending is None else [self._take_head(framing)]
        if data:
            parts += (b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,)
        self._flows = self._chunked
        self._write(parts, len(data))

    def finish(self, data: bytes = b"") -> bool:
        if self._bodiless:
            framing = f"content-length: {len(data)}\r\n" if self.method == "HEAD" else ""  # the length of GET's answer
            parts = [] if self._pending is None else [self._take_head(framing)]
            data = b""
        elif self._pending is not None:
            parts = [self._take_head(f"content-length: {len(data)}\r\n"), data]
        elif self._chunked:
            parts = [b"%x\r\n" % len(data), data, b"\r\n", _LAST_CHUNK] if data else [_LAST_CHUNK]
        else:
            parts = [data]
        self._write(parts, len(data))
        return not self._connection.writing_paused

    def finish_later(self, record: UnwrittenRecord, finish: GoOn, size: int) -> bool:
        connection = self._connection
        if connection.writing_paused or size > MAX_LATER_BYTES:
            return False
        self.finishes_later = True
        record.then(partial(self._finish, finish))
        return True

    def _finish(self, finish: GoOn, refused: Exception | None) -> None:
        """Finish when the journal calls, after the handler. A failure must not reach other calls of the same write."""
        self.finishes_later = False
        try:
            finish(refused)
            self._connection.ended(self)
        except Exception:
            log.exception(OUTSIDE)
            self.abort()

    def abort(self) -> None:
        """Cut the answer visibly: without a last chunk, after sending what was written, or by a reset in HTTP/1.0."""
        self.keep_alive = False
        transport = self._connection.transport
        if transport is None or self._aborted:
            return
        self._aborted = True
        if self.head.modern:
            if transport.get_write_buffer_size():
                self._connection.server.loop.call_later(_LAST_WRITE_S, transport.abort)
            transport.close()
        else:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()

    def _take_head(self, framing: str) -> bytes:
        """The pending head, completed by its framing field."""
        head = f"{self._pending}{framing}\r\n"
        self._pending = None
        self.has_started = True
        return head.encode("utf-8", "surrogateescape")

    def _write(self, parts: list[bytes], body_bytes: int = 0) -> None:
        """Write these parts. Raises `CallerGoneError`. `body_bytes`: bytes of the body, without framing and head."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            self.keep_alive = False
            raise CallerGoneError
        if body_bytes <= _JOINED_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        self.sent_bytes += body_bytes


def status_line(status: int, reason: str) -> str:
    """The status line with any text as reason. Line breaks become spaces, invisible and non-ASCII characters `?`."""
    text = _NOT_VISIBLE.sub("?", " ".join(reason.split()))[:MAX_REASON_CHARS]
    return f"HTTP/1.1 {status} {text}\r\n"


def _unnamed(status: int) -> str:
    return f"HTTP/1.1 {status} Unknown\r\n"
