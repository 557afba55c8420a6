"""An upstream's answer as its consumer sees it: the head is complete, the body arrives while it is read.

`connection.py` fills it. `read` waits on a future only when nothing has arrived. `pour` passes each piece to a callback
as it arrives and waits only for the end. A body that came with its head is there at once, as `whole`.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from proxy.answers import AnswerFields, Headers
from proxy.edges.upstream.answer_head import all_fields
from proxy.errors import UpstreamCutError
from proxy.records.messages import UpstreamCall

HELD_BYTES = 65_536
"""The most unread bytes. Above it, reading from the socket pauses until the answer was read (backpressure)."""


class AnsweringConnection(Protocol):
    """The connection that delivers the answer."""

    loop: asyncio.AbstractEventLoop

    def resume_receiving(self) -> None:
        """Read from the socket again."""
        ...

    def await_end(self) -> None:
        """Discard the rest of the answer. Keep the connection only if the answer's end follows soon."""
        ...

    def abandon(self) -> None:
        """Give up the rest of the answer: close the connection, unless nothing was sent on it."""
        ...


class HttpAnswer:
    """Implements `proxy.exchange.UpstreamAnswer`. The head is complete once `send` has returned it."""

    __slots__ = (
        "chunks",
        "complete",
        "deadline",
        "ended",
        "exchange",
        "failure",
        "fields",
        "head",
        "held_bytes",
        "idle_timeout_s",
        "method",
        "sink",
        "status",
        "taking_s",
        "waiter",
        "whole",
    )

    fields: AnswerFields
    """Facts in the head's fields. This and `head` are set when the head is complete."""
    head: bytes | bytearray

    def __init__(self, call: UpstreamCall, exchange: AnsweringConnection) -> None:
        self.method = call.method  # do not keep the call: its body may be large, and a stream long
        self.deadline = call.deadline
        self.idle_timeout_s = call.idle_timeout_s
        self.status = 0
        self.chunks: list[bytes] = []
        self.held_bytes = 0
        self.complete = False
        self.ended = False
        self.failure: Exception | None = None
        self.whole: bytes | None = None
        self.waiter: asyncio.Future[bool] | None = exchange.loop.create_future()  # done when the head arrived
        self.sink: Callable[[bytes], bool] | None = None  # only while `pour` waits
        self.taking_s = 0.0
        self.exchange: AnsweringConnection | None = exchange  # None once the exchange is over

    @property
    def headers(self) -> Headers:
        """All fields, parsed at each access: use `fields` where it suffices."""
        return all_fields(self.head)

    async def read(self) -> bytes:
        """Return all bytes that arrived since the last read; waits if there are none. b"" at the end.

        Raises `UpstreamCutError` or `UpstreamTimeoutError`. Cancelling it closes the answer.
        """
        while not self.chunks:
            if self.complete:
                return b""
            if self.failure is not None:
                raise self.failure
            await self._wait()
        return self._take_received()

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        """Pass all bytes to `take` as they arrive, until the end (True) or until `take` returns False.

        A piece costs no future, no turn of the event loop and no task step. Raises what `read` and `take` raise.
        """
        has_room = not self.chunks or self._hand_over(take)
        if has_room and not self.complete and self.failure is None:
            self.sink = take
            try:
                has_room = await self._wait()
            finally:
                self.sink = None
        if has_room and self.failure is not None:
            raise self.failure
        self.ended = self.complete and not self.chunks
        return has_room

    def interrupt(self) -> None:
        """Make a `pour` in progress return False."""
        self.end_pour(has_room=False)

    def let_end(self) -> None:
        """End the answer with what was read: discard the rest, and keep the connection if it ends soon."""
        exchange = self.exchange
        self.chunks = []
        self.held_bytes = 0
        if exchange is not None:
            self.exchange = None
            exchange.await_end()

    def close(self) -> None:
        """End the exchange. Closes the connection if the answer was not complete. Idempotent."""
        exchange = self.exchange
        self.chunks = []
        if exchange is not None:
            self.failure = UpstreamCutError("the answer was closed before its end")
            self.exchange = None
            exchange.abandon()

    def wake(self) -> None:
        """Wake the waiting consumer when bytes or the end arrived, unless the sink takes all of them."""
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        has_room = True
        if self.chunks and self.sink is not None:
            try:
                has_room = self._hand_over(self.sink)
            except Exception as error:  # noqa: BLE001  # raised again in `pour`
                self.fail_pour(error)
                return
            if has_room and not self.complete and self.failure is None:
                return
        self.end_pour(has_room=has_room)

    def end_pour(self, *, has_room: bool) -> None:
        """Wake the consumer. What arrives before it runs is kept."""
        self.sink = None
        waiter = self.waiter
        if waiter is not None and not waiter.done():  # done: its task was cancelled
            waiter.set_result(has_room)

    def fail_pour(self, error: Exception) -> None:
        """Raise in `pour` the error that `sink` raised."""
        self.sink = None
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
            waiter.exception()  # mark it as retrieved, in case the waiting task is cancelled now

    async def _wait(self) -> bool:
        """Wait for `wake`. Returns whether the `pour` callback has room for more."""
        assert self.exchange is not None  # there is more to come
        self.waiter = waiter = self.exchange.loop.create_future()
        try:
            has_room: bool = await waiter
        except asyncio.CancelledError:  # a cancelled consumer does not want the rest
            self.close()
            raise
        finally:
            self.waiter = None
        return has_room

    def _hand_over(self, take: Callable[[bytes], bool]) -> bool:
        """Pass what arrived to `take`."""
        began_at = perf_counter()
        try:
            return take(self._take_received())
        finally:
            self.taking_s += perf_counter() - began_at

    def _take_received(self) -> bytes:
        """Hand over all bytes that arrived."""
        chunks = self.chunks
        held_bytes = self.held_bytes
        self.held_bytes = 0
        self.ended = self.complete
        if held_bytes > HELD_BYTES and self.exchange is not None:
            self.exchange.resume_receiving()
        if len(chunks) == 1:
            return chunks.pop()
        self.chunks = []
        return b"".join(chunks)
