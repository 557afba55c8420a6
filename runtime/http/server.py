"""The HTTP server below the aiohttp applications of both planes: timeouts, a connection limit, and safe error answers.

It serves control's management API and the proxy's admin port. aiohttp alone would wait for a head for ever, and quote
malformed bytes, which may hold an API key, in its answer and its log.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.http.error_answers import FIELDS, error_answer, error_json
from runtime.http.framing import Framing, framing_fault, says_http
from runtime.http.known_callers import KnownCallers
from runtime.http.tls_layer import HANDSHAKE_S, TlsListener
from runtime.log_lines import PacedLog
from runtime.shares.places import Places

_MALFORMED = (HttpProcessingError, web.RequestPayloadError)
_BREAKS_HTTP = "The request breaks a rule of HTTP"
_TOO_MANY = "Too many connections; try again later"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """Limits of one listener. `head_timeout_s`: from a head's first byte to its last.

    A body may pause for `body_idle_s` and must average `body_bytes_per_s` after that. An answer may stay unread for
    `stall_s`. Above `max_connections` the connection is closed that has waited longest for its caller: for a request,
    the rest of one, or a reader. Those of known callers are kept (`keep`). `code_member`: the name of an error's code
    in this API's JSON.
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

    def __init__(
        self, app: web.Application, limits: FrontLimits | None = None, tls: TlsListener | None = None, **options: Any
    ) -> None:
        super().__init__(app, **options)
        self._limits = limits or FrontLimits()
        self._tls = tls
        self._front: _Front | None = None

    async def setup(self) -> None:
        self.app.on_response_prepare.append(_add_fields)
        await super().setup()
        self._front = _Front(cast(web.Server, super().server), self._limits, self._tls)

    async def cleanup(self) -> None:
        await super().cleanup()
        if self._tls is not None:
            self._tls.abort_handshakes()

    @property
    def server(self) -> web.Server | None:
        """The factory that sites create their connections with."""
        return cast("web.Server | None", self._front)


