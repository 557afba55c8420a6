"""A shell on a node, over a connection to its runner: the other side of `trainer/runner/terminal.py`.

See docs/reference/training.md#interactive-sessions.
"""

from asyncio import IncompleteReadError, StreamReader, StreamWriter
from contextlib import suppress

from trainer.runner.terminal import DATA, END, FrameError, Frames, end_frame, frames_of, resize_frame

_CHUNK_BYTES = 65_536


class ShellConnection:
    """A `trainer.backend.Terminal`. One task may read while another writes."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = Frames()
        self._has_ended = False

    async def read(self) -> bytes:
        """What the shell wrote; empty at its end, also when the runner is gone."""
        while not self._has_ended:
            try:
                received = await self._reader.read(_CHUNK_BYTES)
                frames = list(self._frames.feed(received))
            except (OSError, IncompleteReadError, FrameError):
                received, frames = b"", []
            self._has_ended = not received or any(kind == END for kind, _ in frames)
            written = b"".join(payload for kind, payload in frames if kind == DATA)
            if written:
                return written
        return b""

    async def write(self, typed: bytes) -> None:
        """Returns when the runner can take more."""
        await self._send(frames_of(typed))

    async def resize(self, columns: int, rows: int) -> None:
        await self._send(resize_frame(columns, rows))

    async def close(self) -> None:
        """End the shell. Idempotent."""
        self._writer.write(end_frame())
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, frames: bytes) -> None:
        with suppress(OSError):  # `read` tells of the end
            self._writer.write(frames)
            await self._writer.drain()
