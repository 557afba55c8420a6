"""One connection to Redis. Commands leave in order; replies come back in the same order and are parsed by hiredis.

A command whose deadline has passed keeps its place in the queue, so that a late reply is not taken for the next one's.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import hiredis


def encode(*arguments: bytes | str) -> bytes:
    """A command in Redis' protocol (RESP)."""
    return cast(bytes, hiredis.pack_command(arguments))  # type: ignore[arg-type]  # it takes any number of them


def encode_argument(argument: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


NEVER = math.inf
_encoded = attrgetter("encoded")
_NO_REPLY = object()


class RedisCommand:
    """One command in flight. `on_reply` is called once: with the reply, which may be a `hiredis.ReplyError`, or with
    None if there is no reply in time. After None, `on_late_reply` may follow. `encoded` may be set as late as in the
    flush."""

    __slots__ = ("encoded", "expires_at", "on_reply", "sent_at")

    def __init__(self, encoded: bytes, on_reply: Callable[[Any, Any], None]) -> None:
        """`on_reply`: called with this command and its reply."""
        self.encoded = encoded
        self.on_reply = on_reply
        self.sent_at = 0.0
        self.expires_at = NEVER

    def on_late_reply(self, reply: Any) -> None:
        """Handle a reply after the deadline. No caller waits for it, but the command's effect may have to be undone."""

    def on_connection_lost(self) -> None:
        """Handle the loss of the connection before a reply. Redis may have run the command, or may still run it."""


class AwaitedCommand(RedisCommand):
    """A command whose reply a coroutine awaits. The reply is None if the command failed."""

    __slots__ = ("reply",)

    def __init__(self, encoded: bytes, reply: "asyncio.Future[Any]") -> None:
        super().__init__(encoded, _set_reply)
        self.reply = reply


def _set_reply(command: AwaitedCommand, reply: Any) -> None:
    if not command.reply.done():
        command.reply.set_result(reply)


class RedisConnection(asyncio.Protocol):
    """One connection. `on_idle`: called when everything is answered, once per `notify_when_idle`."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self.loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pending: deque[RedisCommand] = deque()
        self.expired = 0
        """The number of `pending`, from the left, that have failed already and only wait for their late reply."""
        self.notify_when_idle = False
        self._on_idle = on_idle
        self._reader = hiredis.Reader(protocolError=ConnectionError, notEnoughData=_NO_REPLY)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's

    def send(self, commands: Sequence[RedisCommand]) -> None:
        self.pending.extend(commands)
        if self._transport is not None:
            self._transport.write(b"".join(map(_encoded, commands)))

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        pending = self.pending
        try:
            reader.feed(data)
            for reply in iter(reader.gets, _NO_REPLY):
                command = pending.popleft()
                if self.expired:
                    self.expired -= 1
                    command.on_late_reply(reply)
                else:
                    command.on_reply(command, reply)
        except (ConnectionError, IndexError):  # a malformed reply, or a reply without a command
            self.abort()
        else:
            if self.notify_when_idle and not pending:
                self.notify_when_idle = False
                self._on_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.loss.done():
            self.loss.set_result(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
