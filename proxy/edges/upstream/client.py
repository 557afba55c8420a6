"""The HTTP/1.1 client for upstreams: `HttpUpstream.send` sends one request and returns its answer, head complete.

Pools connections per origin and reach, with a cap per origin, so that a slow upstream cannot starve another. Never
follows redirects. Sends a request twice only if the first copy cannot have been received (RFC 9110 9.2.2, see
`connection.py`). Egress alone decides which address may be dialled.
"""

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from policy.hosts import Reach
from proxy.edges.upstream.answer import HttpAnswer
from proxy.edges.upstream.connection import StaleConnectionError, UpstreamConnection
from proxy.edges.upstream.egress import Egress, Origin
from proxy.edges.upstream.shared_state import SharedState
from proxy.errors import UpstreamTimeoutError, UpstreamUnreachableError
from proxy.records.messages import UpstreamCall
from runtime.exhaustion import NoLocalPortError

_ORIGIN = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods that get no `content-length: 0` (RFC 9110 8.6)."""

KNOWN_ROUTES = 1024
SWEEPS_PER_IDLE_TIME = 11
"""The number of checks of idle connections within `PoolLimits.idle_s`."""
CLOSED_PER_STEP = 64
"""Close idle connections in steps of a millisecond or two, so that a past burst does not delay calls."""
NEXT_STEP_S = 0.05
BURST_CONNECTIONS = 128
"""Closing this many idle connections in a row means that a burst of calls is over."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of pools. `per_origin`: most connections. `idle_s`: below most servers' idle timeout (RFC 9112 9.3)."""

    per_origin: int = 8192
    idle_s: float = 55.0


class HttpUpstream:
    """Implements `UpstreamClient`. One per event loop. Calls `on_burst_end` after closing many idle connections."""

    def __init__(
        self, egress: Egress, limits: PoolLimits | None = None, on_burst_end: Callable[[], object] = lambda: None
    ) -> None:
        self._egress = egress
        self._limits = limits or PoolLimits()
        self._on_burst_end = on_burst_end
        self._closed_in_burst = 0
        self._pools: dict[tuple[str, Reach], _Pool] = {}
        self._routes: dict[str, _Route] = {}
        self._shared: SharedState | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def send(self, call: UpstreamCall) -> HttpAnswer:
        """Send `call` and wait for the head of its answer.

        Raises UpstreamUnreachableError, UpstreamResetError or UpstreamTimeoutError, why `call.record` was refused, or
        the OSError of a process that has run out of descriptors.
        """
        route = self._routes.get(call.url)
        if route is None or route.reach is not call.reach:
            route = self._make_route(call)
        pool = route.pool
        head = _head(route.line, call)
        sent_once_only = call.upload is not None  # an upload cannot be repeated: use no connection that may be stale
        if sent_once_only:
            connection = await pool.take_new(call.deadline)
        else:
            connection = pool.pop() or await pool.take_or_wait(call.deadline)
        while True:
            answer = HttpAnswer(call, connection)
            record = call.record
            if record is None or record.is_written:
                connection.begin(answer, call, head)
            else:  # keep the connection until the journal has the call (docs/hot-path.md)
                record.then(partial(connection.begin, answer, call, head, True))
            assert answer.waiter is not None
            try:  # here, not in a coroutine of the connection's, which would cost two more steps
                await answer.waiter
            except asyncio.CancelledError:
                answer.close()
                raise
            if answer.status or answer.failure is None:
                return answer
            failure = answer.failure
            if sent_once_only or not isinstance(failure, StaleConnectionError):
                raise failure
            connection = await pool.replace_stale(call.deadline)
            sent_once_only = True

    @property
    def is_idle(self) -> bool:
        """True if no connection is open and no end of a burst is left to report."""
        return self._sweep is None

    async def aclose(self) -> None:
        """Close all connections, including those in use."""
        if self._sweep is not None:
            self._sweep.cancel()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        self._routes.clear()
        self._egress.close()
        await asyncio.sleep(0)  # transports close in the loop's next iteration

    def _make_route(self, call: UpstreamCall) -> "_Route":
        """Parse the URL, once while it is in use. Raises `UpstreamUnreachableError` if it is malformed."""
        cut = call.url.find("/", 8)
        base, target = (call.url[:cut], call.url[cut:]) if cut > 0 else (call.url, "/")
        if not target.isascii() or not target.isprintable() or " " in target or "#" in target:
            raise UpstreamUnreachableError("the upstream's URL holds a character that cannot be sent")
        pool = self._pools.get((base, call.reach))
        if pool is None:
            pool = self._pools[(base, call.reach)] = self._make_pool(base, call.reach)
        if len(self._routes) >= KNOWN_ROUTES:
            self._routes.clear()
        line = f"{target} HTTP/1.1\r\nhost: {pool.host}\r\n"
        route = self._routes[call.url] = _Route(pool, call.reach, line)
        return route

    def _make_pool(self, base: str, reach: Reach) -> "_Pool":
        match = _ORIGIN.fullmatch(base)
        if match is None:
            raise UpstreamUnreachableError("the upstream's URL is malformed")
        scheme, v6, name, port = match.groups()
        if self._shared is None:
            self._shared = SharedState(asyncio.get_running_loop())
        if self._sweep is None:
            self._sweep = self._shared.loop.call_later(self._limits.idle_s / SWEEPS_PER_IDLE_TIME, self._sweep_pools)
        origin = Origin(scheme, (v6 or name).lower(), int(port) if port else None, reach)
        return _Pool(origin, self._egress, self._limits, self._shared, self._close_oldest_free)

    def _close_oldest_free(self) -> bool:
        """Close the connection that has been free for the longest time, to whichever origin. False: none is free."""
        free = [oldest for pool in self._pools.values() if (oldest := pool.oldest_free) is not None]
        if free:
            min(free, key=lambda connection: connection.freed_at).drop()
        return bool(free)

    def _sweep_pools(self) -> None:
        """Close connections that were idle for too long and forget empty pools: origins come and go with endpoints."""
        self._sweep = None
        closed = 0
        for key, pool in list(self._pools.items()):
            closed += pool.expire(CLOSED_PER_STEP - closed)
            if pool.is_empty:
                del self._pools[key]
                self._routes.clear()
        self._closed_in_burst += closed
        if not closed:
            if self._closed_in_burst >= BURST_CONNECTIONS:
                self._on_burst_end()
            self._closed_in_burst = 0
        if (self._pools or self._closed_in_burst) and self._shared is not None:
            wait_s = NEXT_STEP_S if closed == CLOSED_PER_STEP else self._limits.idle_s / SWEEPS_PER_IDLE_TIME
            self._sweep = self._shared.loop.call_later(wait_s, self._sweep_pools)


