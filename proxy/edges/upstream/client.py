"""Our own HTTP/1.1 client for upstreams: `HttpUpstream.send` puts one call on the wire and returns its answer's head.

Keeps connections per (origin, reach), each origin within its own cap, so that a slow upstream cannot starve another.
Redirects are answers like any other. A request goes out twice only where the first cannot have been received
(`UpstreamConnection._may_repeat`). Egress alone decides what may be dialled.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from policy.hosts import Reach
from proxy.edges.upstream.answer import HttpAnswer
from proxy.edges.upstream.connection import SharedState, StaleConnectionError, UpstreamConnection
from proxy.edges.upstream.egress import Egress, Origin
from proxy.exchange import UpstreamCall, UpstreamTimeoutError, UpstreamUnreachableError

_ORIGIN = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "expect", "te"}
)
"""Header names that are about this connection: the client says them itself, or not at all."""
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


KNOWN_ROUTES = 1024
SWEEPS_PER_IDLE_TIME = 11
"""So many looks at what is idle in the time that a connection may be."""
CLOSED_PER_STEP = 64
"""What a burst has left behind is closed in parts of a millisecond or two, not in one that every caller would feel."""
NEXT_STEP_S = 0.05
BURST_CONNECTIONS = 128
"""A worker that closes so many has had a burst of calls, and it is over."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`per_origin`: connections at once to one origin. `idle_s`: below most servers' own patience (RFC 9112 9.3)."""

    per_origin: int = 4096
    idle_s: float = 55.0


class HttpUpstream:
    """`UpstreamClient` over real sockets. One per event loop. `on_burst_end`: told when many connections have gone."""

    def __init__(
        self, egress: Egress, limits: PoolLimits | None = None, on_burst_end: Callable[[], object] = lambda: None
    ) -> None:
        self._egress = egress
        self._limits = limits or PoolLimits()
        self._on_burst_end = on_burst_end
        self._closed_lately = 0
        self._pools: dict[tuple[str, Reach], _Pool] = {}
        self._routes: dict[str, _Route] = {}
        self._shared: SharedState | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def send(self, call: UpstreamCall) -> HttpAnswer:
        """Send `call`, wait for the head of its answer.

        Raises UpstreamUnreachableError, UpstreamResetError or UpstreamTimeoutError.
        """
        route = self._routes.get(call.url)
        if route is None or route.reach is not call.reach:
            route = self._find(call)
        pool, head = route.pool, _head(call, route.line)
        connection = pool.take() or await pool.take_later(call.deadline)
        try:
            return await connection.exchange(call, head)
        except StaleConnectionError:
            connection = await pool.take_fresh(call.deadline)
            return await connection.exchange(call, head)

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        if self._sweep is not None:
            self._sweep.cancel()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        self._routes.clear()
        self._egress.close()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    def _find(self, call: UpstreamCall) -> "_Route":
        """Take the URL apart, once for as long as it is in use."""
        cut = call.url.find("/", 8)
        base, target = (call.url[:cut], call.url[cut:]) if cut > 0 else (call.url, "/")
        if not target.isascii() or not target.isprintable() or " " in target or "#" in target:
            raise UpstreamUnreachableError("the upstream's URL holds a character that cannot be sent")
        pool = self._pools.get((base, call.reach))
        if pool is None:
            pool = self._pools[(base, call.reach)] = self._make_pool(base, call.reach)
        if len(self._routes) >= KNOWN_ROUTES:
            self._routes.clear()
        route = self._routes[call.url] = _Route(pool, call.reach, f"{target} HTTP/1.1\r\nhost: {pool.host}\r\n")
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
        return _Pool(origin, self._egress, self._limits, self._shared)

    def _sweep_pools(self) -> None:
        """Close what was idle for too long and forget pools that are empty: origins come and go with endpoints."""
        self._sweep = None
        closed = 0
        for key, pool in list(self._pools.items()):
            closed += pool.expire(CLOSED_PER_STEP - closed)
            if pool.is_empty:
                del self._pools[key]
                self._routes.clear()
        self._closed_lately += closed
        if not closed:
            if self._closed_lately >= BURST_CONNECTIONS:
                self._on_burst_end()
            self._closed_lately = 0
        if (self._pools or self._closed_lately) and self._shared is not None:
            wait_s = NEXT_STEP_S if closed == CLOSED_PER_STEP else self._limits.idle_s / SWEEPS_PER_IDLE_TIME
            self._sweep = self._shared.loop.call_later(wait_s, self._sweep_pools)


@dataclass(slots=True)
class _Route:
    """What a URL comes to: a pool, and the request line's end with the `host` line below it."""

    pool: "_Pool"
    reach: Reach
    line: str


