"""The HTTP server below the aiohttp applications of both planes: timeouts, a connection limit, and safe error answers.

It serves control's management API and the proxy's admin port. aiohttp alone would wait for a head for ever, and quote
malformed bytes, which may hold an API key, in its answer and its log.
"""

import asyncio
import json
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

_MALFORMED = (HttpProcessingError, web.RequestPayloadError)
_BREAKS_HTTP = "The request breaks a rule of HTTP"
FIELDS = {"Server": "tollgate", "X-Content-Type-Options": "nosniff"}
"""Header fields of every answer. aiohttp's `Server` would name its version and Python's."""
_CODES = {400: "INVALID_REQUEST", 408: "REQUEST_TIMEOUT", 503: "TOO_MANY_CONNECTIONS"}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """Limits of one listener. `head_timeout_s`: from a head's first byte to its last.

    A body may pause for `body_idle_s` and must average `body_bytes_per_s` after that. An answer may stay unread for
    `stall_s`. Above `max_connections` the connection that was idle longest is closed; if none is idle, the new one is
    refused. `code_member`: the name of an error's code in this API's JSON.
    """

    head_timeout_s: float = 15.0
    body_idle_s: float = 30.0
    body_bytes_per_s: float = 8192.0
    stall_s: float = 60.0
    idle_s: float = 75.0
    lingering_s: float = 5.0
    max_connections: int = 512
    max_target_bytes: int = 8190
    look_interval_s: float = 1.0
    code_member: str = "code"


class FrontRunner(web.AppRunner):
    """Runs an application on connections that apply `FrontLimits`."""

    def __init__(self, app: web.Application, limits: FrontLimits | None = None, **options: Any) -> None:
        super().__init__(app, **options)
        self._limits = limits or FrontLimits()
        self._front: _Front | None = None

    async def setup(self) -> None:
        self.app.on_response_prepare.append(_add_fields)
        await super().setup()
        self._front = _Front(cast(web.Server, super().server), self._limits)

    @property
    def server(self) -> web.Server | None:
        """The factory that sites create their connections with."""
        return cast("web.Server | None", self._front)


