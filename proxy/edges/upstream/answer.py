"""An upstream's answer as its reader sees it: the head is here, the body comes as it is read.

`connection.py` fills it. Who reads waits on one future, made only when there is nothing to read; who has it
poured is called with each piece, and waits for the end alone.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.edges.upstream.status_lines import StatusLines
from proxy.exchange import Headers, UpstreamCall, UpstreamCutError, UpstreamError

HELD_BYTES = 65_536
"""With more than this unread, the upstream is not listened to until its answer was read (backpressure)."""


class AnsweringConnection(Protocol):
    """The connection that the answer comes over, for as long as it does."""

    loop: asyncio.AbstractEventLoop

    def listen(self) -> None:
        """There is room again for what the upstream has to say."""
        ...

    def abandon(self) -> None:
        """Nobody wants the rest of the answer."""
        ...


class HttpAnswer:
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
        "status_lines",
        "taker",
        "waiter",
    )

    def __init__(self, call: UpstreamCall, exchange: AnsweringConnection) -> None:
        self.method = call.method  # not the call itself: its body may be large, and a stream lives long
        self.deadline = call.deadline
        self.idle_timeout_s = call.idle_timeout_s
        self.loop = exchange.loop
        self.status = 0
        self.status_lines = StatusLines()
        self.headers: Headers = ()
        self.chunks: list[bytes] = []
        self.held_bytes = 0
        self.complete = False
        self.ended = False
        self.failure: UpstreamError | None = None
        self.waiter: asyncio.Future[bool] | None = None
        self.taker: Callable[[bytes], bool] | None = None  # while it is poured
        self.exchange: AnsweringConnection | None = exchange  # until the connection has nothing more for this answer

    async def read(self) -> bytes:
        """What has come since the last read; waits when nothing has. b"" at the end."""
        while not self.chunks:
            if self.complete:
                return b""
            if self.failure is not None:
                raise self.failure
            await self._news()
        return self._taken()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """What has come goes to `take`, and what comes does at once, until the end or until `take` has no room.

        So a piece costs no future, no turn of the loop, no step of a task. What `take` raises is raised here.
        """
        has_room = not self.chunks or take(self._taken())
        if has_room and not self.complete and self.failure is None:
            self.taker = take
            try:
                has_room = await self._news()
            finally:
                self.taker = None
        if has_room and self.failure is not None:
            raise self.failure
        self.ended = self.complete and not self.chunks
        return has_room

    def close(self) -> None:
        """Ends the exchange: a connection whose answer was not complete is closed with it. Idempotent."""
        exchange = self.exchange
        self.chunks = []
        if exchange is not None:
            self.failure = UpstreamCutError("the answer was closed before its end")
            self.exchange = None
            exchange.abandon()

    def wake(self) -> None:
        """Something has come, or nothing more will: whoever waits is told, unless all of it could be poured."""
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        has_room = True
        if self.chunks and self.taker is not None:
            try:
                has_room = self.taker(self._taken())
            except Exception as error:  # noqa: BLE001  # it is the taker's own, and raised where it has us pour
                waiter.set_exception(error)
                waiter.exception()  # not lost on anybody, should the waiting task be cancelled in the meantime
                return
            if has_room and not self.complete and self.failure is None:
                return
        waiter.set_result(has_room)

    async def _news(self) -> bool:
        """Until `wake` is called to tell of something; whether whom it is poured to has room for more."""
        self.waiter = waiter = self.loop.create_future()
        try:
            has_room: bool = await waiter
        except asyncio.CancelledError:  # who stops waiting does not want the rest
            self.close()
            raise
        finally:
            self.waiter = None
        return has_room

    def _taken(self) -> bytes:
        """What has come, which from here on is the reader's."""
        chunks, held_bytes = self.chunks, self.held_bytes
        self.held_bytes = 0
        self.ended = self.complete
        if held_bytes > HELD_BYTES and self.exchange is not None:
            self.exchange.listen()
        if len(chunks) == 1:
            return chunks.pop()
        self.chunks = []
        return b"".join(chunks)
