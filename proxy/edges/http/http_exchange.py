"""One request and its answer on the wire: the stages' `Incoming` and `Outgoing` in one object, over aiohttp's server.

It is also the "request" that the server hands out and the "response" it gets back, so that no second set of objects is
built per request. Heads are written by hand: one write for a whole answer, one per piece of a stream.
"""

import asyncio
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestPayloadError

from proxy.exchange import CallerGoneError, Headers
from proxy.refusals import MalformedBodyError, MalformedRequestError, SlowBodyError

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_LAST_WRITE_S = 5.0
_JOINED_BYTES = 65_536
"""Up to here one buffer is cheaper to make than several are to write."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BODILESS = frozenset((204, 304))
_NOT_VISIBLE = re.compile(r"[^\x20-\x7e]")
MAX_REASON_CHARS = 200
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class WireOptions:
    """A body may rest for `body_idle_s` and must keep up `body_bytes_per_s` after that; an answer may find no room
    for `stall_s`."""

    body_idle_s: float = 30.0
    body_bytes_per_s: float = 8192.0
    stall_s: float = 300.0


class Connection(Protocol):
    """What a call needs of the connection it came on."""

    transport: asyncio.Transport | None

    @property
    def writing_paused(self) -> bool: ...


class Door(Protocol):
    """What a call needs of the listener."""

    draining: bool
    options: WireOptions

    def date(self) -> str: ...


class HttpDate:
    """The `date` field's value, formatted once per second."""

    def __init__(self) -> None:
        self._second = 0
        self._text = ""

    def __call__(self) -> str:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second))
        return self._text


