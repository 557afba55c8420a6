"""A thin pipelined Redis client: what is asked during one tick of the event loop leaves in one write.

Nothing hangs: a call is answered or failed within its deadline, waiting for a connection included. Several failures in
a row open the breaker, and then calls fail at once until Redis has answered everything or a new connection stands.
It does not know what it carries; topology (Cluster, Sentinel) is not its business.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis

from proxy.edges.redis.address import RedisAddress
from proxy.edges.redis.connection import NEVER, AwaitedCommand, RedisCommand, RedisConnection, encode

_log = logging.getLogger(__name__)
_LOOK_S = 0.001
"""The least that no loop takes for "at once": it reads its sockets first."""


@dataclass(frozen=True, slots=True)
class RedisClientOptions:
    """`stall_s`: a connection that owes an answer for so long is given up. Back-off grows from min to max, jittered."""

    deadline_s: float = 0.05
    failures_to_open: int = 5
    connect_timeout_s: float = 1.0
    stall_s: float = 1.0
    backoff_min_s: float = 0.02
    backoff_max_s: float = 0.5


class RedisClient:
    """The client. `before_flush` is called once per tick in which something was asked, to add what was collected."""

    def __init__(self, address: RedisAddress, options: RedisClientOptions = RedisClientOptions()) -> None:
        self._address = address
        self._options = options
        self._before_flush: Callable[[], None] | None = None
        self._on_back: Callable[[], None] | None = None
        self._waiting: list[RedisCommand] = []
        self._connection: RedisConnection | None = None
        self._flush_scheduled = False
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._open = False
        self._keeper: asyncio.Task[None] | None = None
        self._logged_refusal = ""

    def hook(self, before_flush: Callable[[], None], on_back: Callable[[], None]) -> None:
        """`on_back`: Redis answers, anew; what was known of it may no longer hold."""
        self._before_flush = before_flush
        self._on_back = on_back

    @property
    def available(self) -> bool:
        """Whether a call made now would be tried at all."""
        return not self._open

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def start(self) -> None:
        """Begin to connect. Returns when a connection stands, or after one connect timeout without."""
        self._loop = asyncio.get_running_loop()
        first = self._loop.create_future()
        self._keeper = self._loop.create_task(self._keep_connected(first))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(first, self._options.connect_timeout_s)

    async def close(self) -> None:
        """Fail what is still asked and disconnect."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for timer in (self._deadline_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._open = True
        for call in self._drop_waiting():
            call.done(call, None)

    async def ask(self, *parts: bytes) -> Any:
        """One command and its reply (maybe a `hiredis.ReplyError`), or None when Redis could not be reached in time."""
        asked = AwaitedCommand(encode(*parts), self._loop.create_future())
        self.call(asked)
        return await asked.reply

    def call(self, call: RedisCommand) -> None:
        """Ask, in the coming flush. May fail the call before it returns."""
        if self._open:
            call.done(call, None)
            return
        self._waiting.append(call)
        if not self._flush_scheduled:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def give_up_connection(self) -> None:
        """This server is the wrong one (a replica after a fail-over, say): connect anew."""
        if self._connection is not None:
            self._connection.abort()

    def _flush(self) -> None:
        """Time and deadline are one per flush: what is asked in a tick leaves in its flush, or begins to wait there."""
        if self._before_flush is not None:
            self._before_flush()
        self._flush_scheduled = False
        if not self._waiting:
            return
        now = self._loop.time()
        # The loop's time is that of the tick's beginning: what this tick took must not be taken from Redis' time.
        expires_at = time.monotonic() + self._options.deadline_s
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_at(expires_at, self._check_deadlines)
        if self._connection is None:
            new = [call for call in self._waiting if call.expires_at == NEVER]
        else:
            new, self._waiting = self._waiting, []
        for call in new:
            call.sent_at = now
            call.expires_at = expires_at
        if self._connection is not None:
            self._connection.send(new)

    def _drop_waiting(self) -> list[RedisCommand]:
        calls, self._waiting = self._waiting, []
        return calls

    def _check_deadlines(self, until: float = 0.0) -> None:
        """Fails what was overdue at `until`. One timer serves all calls: they expire in the order they were made in.

        Not before the sockets were read once more since then: a tick of ours may take longer than Redis has, and a loop
        runs its timers before it reads the answers that came meanwhile.
        """
        if not until:
            self._deadline_timer = self._loop.call_later(_LOOK_S, self._check_deadlines, self._loop.time())
            return
        self._deadline_timer = None
        overdue = self._overdue(until)
        self._watch_next()
        for call in overdue:
            self._failure()
            call.done(call, None)

    def _overdue(self, now: float) -> list[RedisCommand]:
        overdue: list[RedisCommand] = []
        connection = self._connection
        while connection is not None and connection.expired < len(connection.pending):
            call = connection.pending[connection.expired]
            if call.expires_at > now:
                break
            connection.expired += 1
            overdue.append(call)
        late = [call for call in self._waiting if call.expires_at <= now]
        self._waiting = [call for call in self._waiting if call.expires_at > now]
        return overdue + late

    def _watch_next(self) -> None:
        """Set the timer to the oldest call that still has time, and watch a connection that owes an answer."""
        connection = self._connection
        # What was asked in this very tick has no deadline yet: the flush that is to come gives it one, and a timer.
        due = [call.expires_at for call in self._waiting[:1] if call.expires_at != NEVER]
        if connection is not None and connection.expired < len(connection.pending):
            due.append(connection.pending[connection.expired].expires_at)
        if due:
            self._deadline_timer = self._loop.call_at(min(due), self._check_deadlines)
        if connection is not None and connection.expired and self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._options.stall_s, self._check_stall)

    def _check_stall(self) -> None:
        """Give a connection up that has owed an answer for too long: its other end may be gone without a word."""
        self._stall_timer = None
        connection = self._connection
        if connection is None or not connection.expired:
            return
        owed_s = self._loop.time() - connection.pending[0].sent_at
        if owed_s >= self._options.stall_s:
            connection.abort()
        else:
            self._stall_timer = self._loop.call_later(self._options.stall_s - owed_s, self._check_stall)

    def _failure(self) -> None:
        self._failures += 1
        if self._connection is not None:
            self._connection.is_watched = True
        if self._failures >= self._options.failures_to_open and not self._open:
            self._open = True
            _log.warning("Redis does not answer in time; TOLLGATE_LIMITS_ON_REDIS_LOSS applies until it does")

    def _caught_up(self) -> None:
        """Redis has answered all that it was asked."""
        self._failures = 0
        if self._open:
            self._open = False
            _log.info("Redis answers again")
            if self._on_back is not None:
                self._on_back()

    async def _keep_connected(self, first: "asyncio.Future[None]") -> None:
        backoff_s = self._options.backoff_min_s
        while True:
            connection = await self._connect()
            if connection is not None:
                since = self._loop.time()
                self._connected(connection)
                if not first.done():
                    first.set_result(None)
                try:
                    await connection.lost
                finally:
                    self._disconnected(connection)
                if self._loop.time() - since > self._options.stall_s:
                    backoff_s = self._options.backoff_min_s
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            backoff_s = min(2 * backoff_s, self._options.backoff_max_s)

    def _connected(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._open = True  # as far as this connection is concerned, Redis has been away until now
        self._caught_up()
        self.schedule_flush()

    def _disconnected(self, connection: RedisConnection) -> None:
        """What was asked on it may or may not have been done, or is still to be done."""
        self._connection = None
        connection.abort()
        for index, call in enumerate(connection.pending):
            if index >= connection.expired:
                self._failure()
                call.done(call, None)
            call.lost()

    async def _connect(self) -> RedisConnection | None:
        """A connection that has been let in; None when there is none to be had now."""
        connection = RedisConnection(self._caught_up)
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await self._dial(connection)
                refusal = await self._greet(connection)
        except OSError as error:  # refused, no such socket, TLS, timed out
            connection.abort()
            self._log_refusal(f"Redis cannot be reached ({error or type(error).__name__})")
            return None
        except asyncio.CancelledError:
            connection.abort()
            raise
        if refusal is not None:
            connection.abort()
            self._log_refusal(f"Redis login failed ({refusal})")
            return None
        self._logged_refusal = ""
        return connection

    def _log_refusal(self, text: str) -> None:
        """Once per cause, not once per try."""
        if text != self._logged_refusal:
            self._logged_refusal = text
            _log.error(
                "%s. Check the Redis server, the network, TOLLGATE_REDIS_URL and the ACL user's permissions", text
            )

    async def _dial(self, connection: RedisConnection) -> None:
        address = self._address
        if address.path:
            await self._loop.create_unix_connection(lambda: connection, address.path)
        else:
            await self._loop.create_connection(lambda: connection, address.host, address.port, ssl=address.tls)

    async def _greet(self, connection: RedisConnection) -> str | None:
        """Log in, choose the database, and see that the server answers; the error's first word when it will not."""
        commands = [*self._address.greeting(), ("PING",)]
        calls = [
            AwaitedCommand(encode(*(part.encode() for part in command)), self._loop.create_future())
            for command in commands
        ]
        connection.send(calls)
        while not all(call.reply.done() for call in calls):
            first_open = next(call.reply for call in calls if not call.reply.done())
            waited: list[asyncio.Future[Any]] = [first_open, connection.lost]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                raise ConnectionError
        for reply in (call.reply.result() for call in calls):
            if isinstance(reply, hiredis.ReplyError):
                return str(reply).split(" ", 1)[0]
        return None
