"""Writes one request after another to an upstream's connection, no faster than the socket accepts them.

A body that is complete is written in pieces from the transport's callbacks. A body that is still arriving from the
caller is written by a task, which reads the next bytes only when the last ones were accepted.
"""

import asyncio
from collections.abc import Callable, Iterator

from proxy.json_text.segmented_body import RequestBody, SegmentedBody
from proxy.records.messages import Upload

WRITE_BYTES = 65_536
"""A request up to this size is joined into one buffer and one write."""
WHOLE_BYTES = 1 << 20
"""A request up to this size is one write of all its segments."""
PIECE_BYTES = 131_072
"""A longer body is written in pieces of this size as the socket accepts them."""
_LAST_CHUNK = b"0\r\n\r\n"


class RequestWriter:
    """The sending half of a connection. `written_bytes`: of the current request, handed to the transport.

    `is_sending`: part of the request is still to be written. `is_free`: all of it was, so another may follow. Both are
    kept, not computed: each call reads them, few change them.
    """

    __slots__ = (
        *("_loop", "_paused", "_pieces", "_room", "_transport", "_truncated", "_uploading"),
        *("is_free", "is_sending", "written_bytes"),
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._pieces: Iterator[bytes | memoryview] | None = None
        self._uploading: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None  # set while an upload waits for the socket
        self._paused = self._truncated = self.is_sending = False
        self.is_free = True
        self.written_bytes = 0

    def write(self, head: bytes, body: RequestBody) -> None:
        """Send a request."""
        self.written_bytes = len(head) + len(body)
        if self.written_bytes <= WRITE_BYTES and isinstance(body, bytes):
            self._transport.write(head + body)
        elif len(body) <= WHOLE_BYTES:
            self._transport.writelines((head, body) if isinstance(body, bytes) else (head, *body.text_segments))
        else:
            self.written_bytes = len(head)
            self._pieces = (SegmentedBody(body) if isinstance(body, bytes) else body).pieces(PIECE_BYTES)
            self._transport.write(head)
            self._write_more()
            self._note()

    def upload(self, head: bytes, body: Upload, on_failure: Callable[[Exception], None]) -> None:
        """Send a request whose body is still arriving. `on_failure` gets what `body.read` raises."""

        def ended(task: asyncio.Task[None]) -> None:
            self._uploading = None
            self._note()
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                on_failure(error)

        self.written_bytes = len(head)
        self._transport.write(head)
        self._uploading = self._loop.create_task(self._upload(body))
        self._note()
        self._uploading.add_done_callback(ended)

    def stop(self) -> None:
        """Send no more of the request: nobody will read it. The connection can carry no other."""
        if self.is_sending:
            self._truncated = True
        self._pieces = None
        if self._uploading is not None:
            self._uploading.cancel()
        self._note()

    def pause(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self._paused = True
        self._note()

    def resume(self) -> None:
        """Go on writing: the transport has room again."""
        self._paused = False
        self._write_more()
        self._note()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _note(self) -> None:
        """Set the flags. Call it after each change that they depend on."""
        self.is_sending = self._pieces is not None or self._uploading is not None
        self.is_free = not self.is_sending and not self._paused and not self._truncated

    def _write_more(self) -> None:
        """Write as much of a long body as the transport accepts; `resume` continues."""
        while self._pieces is not None and not self._paused and not self._transport.is_closing():
            if piece := next(self._pieces, b""):
                self.written_bytes += len(piece)
                self._transport.write(piece)
            else:
                self._pieces = None

    async def _upload(self, body: Upload) -> None:
        is_chunked = body.length is None
        while piece := await body.read():
            if self._transport.is_closing():
                return
            self.written_bytes += len(piece)
            self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n") if is_chunked else (piece,))
            if self._paused:
                self._room = self._loop.create_future()
                await self._room
        if is_chunked:
            self._transport.write(_LAST_CHUNK)
