"""A pipelined Redis client: the commands of one tick of the event loop leave in one write.

Every command is answered or failed within its deadline, also while there is no connection. Several failures in a row
open a circuit breaker: commands then fail at once until Redis has answered everything or a new connection stands.
One server only, whichever its `RedisServer` opens a connection to.

See docs/reference/limits.md#redis-client.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.edges.redis.nodes.connection import NEVER, AwaitedCommand, RedisCommand, RedisConnection, encode
from proxy.edges.redis.nodes.dialing import LoginRefusedError
from runtime.backoff import jittered_s
from runtime.log_lines import cause_of

_log = logging.getLogger(__name__)
_SOCKETS_READ_S = 0.001
"""The shortest delay after which an event loop has read its sockets. A delay of 0 may run before that."""


@dataclass(frozen=True, slots=True)
class RedisClientOptions:
    """`stall_s`: a connection that owes a reply for this long is closed. The back-off between connects doubles from min
    to max, with jitter."""

    deadline_s: float = 0.05
    failures_to_open: int = 5
    connect_timeout_s: float = 1.0
    stall_s: float = 1.0
    backoff_min_s: float = 0.02
    backoff_max_s: float = 0.5


class RedisServer(Protocol):
    """The server of a client. `name`: in log lines, at the beginning of a sentence."""

    name: str

    async def open(self, on_idle: Callable[[], None]) -> RedisConnection:
        """A connection that is logged in. `on_idle`: see `RedisConnection`. Raises OSError and `LoginRefusedError`."""


class RedisClient:
    """The client of one server. Its user adds commands with `enqueue`, or in a `before_flush` hook."""

    def __init__(self, server: RedisServer, options: RedisClientOptions = RedisClientOptions()) -> None:
        self._server = server
        self._options = options
        self._before_flush: Callable[[], None] | None = None
        self._on_recovered: Callable[[], None] | None = None
        self._on_trouble: Callable[[], None] | None = None
        self._queue: list[RedisCommand] = []
        self._connection: RedisConnection | None = None
        self.connections = 0
        """The number of connections that stood so far: replies come from the last one."""
        self._flush_scheduled = False
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._breaker_open = False
        self._connect_task: asyncio.Task[None] | None = None
        self._logged_error = ""

    def hook(
        self,
        before_flush: Callable[[], None] | None = None,
        on_recovered: Callable[[], None] | None = None,
        on_trouble: Callable[[], None] | None = None,
    ) -> None:
        """`before_flush`: called once per flush, to enqueue more. `on_recovered`: Redis answers again after a loss; it
        may be another server, or have lost data. `on_trouble`: there is no connection, or the breaker has opened."""
        self._before_flush = before_flush
        self._on_recovered = on_recovered
        self._on_trouble = on_trouble

    @property
    def name(self) -> str:
        """The server's name, as in log lines."""
        return self._server.name

    @property
    def available(self) -> bool:
        """True while the circuit breaker is closed. While it is open, commands fail at once."""
        return not self._breaker_open

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def open(self) -> "asyncio.Future[None]":
        """Start connecting. The result is done when a connection stands."""
        self._loop = asyncio.get_running_loop()
        connected = self._loop.create_future()
        self._connect_task = self._loop.create_task(self._keep_connected(connected))
        return connected

    async def start(self) -> None:
        """Start connecting. Returns when a connection stands, at the latest after one connect timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.connect_timeout_s):
                await self.open()

    async def close(self) -> None:
        """Disconnect and fail the commands that are still queued."""
        if self._connect_task is not None:
            self._connect_task.cancel()
            await asyncio.gather(self._connect_task, return_exceptions=True)
        for timer in (self._deadline_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._breaker_open = True
        queue = self._queue
        self._queue = []
        for command in queue:
            command.on_reply(command, None)

    async def execute(self, *arguments: bytes) -> Any:
        """The reply to one command, which may be a `hiredis.ReplyError`. None if Redis does not reply in time."""
        command = AwaitedCommand(encode(*arguments), self._loop.create_future())
        self.enqueue(command)
        return await command.reply

    def enqueue(self, command: RedisCommand) -> None:
        """Send the command in the next flush. If the breaker is open, it fails before this returns."""
        if self._breaker_open:
            command.on_reply(command, None)
            return
        self._queue.append(command)
        if not self._flush_scheduled:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def reconnect(self) -> None:
        """Close the connection and connect again: this server cannot serve us (say, a fail-over made it read-only)."""
        if self._connection is not None:
            self._connection.abort()

    def _flush(self) -> None:
        """Send the queue, or start its deadlines if there is no connection. All commands of a flush share one time."""
        if self._before_flush is not None:
            self._before_flush()
        self._flush_scheduled = False
        if not self._queue:
            return
        now = self._loop.time()
        # The loop's time is when this tick began. The deadline starts now, so that a long tick does not shorten it.
        expires_at = time.monotonic() + self._options.deadline_s
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_at(expires_at, self._check_deadlines)
        connection = self._connection
        if connection is None:
            new = [command for command in self._queue if command.expires_at == NEVER]
        else:
            new = self._queue.copy()
            self._queue.clear()
        for command in new:
            command.sent_at = now
            if command.expires_at == NEVER:  # a redirected command keeps its deadline
                command.expires_at = expires_at
        if connection is not None:
            connection.send(new)

    def _check_deadlines(self, now: float = 0.0) -> None:
        """Fail the commands that were overdue at `now`. One timer serves all: they expire in the order of sending.

        The timer calls this without `now`. The check then follows after the sockets were read once more: a loop runs
        its timers first, so after a long tick of our own, replies that are in time may still be unread.
        """
        if not now:
            self._deadline_timer = self._loop.call_later(_SOCKETS_READ_S, self._check_deadlines, self._loop.time())
            return
        self._deadline_timer = None
        overdue = self._take_overdue(now)
        self._set_timers()
        for command in overdue:
            self._count_failure()
            command.on_reply(command, None)

    def _take_overdue(self, now: float) -> list[RedisCommand]:
        overdue: list[RedisCommand] = []
        connection = self._connection
        while connection is not None and connection.expired < len(connection.pending):
            command = connection.pending[connection.expired]
            if command.expires_at > now:
                break
            connection.expired += 1
            overdue.append(command)
        unsent = [command for command in self._queue if command.expires_at <= now]
        if unsent:
            self._queue = [command for command in self._queue if command.expires_at > now]
        return overdue + unsent

    def _set_timers(self) -> None:
        """Set a timer for the next deadline, and one for the connection if it owes a late reply."""
        connection = self._connection
        # Commands enqueued in this tick have no deadline yet. The coming flush sets it, and the timer.
        due = [command.expires_at for command in self._queue[:1] if command.expires_at != NEVER]
        if connection is not None and connection.expired < len(connection.pending):
            due.append(connection.pending[connection.expired].expires_at)
        if due:
            self._deadline_timer = self._loop.call_at(min(due), self._check_deadlines)
        if connection is not None and connection.expired and self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._options.stall_s, self._check_stall)

    def _check_stall(self) -> None:
        """Close a connection that has owed a reply for too long: the server may be gone without closing it."""
        self._stall_timer = None
        connection = self._connection
        if connection is None or not connection.expired:
            return
        owed_s = self._loop.time() - connection.pending[0].sent_at
        if owed_s >= self._options.stall_s:
            connection.abort()
        else:
            self._stall_timer = self._loop.call_later(self._options.stall_s - owed_s, self._check_stall)

    def _count_failure(self) -> None:
        self._failures += 1
        if self._connection is not None:
            self._connection.notify_when_idle = True
        if self._failures >= self._options.failures_to_open and not self._breaker_open:
            self._breaker_open = True
            _log.warning(
                "%s does not reply within %d ms; TOLLGATE_LIMITS_ON_REDIS_LOSS applies until it does. Check the "
                "network and the load of Redis' machine and of this one, or raise TOLLGATE_REDIS_TIMEOUT_S.",
                self._server.name, round(1000 * self._options.deadline_s),
            )  # fmt: skip
            self._report_trouble()

    def _on_idle(self) -> None:
        """Close the breaker: Redis has answered every command."""
        self._failures = 0
        if self._breaker_open:
            self._breaker_open = False
            _log.info("%s replies again.", self._server.name)
            if self._on_recovered is not None:
                self._on_recovered()

    def _report_trouble(self) -> None:
        if self._on_trouble is not None:
            self._on_trouble()

    async def _keep_connected(self, connected: "asyncio.Future[None]") -> None:
        backoff_s = self._options.backoff_min_s
        while True:
            connection = await self._connect()
            if connection is not None:
                since = self._loop.time()
                self._on_connected(connection)
                if not connected.done():
                    connected.set_result(None)
                try:
                    await connection.loss
                finally:
                    self._on_disconnected(connection)
                if self._loop.time() - since > self._options.stall_s:
                    backoff_s = self._options.backoff_min_s
            self._report_trouble()
            await asyncio.sleep(jittered_s(backoff_s))
            backoff_s = min(2 * backoff_s, self._options.backoff_max_s)

    def _on_connected(self, connection: RedisConnection) -> None:
        self._connection = connection
        self.connections += 1
        self._breaker_open = True  # a new connection always counts as a recovery
        self._on_idle()
        self.schedule_flush()

    def _on_disconnected(self, connection: RedisConnection) -> None:
        """Fail the pending commands. Redis may have run them, or may still run them."""
        self._connection = None
        connection.abort()
        for index, command in enumerate(connection.pending):
            if index >= connection.expired:
                self._count_failure()
                command.on_reply(command, None)
            command.on_connection_lost()

    async def _connect(self) -> RedisConnection | None:
        """A connection that is logged in. None if Redis is unreachable or refuses the login."""
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                connection = await self._server.open(self._on_idle)
        except OSError as error:  # refused, no such socket, TLS, timed out
            self._log_once(
                f"{self._server.name} is unreachable ({cause_of(error)}); TOLLGATE_LIMITS_ON_REDIS_LOSS "
                "applies. Check the Redis server, the network and TOLLGATE_REDIS_URL."
            )
            return None
        except LoginRefusedError as error:
            self._log_once(
                f"{self._server.name} refuses the login ({error}); TOLLGATE_LIMITS_ON_REDIS_LOSS applies. Check "
                "TOLLGATE_REDIS_URL and the ACL user's permissions."
            )
            return None
        self._logged_error = ""
        return connection

    def _log_once(self, text: str) -> None:
        """Log an error once per cause, not once per attempt."""
        if text != self._logged_error:
            self._logged_error = text
            _log.error("%s", text)
