"""One connection to Redis: requests out in order, replies back in the same order, parsed by hiredis.

A call that failed its deadline keeps its place, so that its late answer is told apart from the next call's.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import hiredis


def encode(*parts: bytes) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(parts) + b"".join(encode_part(part) for part in parts)


def encode_part(part: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(part), part)


NEVER = math.inf
_request_of = attrgetter("request")


class RedisCommand:
    """One command on its way. `done` is called once, with the reply, which may be a `hiredis.ReplyError`, or with None
    when there is none in time; `late` may follow that None. `request` may be set as late as in the flush."""

    __slots__ = ("done", "expires_at", "request", "sent_at")

    def __init__(self, request: bytes, done: Callable[[Any, Any], None]) -> None:
        """`done`: called with this call and its reply."""
        self.request = request
        self.done = done
        self.sent_at = 0.0
        self.expires_at = NEVER

    def late(self, reply: Any) -> None:
        """An answer that came after the deadline: nobody waits for it, but what it did may have to be undone."""

    def lost(self) -> None:
        """The connection went before an answer came: Redis may have done what it was asked, or may yet do it."""


class AwaitedCommand(RedisCommand):
    """A call whose reply a coroutine awaits: None when it failed."""

    __slots__ = ("reply",)

    def __init__(self, request: bytes, reply: "asyncio.Future[Any]") -> None:
        super().__init__(request, _told)
        self.reply = reply


def _told(asked: AwaitedCommand, reply: Any) -> None:
    if not asked.reply.done():
        asked.reply.set_result(reply)


class RedisConnection(asyncio.Protocol):
    """One connection: requests out in order, replies back in the same order."""

    def __init__(self, on_caught_up: Callable[[], None]) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pending: deque[RedisCommand] = deque()
        self.expired = 0
        """How many of `pending`, from the left, have failed already and only wait for their late answer."""
        self.is_watched = False
        """Whether to tell, once, when all that was asked has been answered."""
        self._on_caught_up = on_caught_up
        self._reader = hiredis.Reader(protocolError=ConnectionError)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are transports by shape only

    def send(self, calls: Sequence[RedisCommand]) -> None:
        self.pending.extend(calls)
        if self._transport is not None:
            self._transport.write(b"".join(map(_request_of, calls)))

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self.pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                call = pending.popleft()
                if self.expired:
                    self.expired -= 1
                    call.late(reply)
                else:
                    call.done(call, reply)
        except (ConnectionError, IndexError):  # not Redis' protocol, or an answer that nobody asked for
            self.abort()
        else:
            if self.is_watched and not pending:
                self.is_watched = False
                self._on_caught_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