async def _add_fields(_request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(FIELDS)


class _Front:
    """Creates a `_Connection` for each connection, and checks all of them every `look_interval_s`."""

    def __init__(self, server: web.Server, limits: FrontLimits, tls: TlsListener | None = None) -> None:
        self._tls = tls
        if tls is not None:
            tls.allowed_s = self._handshake_s
        self.limits = limits
        self.workspaces = Places(limits.max_connections * 3 // 4, "connections")
        """The rest is for callers that are not known yet, for other parts of the product, and for operators."""
        self.callers = KnownCallers()
        self._log = PacedLog(log)
        self._server = server
        self._handle: Callable[[Any], Awaitable[web.StreamResponse]] = server.request_handler
        self._make_request: Callable[..., web.BaseRequest] = server.request_factory
        server.request_handler = self._serve
        server.request_factory = self._request
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None

    def __call__(self) -> asyncio.BaseProtocol:
        return self._connection() if self._tls is None else self._tls.layer(self._connection)

    def _connection(self) -> "_Connection":
        return _Connection(self, self._server)

    def _handshake_s(self, _transport: asyncio.Transport) -> float:
        """Seconds that a new connection may shake hands; 0 if there is no room for it."""
        return HANDSHAKE_S if self.has_room() else 0.0

    def has_room(self) -> bool:
        """Return whether a connection may open; at the limit, close the one that waited longest for its caller.

        Connections in their handshake count, and those above a quarter make room first.
        """
        connections = self._connections()
        most = self.limits.max_connections
        handshakes = () if self._tls is None else tuple(self._tls.handshakes)
        if len(connections) + len(handshakes) >= most and len(handshakes) > most // 4:
            handshakes[0].abort()
            return True
        most -= len(handshakes)
        if len(connections) < most:
            return True
        open_connections = [one for one in connections if one.transport is not None]
        if len(open_connections) < most:
            return True
        candidates = [one for one in open_connections if one.waits_for_caller]
        if not candidates:
            self._log.warning(
                f"Refused a connection with a 503: {most} are open, and each has a request of a known caller under way."
                " Look for what keeps their answers, or run more processes of this kind."
            )
            return False
        strangers = [one for one in candidates if not one.was_known]
        # Known callers find their idle connections again, unless these leave newcomers less than a quarter.
        longest = min(strangers if len(strangers) > most // 4 else candidates, key=lambda one: one.waiting_since)
        if not longest.is_idle:
            self._log.warning(
                f"Closed the connection that waited longest for its caller, as {most} are open: it had sent a part of a"
                " request, or left its answer unread. If this goes on, limit the connections of each address in front"
                " of this port, or close the port to those who do not need it."
            )
        longest.evict()
        return True

    def watch(self) -> None:
        """Check the connections periodically until none is left."""
        if self._watch is None:
            self._watch = self._loop.call_later(self.limits.look_interval_s, self._look)

    def _look(self) -> None:
        connections = self._connections()
        now = self._loop.time()
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
        fault = framing_fault(request, cast(_Connection, request.protocol).is_http)
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
        "_is_kept",
        "_is_refused",
        "_line",
        "_payload",
        "_read_bytes",
        "_stalled_since",
        "_workspace",
        "head_since",
        "is_http",
        "waiting_since",
        "was_known",
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
        self._framing = Framing()
        self._begun = 0  # requests
        self._begun_at = self._came_at = 0.0
        self._read_bytes = 0
        self._stalled_since = 0.0
        self._line = b""  # the bytes of the request line so far, and those read with it
        self.is_http = True
        self.head_since = 0.0
        self.waiting_since = 0.0
        """The time at which it came so far as it is: opened, began or ended a head, or ended an answer."""
        self._is_kept = False
        self._is_refused = False
        self._workspace: str | None = None
        self.was_known = False
        """True once it has carried a request of a known caller."""

    @property
    def waits_for_caller(self) -> bool:
        """Return whether it waits for a request, the rest of one, or a reader, and is not kept."""
        request = self._in_flight
        is_served = request is not None and request.content.is_eof() and not self._stalled_since
        has_head = self._framing.requests > self._begun  # which the event loop has not come to yet
        return not (self._is_kept or is_served or has_head)

    @property
    def is_idle(self) -> bool:
        """Return whether the next byte begins a request. After an answer an unread body may still be arriving."""
        return self._in_flight is None and not self.head_since and (self._payload is None or self._payload.is_eof())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._front.has_room():
            socket = cast(asyncio.Transport, transport)
            socket.write(error_answer(503, _TOO_MANY, self._front.limits.code_member))
            socket.close()
            return
        super().connection_made(transport)
        self.waiting_since = self._front_time()
        self._front.watch()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            return
        if self.is_idle:
            self.head_since = self.waiting_since = self._front_time()
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
        self.head_since = 0.0
        self._in_flight = request
        self._payload = request.content
        self._begun_at = self._came_at = self.waiting_since = self._front_time()
        self._read_bytes = 0
        self.is_http = says_http(self._line, request.method, request.raw_path)
        self._line = b""
        self._begun += 1
        self._raise_in_body_reader()

    def keep(self, workspace: str | None) -> None:
        """Let the connection stay until its request is answered. Raises `NoPlaceError`; see `keep` below."""
        if self._is_kept or self._in_flight is None:
            return
        self._front.callers.note(self._in_flight.headers, workspace)
        if workspace is not None:
            self._is_refused = True
            self._front.workspaces.acquire(workspace)
            self._is_refused = False
        self._is_kept = self.was_known = True
        self._workspace = workspace

    @property
    def callers(self) -> KnownCallers:
        return self._front.callers

    def recognise(self) -> None:
        """Do as `keep`, if the request's credential was accepted before."""
        owner = None if self._in_flight is None else self._front.callers.knows(self._in_flight.headers)
        if owner is not None:
            self.keep(*owner)

    def _release(self) -> None:
        workspace = self._workspace
        self._is_kept = False
        self._workspace = None
        if workspace is not None:
            self._front.workspaces.leave(workspace)

    def _raise_in_body_reader(self) -> None:
        """Raise in the handler that reads a malformed body: aiohttp's C parser would let it wait."""
        if self._in_flight is not None and self._framing.broken == self._begun:
            body = self._in_flight.content
            if not body.is_eof() and body.exception() is None:
                body.set_exception(web.RequestPayloadError(_BREAKS_HTTP))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if request.content.exception() is not None or self._is_refused:
            resp.force_close()  # where the next request begins is unknown, or its place is for others
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._in_flight = None
            self.waiting_since = self._front_time()
            self._release()

    def look(self, now: float) -> None:
        """Close the connection if its caller takes too long."""
        limits = self._front.limits
        transport = self.transport
        if transport is None:
            return
        if self._stalled_since and now - self._stalled_since > limits.stall_s:
            transport.abort()
        elif (self.head_since and now - self.head_since > limits.head_timeout_s) or self._is_body_late(now):
            self.cut(408, "The request did not arrive in time")

    def _is_body_late(self, now: float) -> bool:
        request = self._in_flight
        limits = self._front.limits
        if request is None or request.content.is_eof():
            return False
        came_bytes = request.content.total_bytes
        if came_bytes != self._read_bytes:
            self._read_bytes = came_bytes
            self._came_at = now
        allowed_s = limits.body_idle_s + came_bytes / limits.body_bytes_per_s
        return now - self._came_at > limits.body_idle_s or now - self._begun_at > allowed_s

    def evict(self) -> None:
        """Close it to make room: with a 503 if a request has begun to arrive."""
        transport = self.transport
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # else its place in the kernel would be held until its reader reads
        elif self.is_idle:
            self.force_close()
        else:
            self.cut(503, _TOO_MANY)

    def cut(self, status: int, message: str) -> None:
        """Send this error, unless an answer has begun, and close."""
        has_begun = self._in_flight is not None and self._in_flight.writer.output_size > 0
        if self.transport is not None and not has_begun:
            self.transport.write(error_answer(status, message, self._front.limits.code_member))
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
            log.info("Refused a malformed request from %s with a 400 (%s).", request.remote, type(exc).__name__)
            self.cut(400, _BREAKS_HTTP)
            return web.Response(status=400)  # as in `_Front._serve`
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionResetError
        self.log_exception("", exc_info=exc)
        text = error_json(status, HTTPStatus(status).phrase, self._front.limits.code_member)
        answer = web.Response(status=status, text=text, content_type="application/json", headers=FIELDS)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **details: Any) -> None:
        """Log the traceback and type; never the text, which may quote the request."""
        error = details.get("exc_info")
        if isinstance(error, _MALFORMED):
            log.info("Refused a malformed request body (%s).", type(error).__name__)
            return
        trace = "".join(traceback.format_tb(error.__traceback__)) if isinstance(error, BaseException) else ""
        log.error("A request failed by a bug (%s). Please report it.\n%s", type(error).__name__, trace)

    def _front_time(self) -> float:
        return asyncio.get_running_loop().time()


def keep(request: web.BaseRequest, workspace: str | None) -> None:
    """Let this request's connection stay until it is answered, whoever else connects.

    Call it once the caller is known: with the workspace, which has a share of the connections, or with None for other
    parts of the product and operators. Raises `NoPlaceError` if the workspace has its share. A server of another kind
    closes nothing, so nothing is kept.
    """
    if isinstance(request.protocol, _Connection):
        request.protocol.keep(workspace)
