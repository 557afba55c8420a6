"""One request at the scripted upstream, the gate that it may wait at, and the type `Behaviour`."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Behaviour = Callable[["Exchange"], Awaitable[None]]
LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Gate:
    """A gate that behaviours wait at. It is open until a test closes it."""

    arrivals: int = 0
    """Number of exchanges that have arrived at the closed gate, in all."""
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    async def passed(self) -> None:
        """Return once the gate is open."""
        if not self.is_open:
            self.arrivals += 1
            await self._open.wait()


@dataclass(slots=True)
class Received:
    """One request as received. Header names are in lower case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    head: bytes
    connection: int
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.headers if field == name), None)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Exchange:
    """One request that a behaviour answers. `keep`: whether the connection may carry another request."""

    received: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gate: Gate
    keep: bool = True
    _unread_bytes: int = 0

    async def read_body(self) -> bytes:
        if self._unread_bytes:
            self.received.body += await self.reader.readexactly(self._unread_bytes)
            self._unread_bytes = 0
        return self.received.body

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def client_closed(self) -> None:
        """Return once the client has closed the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        """Close the connection with a FIN."""
        self.keep = False
        self.writer.close()

    def reset(self) -> None:
        """Close the connection with an RST."""
        self.keep = False
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.writer.transport.abort()