async def _add_fields(_request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(FIELDS)


class _Front:
    """Creates a `_Connection` for each connection, and checks all of them every `look_interval_s`."""

    def __init__(self, server: web.Server, limits: FrontLimits) -> None:
        self.limits = limits
        self._server = server
        self._handle: Callable[[Any], Awaitable[web.StreamResponse]] = server.request_handler
        self._make_request: Callable[..., web.BaseRequest] = server.request_factory
        server.request_handler, server.request_factory = self._serve, self._request
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None

    def __call__(self) -> "_Connection":
        return _Connection(self, self._server)

    def has_room(self) -> bool:
        """Whether one more connection may open; at the limit, close the one that was idle longest."""
        open_connections = [one for one in self._connections() if one.transport is not None]
        if len(open_connections) < self.limits.max_connections:
            return True
        idle = [one for one in open_connections if one.is_idle]
        if idle:
            min(idle, key=lambda one: one.idle_since).force_close()
        return bool(idle)

    def watch(self) -> None:
        """Check the connections periodically until none is left."""
        if self._watch is None:
            self._watch = self._loop.call_later(self.limits.look_interval_s, self._look)

    def _look(self) -> None:
        connections, now = self._connections(), self._loop.time()
        for connection in connections:
            connection.look(now)
        self._watch = None
        if connections:
            self.watch()

    def _connections(self) -> "list[_Connection]":
        return cast("list[_Connection]", self._server.connections)

    def _request(
        self, message: Any, payload: Any, protocol: web.RequestHandler, writer: Any, task: Any
    ) -> web.BaseRequest:
        request = self._make_request(message, payload, protocol, writer, task)
        cast(_Connection, protocol).begins(request)
        return request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        fault = _framing_fault(request)
        if fault:
            cast(_Connection, request.protocol).cut(400, fault)
            return web.Response(status=400)  # aiohttp needs a response; the connection is closed already
        return await self._handle(request)


class _Connection(web.RequestHandler):
    """One connection, and how long it has been waiting for a head, a body or its reader."""

    __slots__ = (
        "_begun",
        "_begun_at",
        "_came_at",
        "_framing",
        "_front",
        "_in_flight",
        "_line",
        "_payload",
        "_read_bytes",
        "_stalled_since",
        "head_since",
        "idle_since",
        "is_http",
    )

    def __init__(self, front: _Front, server: web.Server) -> None:
        limits = front.limits
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),
            keepalive_timeout=limits.idle_s,
            lingering_time=limits.lingering_s,
            max_line_size=limits.max_target_bytes,
            auto_decompress=False,  # a small body could become a huge one
        )
        self._front = front
        self._in_flight: web.BaseRequest | None = None
        self._payload: StreamReader | None = None
        self._framing = _Framing()
        self._begun = 0  # requests
        self._begun_at = self._came_at = 0.0
        self._read_bytes = 0
        self._stalled_since = 0.0
        self._line = b""  # the bytes of the request line so far, and those read with it
        self.is_http = True
        self.head_since = 0.0
        self.idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether the next byte begins a request. After an answer an unread body may still be arriving."""
        return self._in_flight is None and not self.head_since and (self._payload is None or self._payload.is_eof())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._front.has_room():
            log.warning(
                "refused a connection: %d are open, none is idle; the caller gets a 503",
                self._front.limits.max_connections,
            )
            made = cast(asyncio.Transport, transport)
            made.write(self._answer(503, "Too many connections; try again later"))
            made.close()
            return
        super().connection_made(transport)
        self.idle_since = self._front_time()
        self._front.watch()

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            return
        if self.is_idle:
            self.head_since = self._front_time()
            self._line = data
        elif self.head_since and b"\n" not in self._line.lstrip(b"\r\n"):
            self._line += data
        self._framing.read(data)
        super().data_received(data)
        self._raise_in_body_reader()

    def pause_writing(self) -> None:
        self._stalled_since = self._front_time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = 0.0
        super().resume_writing()

    def begins(self, request: web.BaseRequest) -> None:
        """A head is complete or malformed."""
        self.head_since, self._in_flight, self._payload = 0.0, request, request.content
        self._begun_at = self._came_at = self._front_time()
        self._read_bytes = 0
        self.is_http, self._line = says_http(self._line, request.method, request.raw_path), b""
        self._begun += 1
        self._raise_in_body_reader()

    def _raise_in_body_reader(self) -> None:
        """Raise in the handler that reads a malformed body: aiohttp's C parser would let it wait."""
        if self._in_flight is not None and self._framing.broken == self._begun:
            body = self._in_flight.content
            if not body.is_eof() and body.exception() is None:
                body.set_exception(web.RequestPayloadError(_BREAKS_HTTP))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if request.content.exception() is not None:
            resp.force_close()  # where the next request begins is unknown
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._in_flight = None
            self.idle_since = self._front_time()

    def look(self, now: float) -> None:
        """Close the connection if its caller takes too long."""
        limits, transport = self._front.limits, self.transport
        if transport is None:
            return
        if self._stalled_since and now - self._stalled_since > limits.stall_s:
            transport.abort()
        elif (self.head_since and now - self.head_since > limits.head_timeout_s) or self._is_body_late(now):
            self.cut(408, "The request did not arrive in time")

    def _is_body_late(self, now: float) -> bool:
        request, limits = self._in_flight, self._front.limits
        if request is None or request.content.is_eof():
            return False
        came_bytes = request.content.total_bytes
        if came_bytes != self._read_bytes:
            self._read_bytes, self._came_at = came_bytes, now
        allowed_s = limits.body_idle_s + came_bytes / limits.body_bytes_per_s
        return now - self._came_at > limits.body_idle_s or now - self._begun_at > allowed_s

    def cut(self, status: int, message: str) -> None:
        """Send this error, unless an answer has begun, and close."""
        has_begun = self._in_flight is not None and self._in_flight.writer.output_size > 0
        if self.transport is not None and not has_begun:
            self.transport.write(self._answer(status, message))
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer with our JSON and close. `message` is not used; of `exc` the text is never logged."""
        if isinstance(exc, _MALFORMED):
            log.info("malformed request from %s: %s", request.remote, type(exc).__name__)
            self.cut(400, _BREAKS_HTTP)
            return web.Response(status=400)  # as in `_Front._serve`
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionResetError
        self.log_exception("", exc_info=exc)
        text = self._body(status, HTTPStatus(status).phrase)
        answer = web.Response(status=status, text=text, content_type="application/json", headers=FIELDS)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **details: Any) -> None:
        """Log the traceback and type; never the text, which may quote the request."""
        error = details.get("exc_info")
        if isinstance(error, _MALFORMED):
            log.info("malformed request body: %s", type(error).__name__)
            return
        trace = "".join(traceback.format_tb(error.__traceback__)) if isinstance(error, BaseException) else ""
        log.error("the HTTP server failed: %s\n%s", type(error).__name__, trace)

    def _answer(self, status: int, message: str) -> bytes:
        body = self._body(status, message)
        fields = "".join(f"{name}: {value}\r\n" for name, value in FIELDS.items())
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{fields}"
        return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()

    def _body(self, status: int, message: str) -> str:
        return json.dumps({"error": message, self._front.limits.code_member: _CODES.get(status, "INTERNAL_ERROR")})

    def _front_time(self) -> float:
        return asyncio.get_running_loop().time()


class _Framing:
    """Parses a copy of a connection's bytes to find a malformed body at once.

    aiohttp's C parser reports it only when the handler is done, and the handler may wait for the rest of that body.
    Detection stops at a request for an upgrade: httptools expects no body after it, aiohttp does.
    """

    __slots__ = ("_parser", "_place", "broken")

    def __init__(self) -> None:
        self._place = _Place()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self._place)
        self.broken = 0
        """The number of the request with the malformed body, counted from 1; 0 if there is none."""

    def read(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = None
        except httptools.HttpParserError:  # aiohttp reports malformed heads itself
            self._parser = None
            self.broken = self._place.request if self._place.in_body else 0


class _Place:
    """The parser's position: the number of the request, and whether within its body."""

    __slots__ = ("in_body", "request")

    def __init__(self) -> None:
        self.request = 0
        self.in_body = False

    def on_headers_complete(self) -> None:
        self.request += 1
        self.in_body = True

    def on_message_complete(self) -> None:
        self.in_body = False


