"""An upstream's answer as its reader sees it: the head is here, the body comes as it is read.

`upstream_connection.py` fills it. A reader waits on one future, made only when there is nothing to read.
"""

import asyncio
from typing import Protocol

from proxy.exchange import Headers, UpstreamCall, UpstreamCutError, UpstreamError

HELD_BYTES = 65_536
"""With more than this unread, the upstream is not listened to until its answer was read (backpressure)."""


class Exchange(Protocol):
    """The connection that the answer comes over, for as long as it does."""

    loop: asyncio.AbstractEventLoop

    def listen(self) -> None:
        """There is room again for what the upstream has to say."""
        ...

    def abandon(self) -> None:
        """Nobody wants the rest of the answer."""
        ...


class Answer:
    """`UpstreamAnswer`: the head is here once the exchange was awaited, the body comes as it is read."""

    __slots__ = (
        "chunks",
        "complete",
        "deadline",
        "ended",
        "exchange",
        "failure",
        "headers",
        "held_bytes",
        "idle_timeout_s",
        "loop",
        "method",
        "status",
        "waiter",
    )

    def __init__(self, call: UpstreamCall, exchange: Exchange) -> None:
        self.method = call.method  # not the call itself: its body may be large, and a stream lives long
        self.deadline = call.deadline
        self.idle_timeout_s = call.idle_timeout_s
        self.loop = exchange.loop
        self.status = 0
        self.headers: Headers = ()
        self.chunks: list[bytes] = []
        self.held_bytes = 0
        self.complete = False
        self.ended = False
        self.failure: UpstreamError | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.exchange: Exchange | None = exchange  # until the connection has nothing more for this answer

    async def read(self) -> bytes:
        """What has come since the last read; waits when nothing has. b"" at the end."""
        while not self.chunks:
            if self.complete:
                return b""
            if self.failure is not None:
                raise self.failure
            self.waiter = waiter = self.loop.create_future()
            try:
                await waiter
            except asyncio.CancelledError:  # who stops waiting does not want the rest
                self.close()
                raise
        chunks, held_bytes = self.chunks, self.held_bytes
        self.chunks = []
        self.held_bytes = 0
        self.ended = self.complete
        if held_bytes > HELD_BYTES and self.exchange is not None:
            self.exchange.listen()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Ends the exchange: a connection whose answer was not complete is closed with it. Idempotent."""
        exchange = self.exchange
        self.chunks = []
        if exchange is not None:
            self.failure = UpstreamCutError("the answer was closed before its end")
            self.exchange = None
            exchange.abandon()

    def wake(self) -> None:
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)
