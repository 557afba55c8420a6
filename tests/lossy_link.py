"""TCP over a link that loses one segment in a hundred, as programs at its ends see it.

TCP hides the loss and shows its cost: bytes arrive in pieces, and a lost piece with all behind it arrives after the
retransmission. No privilege and no kernel module is needed for that.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.ports import HOST, own_port

SEGMENT_BYTES = 1448
FIRST_TIMEOUT_S = 0.2
HANDSHAKE_TIMEOUT_S = 1.0
"""Linux waits this long at least before it sends a segment, or the first one of a connection, again."""
Connect = Callable[[], Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def to_tcp(url: str) -> Connect:
    parts = urlsplit(url)
    return lambda: asyncio.open_connection(parts.hostname, parts.port)


def to_unix(path: str) -> Connect:
    return lambda: asyncio.open_unix_connection(path)


@dataclass
class LossyLink:
    """Listens at `port` and passes connections on. `loss`: the share of segments that are sent once more."""

    connect: Connect
    rng: random.Random
    loss: float = 0.01
    port: int = field(default_factory=own_port)
    loss_count: int = 0
    """The number of segments lost so far."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)

    async def close(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await self._delay(HANDSHAKE_TIMEOUT_S)
            try:
                far_reader, far_writer = await self.connect()
            except OSError:
                return  # nobody listens there: the caller sees its connection closed
            with contextlib.closing(far_writer):
                try:
                    async with asyncio.TaskGroup() as ways:
                        ways.create_task(self._copy(reader, far_writer))
                        ways.create_task(self._copy(far_reader, writer))
                except* OSError:  # a reset of one side is one of the other
                    writer.transport.abort()
                    far_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy one direction to its end. The other one may go on."""
        while segment := await reader.read(SEGMENT_BYTES):
            await self._delay(FIRST_TIMEOUT_S)
            writer.write(segment)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _delay(self, timeout_s: float) -> None:
        """Wait as long as a sender does until a segment gets through."""
        while self.rng.random() < self.loss:
            self.loss_count += 1
            await asyncio.sleep(timeout_s)
            timeout_s *= 2
