"""The line between the supervisor and one worker: JSON lines over a socketpair, both ways, one loop on each end.

The worker says that it serves, what it has counted, and which confirmation it needs; the supervisor answers. Nothing
on a request's path waits for it except an unknown key. No secret and no API key ever travels here.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import orjson

Message = dict[str, Any]

CONFIRM_TIMEOUT_S = 5.0
"""How long an unknown key may wait for control before it is answered 503."""
ASK_GAP_S = 0.01
"""Between two questions of one worker: unknown keys that come within it share one."""
MAX_WAITING = 1000
"""Calls with unknown keys that may wait at once; a flood of them must not fill the places of those that are known."""
MAX_BACKLOG_BYTES = 4_000_000
"""Counts wait in the worker while more than this waits in the line."""
_DAMAGE_REPORT_GAP_S = 10.0
log = logging.getLogger(__name__)


class Channel(asyncio.Protocol):
    """One end. `on_message` gets each message, `on_lost` is called once when the other end has gone."""

    def __init__(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._rest = b""

    async def open(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are transports by shape only

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_message(orjson.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    @property
    def congested(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > MAX_BACKLOG_BYTES

    def send(self, message: Message) -> None:
        """Never waits; once the other end has gone there is nobody to tell."""
        if self._transport is not None:
            self._transport.write(orjson.dumps(message) + b"\n")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class SupervisorLink:
    """The worker's end: confirmations for the directory, counts for the metrics."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._channel = Channel(self._received, on_lost)
        self._question: asyncio.Future[bool] | None = None  # asked for, not sent yet
        self._sent: dict[int, asyncio.Future[bool]] = {}  # by number, not answered yet
        self._sent_number = 0
        self._sent_at_s = float("-inf")
        self._waiting = 0
        self.max_waiting = MAX_WAITING
        self._damage_reported_at_s = float("-inf")
        self.flush: Callable[[], None] = lambda: None
        """What to do when the supervisor wants the counts now (it is being scraped)."""
        self.health: Callable[[], Message] = dict
        """How this worker is: what `/readyz` asks for at the same time."""

    async def open(self, sock: socket.socket) -> None:
        await self._channel.open(sock)

    def serving(self) -> None:
        self._channel.send({"is": "serving"})

    async def confirm(self) -> bool:
        """Whether control has confirmed the replica since this was asked.

        All who ask within ASK_GAP_S share one question. Who asks while one is on its way shares the next: the answer
        to this one may be older than the key in question. The supervisor lets questions share refreshes of policy.
        """
        if self._waiting >= self.max_waiting:
            return False
        self._waiting += 1
        try:
            return await asyncio.shield(self._next_question())
        finally:
            self._waiting -= 1

    def _next_question(self) -> asyncio.Future[bool]:
        if self._question is None:
            loop = asyncio.get_running_loop()
            self._question = loop.create_future()
            loop.call_later(max(0.0, self._sent_at_s + ASK_GAP_S - loop.time()), self._ask, self._question)
        return self._question

    def _ask(self, question: asyncio.Future[bool]) -> None:
        loop = asyncio.get_running_loop()
        self._question = None
        self._sent_number += 1
        self._sent_at_s = loop.time()
        self._sent[self._sent_number] = question
        loop.call_later(CONFIRM_TIMEOUT_S, self._answered, self._sent_number, False)
        self._channel.send({"is": "confirm", "number": self._sent_number})

    def report_damage(self) -> None:
        now_s = time.monotonic()
        if now_s - self._damage_reported_at_s > _DAMAGE_REPORT_GAP_S:
            self._damage_reported_at_s = now_s
            self._channel.send({"is": "damage"})

    @property
    def congested(self) -> bool:
        return self._channel.congested

    def counted(self, counts: Message) -> None:
        self._channel.send({"is": "counts", "counts": counts})

    def close(self) -> None:
        self._channel.close()

    def _received(self, message: Message) -> None:
        match message["is"]:
            case "confirmed":
                self._answered(message["number"], message["ok"])
            case "flush":
                self.flush()
                self._channel.send({"is": "flushed", "health": self.health()})

    def _answered(self, number: int, ok: bool) -> None:
        """By the supervisor, or for want of time; whichever comes second finds nobody waiting."""
        question = self._sent.pop(number, None)
        if question is not None:
            question.set_result(ok)
