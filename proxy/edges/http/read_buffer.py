"""Reads a socket for a handler of aiohttp's into one buffer, shared by all connections so that it stays in the cache.

uvloop asks only such a protocol for a buffer; one of bytes, as aiohttp's is, gets a copy of all that was read.
"""

import asyncio
from typing import Protocol

READ_BYTES = 512 << 10


class Handler(Protocol):
    """asyncio's protocol of bytes, but told what came before it is copied."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def eof_received(self) -> None: ...

    def came(self, data: memoryview) -> None:
        """`data` is another's as soon as this returns."""
        ...


class Intake(asyncio.BufferedProtocol):
    """The transport's protocol; all but reading is the handler's."""

    __slots__ = ("_buffer", "_handler")

    def __init__(self, handler: Handler, buffer: memoryview) -> None:
        self._handler = handler
        self._buffer = buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def eof_received(self) -> None:
        self._handler.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._handler.came(self._buffer[:nbytes])
