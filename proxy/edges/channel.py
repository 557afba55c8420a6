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
        self._sent: asyncio.Future[bool] | None = None
        self._sent_number = 0
        self._waiting = 0
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

        All who ask at the same time share one question. Whoever asks while one is on its way shares the next: the
        answer to this one may be older than the key in question.
        """
        if self._waiting >= MAX_WAITING:
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
            loop.call_later(CONFIRM_TIMEOUT_S, self._settle, self._question, False)
            loop.call_soon(self._ask)
        return self._question

    def _ask(self) -> None:
        if self._sent is None and self._question is not None:
            self._sent, self._question = self._question, None
            self._sent_number += 1
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
                if self._sent is not None and message["number"] == self._sent_number:
                    self._settle(self._sent, message["ok"])
            case "flush":
                self.flush()
                self._channel.send({"is": "flushed", "health": self.health()})

    def _settle(self, question: asyncio.Future[bool], ok: bool) -> None:
        """Answer it, by the supervisor or for want of time, and send the next one."""
        if not question.done():
            question.set_result(ok)
        if question is self._question:
            self._question = None
        elif question is self._sent:
            self._sent = None
            self._ask()
