"""A shell on a node, as the trainer has it: frames over the runner's socket.

See docs/reference/training.md#interactive-sessions.
"""

import asyncio
import os
from pathlib import Path

from trainer.backend import NoTerminalError
from trainer.runner.terminal import DATA, END, FrameError, Frames, frames_of, resize_frame
from trainer.runner.terminal_server import ASK_TERMINAL, FILE_NAME

_READ_BYTES = 65_536
_CONNECT_TIMEOUT_S = 5.0


class LocalTerminal:
    """Terminal of `trainer/backend.py`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = Frames()
        self._has_ended = False

    @classmethod
    async def open(cls, control: Path) -> "LocalTerminal":
        """A new shell. NoTerminalError if nothing listens there any more."""
        try:
            directory = os.open(control, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise NoTerminalError("the node has ended") from error
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                # A socket's path may have 107 bytes. The directory's descriptor makes any path short.
                path = f"/proc/self/fd/{directory}/{FILE_NAME}"
                reader, writer = await asyncio.open_unix_connection(path)
        except (OSError, TimeoutError) as error:
            raise NoTerminalError("the node has ended") from error
        finally:
            os.close(directory)
        writer.write(ASK_TERMINAL)
        return cls(reader, writer)

    async def read(self) -> bytes:
        while not self._has_ended:
            try:
                received = await self._reader.read(_READ_BYTES)
                frames = list(self._frames.feed(received))
            except (OSError, FrameError):
                break
            self._has_ended = not received or any(kind == END for kind, _ in frames)
            if output := b"".join(payload for kind, payload in frames if kind == DATA):
                return output
        self._has_ended = True
        return b""

    async def write(self, typed: bytes) -> None:
        await self._send(frames_of(typed))

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(resize_frame(columns, rows))

    async def close(self) -> None:
        """Drops what the shell has not read: it may never read it."""
        self._writer.transport.abort()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the runner was faster

    async def _send(self, frame: bytes) -> None:
        """Send the request. Does nothing if the shell has ended: `read` says so."""
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except OSError:
            self._has_ended = True