class _Pool:
    """The connections of one origin. The most recently used is taken first, so that the others may grow old."""

    __slots__ = (
        "_egress",
        "_free",
        "_idle_s",
        "_open",
        "_origin",
        "_per_origin",
        "_shared",
        "_slots_taken",
        "_waiting",
        "host",
    )

    def __init__(self, origin: Origin, egress: Egress, limits: PoolLimits, shared: SharedState) -> None:
        self._origin = origin
        self._egress = egress
        self._per_origin = limits.per_origin
        self._idle_s = limits.idle_s
        self._shared = shared
        self._free: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._slots_taken = 0
        self._waiting: deque[asyncio.Future[UpstreamConnection | None]] = deque()
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        self.host = host if origin.port is None else f"{host}:{origin.port}"

    @property
    def is_empty(self) -> bool:
        return not self._slots_taken and not self._waiting

    def take(self) -> UpstreamConnection | None:
        """A kept connection that is still good."""
        while self._free:
            connection = self._free.pop()
            if perf_counter() - connection.freed_at < self._idle_s and not connection.transport.is_closing():
                return connection
            connection.drop()
        return None

    async def take_later(self, deadline: float) -> UpstreamConnection:
        """A new connection, or at the cap the next one to become free."""
        if self._slots_taken < self._per_origin:
            self._slots_taken += 1
            return await self._connect(deadline)
        turn: asyncio.Future[UpstreamConnection | None] = self._shared.loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(max(0.0, deadline - perf_counter())):
                connection = await turn
        except BaseException as error:
            self._give_up(turn)
            if isinstance(error, TimeoutError):
                raise UpstreamTimeoutError("the deadline passed while all connections were in use") from None
            raise
        return connection or await self._connect(deadline)

    async def take_fresh(self, deadline: float) -> UpstreamConnection:
        """A new connection even at the cap: in place of the stale one that was just lost."""
        self._slots_taken += 1
        return await self._connect(deadline)

    def release(self, connection: UpstreamConnection) -> None:
        """`connection` has finished an exchange: it goes to whoever waits longest, or back to the pool."""
        turn = self._next_turn() if self._waiting else None
        if turn is not None:
            turn.set_result(connection)
        else:
            self._free.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """`connection` is closing. Idempotent."""
        if connection in self._open:
            self._open.remove(connection)
            if connection in self._free:
                self._free.remove(connection)
            self._free_slot()

    def expire(self, most: int) -> int:
        """Close those that have been idle for too long, the oldest first; how many."""
        oldest = perf_counter() - self._idle_s
        old = [free for free in self._free[:most] if free.freed_at <= oldest]
        for connection in old:
            connection.drop()
        return len(old)

    def close(self) -> None:
        while (turn := self._next_turn()) is not None:
            turn.cancel()
        for connection in list(self._open):
            connection.drop()

    async def _connect(self, deadline: float) -> UpstreamConnection:
        """A new connection on a slot that is already counted."""
        try:
            connection = await self._egress.connect(
                self._origin, lambda sock: UpstreamConnection(self, self._shared, sock), deadline
            )
        except BaseException:
            self._free_slot()
            raise
        self._open.add(connection)
        if connection.transport.is_closing():  # closed again before this coroutine had its turn
            self.forget(connection)
        return connection

    def _free_slot(self) -> None:
        """The slot goes to whoever waits longest, who then connects on it; otherwise it is nobody's."""
        turn = self._next_turn()
        if turn is not None:
            turn.set_result(None)
        else:
            self._slots_taken -= 1

    def _next_turn(self) -> "asyncio.Future[UpstreamConnection | None] | None":
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn
        return None

    def _give_up(self, turn: "asyncio.Future[UpstreamConnection | None]") -> None:
        """Who waited has gone; what it had been given in the meantime goes on to the next."""
        if not turn.done() or turn.cancelled():
            turn.cancel()
        elif (connection := turn.result()) is not None:
            self.release(connection)
        else:
            self._free_slot()


def _head(call: UpstreamCall, line: str) -> bytes:
    """The request's head. What could smuggle a line or a second request into it is refused, whoever let it through."""
    fields = [f"{name}: {value}\r\n" for name, value in call.headers.items() if name.lower() not in _OURS]
    if call.body or call.method not in _BODILESS:
        fields.append(f"content-length: {len(call.body)}\r\n")
    head = f"{call.method} {line}{''.join(fields)}\r\n"
    lines = len(fields) + 3  # the request line, `host`, the empty one
    if not head.count("\n") == lines == head.count("\r") or "\0" in head:
        raise UpstreamUnreachableError("the request's head holds a character that cannot be sent")
    return head.encode("utf-8", "surrogateescape")