class WireCall:
    """Made by the listener when a head is complete."""

    __slots__ = (
        "_aborted",
        "_bodiless",
        "_broken",
        "_chunked",
        "_connection",
        "_continued",
        "_door",
        "_headers",
        "_message",
        "_payload",
        "_pending",
        "_task",
        "_writer",
        "body_wait_s",
        "declared_bytes",
        "fault",
        "header",
        "is_followed",
        "keep_alive",
        "method",
        "read_bytes",
        "received_at",
        "room_wait_s",
        "sent_bytes",
        "started",
        "target",
    )

    def __init__(
        self,
        door: Door,
        connection: Connection,
        message: RawRequestMessage,
        payload: StreamReader,
        writer: AbstractStreamWriter,
    ) -> None:
        self._door = door
        self._connection = connection
        self._message = message
        self._payload = payload
        self._writer = writer
        self._task: object = None  # the server drops its reference to the task here when the call is over
        self._headers: Headers | None = None
        self._pending: str | None = None
        self._chunked = False
        self._bodiless = False
        self._aborted = False
        self._broken = False
        self._continued = False
        # Asked a dozen times per call: the bound C method itself.
        self.header: Callable[[str], str | None] = message.headers.get
        length = self.header("content-length")
        self.method: str = message.method
        # The absolute form names the host too, and must be understood (RFC 9112 3.2.2).
        self.target: str = message.path if message.path.startswith("/") else message.url.raw_path_qs
        self.fault: Exception | None = None
        self.received_at = time.perf_counter()
        self.declared_bytes = int(length) if length is not None else None
        self.is_followed = False  # another request came with it
        self.keep_alive = False
        self.started = False
        self.read_bytes = 0
        self.sent_bytes = 0
        self.body_wait_s = 0.0
        self.room_wait_s = 0.0

    # Incoming

    @property
    def headers(self) -> Headers:
        if self._headers is None:
            self._headers = [(name.lower(), value) for name, value in self._message.headers.items()]
        return self._headers

    def header_values(self, name: str) -> Sequence[str]:
        return self._message.headers.getall(name, ())

    async def read(self) -> bytes:
        if self.fault is not None:
            raise self.fault
        if self.read_bytes == self.declared_bytes:
            return b""  # all of it was read, so nothing can be wrong with it any more
        payload, chunked = self._payload, self._message.chunked
        try:
            if payload.total_bytes <= self.read_bytes and not payload.is_eof():
                data = await self._read_late()
            elif chunked:
                data = payload.read_nowait()
            else:  # piece by piece as they came: `receive` joins them, so they are not joined here
                data = (await payload.readchunk())[0]
        except RequestPayloadError:
            raise MalformedBodyError("the body breaks a rule of its transfer-encoding") from None
        self.read_bytes += len(data)
        return data

    async def _read_late(self) -> bytes:
        """The next bytes, which are not here yet; a body that comes by drops does not hold us for ever."""
        if not self._continued:
            self._continued = True
            if (self.header("expect") or "").lower() == "100-continue":
                self._write([_CONTINUE])
        options = self._door.options
        started = time.perf_counter()
        allowed_s = options.body_idle_s + self.read_bytes / options.body_bytes_per_s - self.body_wait_s
        try:
            async with asyncio.timeout(min(options.body_idle_s, allowed_s)):
                return await self._payload.readany()
        except TimeoutError:
            raise SlowBodyError from None
        finally:
            self.body_wait_s += time.perf_counter() - started

    def check_body(self) -> None:
        """The parser has gone on to another message. It does so before a body's end only when the body breaks a rule,
        and then tells nobody."""
        if not self._payload.is_eof():
            self._broken = True
            self._payload.set_exception(RequestPayloadError())
            self._payload.feed_eof()

    def break_off(self, fault: str) -> None:
        """What came is no request: there is nothing to know of it, and nothing may follow it on this connection."""
        self.fault = MalformedRequestError(fault)
        self.method = self.target = ""
        self._broken = True

    # Outgoing

    def start(self, status: int, headers: Headers, lines: str = "", reason: str = "") -> None:
        """The head waits for the first bytes: with them it is one write, and the length may be known."""
        message = self._message
        modern = message.version >= HttpVersion11
        # Another request may follow, but not after a body that nobody read, or nobody understood.
        ends = message.should_close or self._broken or self._door.draining or self.method == "CONNECT"
        self.keep_alive = modern and not ends and self._payload.is_eof()
        line = status_line(status, reason) if reason else _STATUS_LINES.get(status) or _unnamed(status)
        head = f"{line}date: {self._door.date()}\r\n"
        for name, value in headers:
            head += f"{name}: {value}\r\n"
        self._pending = head + lines if self.keep_alive else f"{head}{lines}connection: close\r\n"
        self._bodiless = status in _BODILESS or self.method == "HEAD"
        self._chunked = modern and not self._bodiless

    def write(self, data: bytes) -> bool:
        transport = self._connection.transport
        plain = self._chunked and self._pending is None and 0 < len(data) <= _JOINED_BYTES
        if plain and transport is not None and not transport.is_closing():  # nearly every piece of a stream
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.sent_bytes += len(data)
        else:
            self._write_first_or_large(data)
        return not self._connection.writing_paused

    async def room(self) -> None:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._door.options.stall_s):
                await self._writer.drain()
        except (TimeoutError, ConnectionError):
            if self._connection.transport is not None:
                self._connection.transport.abort()
            raise CallerGoneError from None
        finally:
            self.room_wait_s += time.perf_counter() - started

    def _write_first_or_large(self, data: bytes) -> None:
        parts = [] if self._pending is None else [self._head("transfer-encoding: chunked\r\n" if self._chunked else "")]
        if data:
            parts += (b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,)
        self._write(parts, len(data))

    async def finish(self, data: bytes = b"") -> None:
        if self._bodiless:
            framing = f"content-length: {len(data)}\r\n" if self.method == "HEAD" else ""  # what GET would bring
            parts, data = [] if self._pending is None else [self._head(framing)], b""
        elif self._pending is not None:
            parts = [self._head(f"content-length: {len(data)}\r\n"), data]
        elif self._chunked:
            parts = [b"%x\r\n" % len(data), data, b"\r\n", _LAST_CHUNK] if data else [_LAST_CHUNK]
        else:
            parts = [data]
        self._write(parts, len(data))
        if self._connection.writing_paused:
            await self.room()

    def abort(self) -> None:
        """What was written still goes out, for a while; a missing last chunk, or a reset, shows that it is not all."""
        self.keep_alive = False
        transport = self._connection.transport
        if transport is None or self._aborted:
            return
        self._aborted = True
        if self._chunked:
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(_LAST_WRITE_S, transport.abort)
            transport.close()
        else:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()

    # The server's side

    async def prepare(self, request: object) -> None:
        """The server asks its responses to prepare themselves; this one is through already."""

    async def write_eof(self) -> None:
        """Likewise."""

    def _cancel(self, error: BaseException) -> None:
        """The server tells the request that its connection is gone; the handler is cancelled anyway."""

    def _finish(self) -> None:
        """Likewise, at the end."""

    def _head(self, framing: str) -> bytes:
        """The head that is still to be sent, closed by its framing field."""
        head, self._pending, self.started = f"{self._pending}{framing}\r\n", None, True
        return head.encode("utf-8", "surrogateescape")

    def _write(self, parts: list[bytes], body_bytes: int = 0) -> None:
        """`body_bytes`: how much of it is the answer's body."""
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise CallerGoneError
        if body_bytes <= _JOINED_BYTES:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        self.sent_bytes += body_bytes


def status_line(status: int, reason: str) -> str:
    """`reason` may be anybody's text: what could end the line, or is no visible ASCII, does not get into it."""
    text = _NOT_VISIBLE.sub("?", " ".join(reason.split()))[:MAX_REASON_CHARS]
    return f"HTTP/1.1 {status} {text}\r\n"


def _unnamed(status: int) -> str:
    return f"HTTP/1.1 {status} Unknown\r\n"