def says_http(head: bytes, method: str, target: str) -> bool:
    """Whether the request line that `head` begins with names HTTP, or is not this request's.

    The parsers accept `RTSP` and `ICE` as HTTP without a sign. A pipelined request has no `head`, as the offset at
    which it began is unknown.
    """
    if head.startswith(b"HTTP/", len(method) + len(target) + 2):  # nearly always
        return True
    words = [word for word in head.lstrip(b"\r\n").partition(b"\r\n")[0].split(b" ") if word]
    is_this = words[:2] == [method.encode(), target.encode(errors="surrogateescape")]
    return not is_this or all(word.startswith(b"HTTP/") for word in words[2:3])


def _framing_fault(request: web.BaseRequest) -> str:
    """Why a request that the parser accepts is ambiguous to other parsers; "" if it is not (RFC 9112 6.1)."""
    version, codings = tuple(request.version), request.headers.getall("Transfer-Encoding", ())
    if version not in ((1, 0), (1, 1)) or not cast(_Connection, request.protocol).is_http:
        return "The request's version must be HTTP/1.0 or HTTP/1.1"
    plain = [coding.strip().lower() for coding in codings] in ([], ["chunked"]) and (version == (1, 1) or not codings)
    return "" if plain else "Transfer-Encoding must be chunked, in HTTP/1.1, or absent"
