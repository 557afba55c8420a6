"""Accepts connections on a listening socket, and can pause: the kernel queues those that come meanwhile."""

import asyncio
import socket
from collections.abc import Callable

_BACKLOG = 1024


class Acceptor:
    """Owns `sock`, which must be bound, from `start` to `close`."""

    def __init__(self, sock: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._sock = sock
        self._protocol = protocol
        self._server: asyncio.Server | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Accept on a duplicate of the descriptor: to stop accepting, it is closed."""
        loop = asyncio.get_running_loop()
        sock = self._sock.dup()
        self._server = await loop.create_server(self._protocol, sock=sock, backlog=_BACKLOG)
        if self._closed:  # meanwhile
            self._server.close()

    def pause(self) -> None:
        """Leave further connections to the kernel's queue."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def resume(self) -> None:
        """Accept again, if it paused."""
        if self._server is None and not self._closed and (self._resuming is None or self._resuming.done()):
            self._resuming = asyncio.get_running_loop().create_task(self.start())

    def close(self) -> None:
        """Accept no more, and refuse connections."""
        self._closed = True
        self.pause()
        self._sock.close()