def _head(line: str, call: UpstreamCall) -> bytes:
    """Encode the request's head. Raises `UpstreamUnreachableError`."""
    method = call.method
    request_id = call.request_id
    if not (method.isprintable() and request_id.isprintable()):
        raise UpstreamUnreachableError("the request's method or id cannot be sent")
    upload = call.upload
    length = len(call.body) if upload is None else upload.length
    if length is None:
        framing = "transfer-encoding: chunked\r\n"
    elif length or upload is not None or method not in _BODILESS:
        framing = f"content-length: {length}\r\n"
    else:
        framing = ""
    own = f"x-request-id: {request_id}\r\n" if request_id else ""
    return b"%b%b\r\n" % (f"{method} {line}{own}{framing}".encode(), call.headers.lines)


@dataclass(frozen=True, slots=True)
class _Route:
    """A parsed URL: its pool, and the rest of the request line after the method with the `host` line."""

    pool: "_Pool"
    reach: Reach
    line: str


class _Pool:
    """The connections of one origin. The most recently used one is taken first, so that surplus ones expire."""

    __slots__ = (
        "_close_oldest_free",
        "_egress",
        "_free",
        "_idle_s",
        "_open",
        "_origin",
        "_per_origin",
        "_shared",
        "_slots_in_use",
        "_waiters",
        "host",
    )

    def __init__(
        self,
        origin: Origin,
        egress: Egress,
        limits: PoolLimits,
        shared: SharedState,
        close_oldest_free: Callable[[], bool],
    ) -> None:
        self._origin = origin
        self._egress = egress
        self._close_oldest_free = close_oldest_free
        self._per_origin = limits.per_origin
        self._idle_s = limits.idle_s
        self._shared = shared
        self._free: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._slots_in_use = 0
        self._waiters: deque[asyncio.Future[UpstreamConnection | None]] = deque()
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        self.host = host if origin.port is None else f"{host}:{origin.port}"

    @property
    def is_empty(self) -> bool:
        return not self._slots_in_use and not self._waiters

    @property
    def oldest_free(self) -> UpstreamConnection | None:
        return self._free[0] if self._free else None

    def pop(self) -> UpstreamConnection | None:
        """A free connection that is still usable; None if there is none."""
        while self._free:
            connection = self._free.pop()
            if perf_counter() - connection.freed_at < self._idle_s and not connection.transport.is_closing():
                return connection
            connection.drop()
        return None

    async def take_new(self, deadline: float) -> UpstreamConnection:
        """A connection that was not used before, or at the cap the next one that gets free. Raises an `UpstreamError`.

        It replaces a free one, so that uploads do not pile up idle connections.
        """
        if self._free:
            self._free[0].drop()
        return await self.take_or_wait(deadline)

    async def take_or_wait(self, deadline: float) -> UpstreamConnection:
        """A new connection, or at the cap the next free one. Raises an `UpstreamError`."""
        if self._slots_in_use < self._per_origin:
            self._slots_in_use += 1
            return await self._connect(deadline)
        waiter: asyncio.Future[UpstreamConnection | None] = self._shared.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(max(0.0, deadline - perf_counter())):
                connection = await waiter
        except BaseException as error:
            self._cancel_wait(waiter)
            if isinstance(error, TimeoutError):
                raise UpstreamTimeoutError("the deadline passed while all connections were in use") from None
            raise
        return connection or await self._connect(deadline)

    async def replace_stale(self, deadline: float) -> UpstreamConnection:
        """A new connection in place of a stale one that was just lost; the cap does not apply."""
        self._slots_in_use += 1
        return await self._connect(deadline)

    def release(self, connection: UpstreamConnection) -> None:
        """Give a connection that has finished an exchange to the longest waiting call, or keep it."""
        if self._waiters and (waiter := self._next_waiter()) is not None:
            waiter.set_result(connection)
        else:
            self._free.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """Free the slot of a closed connection. Idempotent."""
        if connection in self._open:
            self._open.remove(connection)
            if connection in self._free:
                self._free.remove(connection)
            self._free_slot()

    def expire(self, most: int) -> int:
        """Close up to `most` connections that were idle for too long, the oldest first. Returns how many."""
        oldest = perf_counter() - self._idle_s
        old = [free for free in self._free[:most] if free.freed_at <= oldest]
        for connection in old:
            connection.drop()
        return len(old)

    def close(self) -> None:
        while (waiter := self._next_waiter()) is not None:
            waiter.cancel()
        for connection in list(self._open):
            connection.drop()

    async def _connect(self, deadline: float) -> UpstreamConnection:
        """Connect in a slot that the caller has already counted."""
        try:
            connection = await self._dial(deadline)
        except BaseException:
            self._free_slot()
            raise
        self._open.add(connection)
        if connection.transport.is_closing():  # closed before this coroutine ran again
            self.forget(connection)
        return connection

    async def _dial(self, deadline: float) -> UpstreamConnection:
        """Connect; where no descriptor is left, in place of a free connection."""
        try:
            return await self._egress.connect(self._origin, self._made, deadline)
        except OSError as error:  # this process, or the machine, has run out of something
            if isinstance(error, NoLocalPortError) or not self._close_oldest_free():
                raise  # a closed connection keeps its port for a minute
        await asyncio.sleep(0)  # transports close in the loop's next iteration
        return await self._egress.connect(self._origin, self._made, deadline)

    def _made(self, sock: socket.socket) -> UpstreamConnection:
        return UpstreamConnection(self, self._shared, sock)

    def _free_slot(self) -> None:
        """Give the slot to the longest waiting call, which then connects, or release it."""
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(None)
        else:
            self._slots_in_use -= 1

    def _next_waiter(self) -> "asyncio.Future[UpstreamConnection | None] | None":
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def _cancel_wait(self, waiter: "asyncio.Future[UpstreamConnection | None]") -> None:
        """End the wait of a call that was cancelled or timed out. Pass on what it may have been granted meanwhile."""
        if not waiter.done() or waiter.cancelled():
            waiter.cancel()
        elif (connection := waiter.result()) is not None:
            self.release(connection)
        else:
            self._free_slot()
