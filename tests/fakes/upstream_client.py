"""An upstream client in memory: a fake of `proxy/edges/upstream/client.py`. A test queues the outcome of each call."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from proxy.answers import AnswerFields, Headers
from proxy.errors import UpstreamUnreachableError
from proxy.http_rules.headers import answer_fields
from proxy.records.messages import UpstreamCall
from proxy.records.request_fields import RequestFields
from tests.fakes.journal import written

Piece = bytes | Exception | asyncio.Event
"""Bytes to hand out, a failure to raise, or an event to wait for before going on."""

UNSENT = (UpstreamUnreachableError, OSError)
"""Failures before a byte was sent."""
READ_BYTES = 65_536
"""Most bytes that the real one reads at once."""
JSON = (("content-type", "application/json"),)
SSE = (("content-type", "text/event-stream"),)


@dataclass
class FakeAnswer:
    """`UpstreamAnswer` from a list of pieces."""

    status: int
    headers: Headers
    pieces: deque[Piece]
    closed: bool = False
    wait_start: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a read waits for a test's event."""
    ended: bool = False
    whole: bytes | None = None
    taking_s: float = 0.0
    let: bool = False
    """True once the rest was declared no part of the answer."""
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fields(self) -> AnswerFields:
        return answer_fields(self.headers)

    async def read(self) -> bytes:
        await asyncio.sleep(0)  # the real one may suspend anywhere
        while self.pieces:
            piece = self.pieces.popleft()
            if isinstance(piece, asyncio.Event):
                self.wait_start.set()
                if not await self._came(piece):
                    self.pieces.appendleft(piece)
                    return b""
            elif isinstance(piece, Exception):
                raise piece
            else:
                self.ended = not self.pieces
                return piece
        return b""

    async def pour(self, take: Callable[[bytes], bool]) -> bool:
        while not self.ended:
            data = await self.read()
            if self.interrupted.is_set():
                self.interrupted.clear()
                return False
            self.ended = self.ended or not data
            start_s = perf_counter()
            has_room = not data or take(data)
            self.taking_s += perf_counter() - start_s
            if not has_room:
                return False
        return True

    async def _came(self, event: asyncio.Event) -> bool:
        """Wait for a test's event. False: the reader was interrupted."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self.interrupted)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self.interrupted.is_set()

    def interrupt(self) -> None:
        self.interrupted.set()

    def let_end(self) -> None:
        self.let = True

    def close(self) -> None:
        self.closed = True


def answer(body: bytes = b"", status: int = 200, headers: Headers = JSON, pieces: Sequence[Piece] = ()) -> FakeAnswer:
    """An answer that comes in `pieces`, or whole with its head if it is as short as one read."""
    is_whole = not pieces and len(body) <= READ_BYTES
    return FakeAnswer(status, headers, deque(pieces or [body]), whole=body if is_whole else None)


@dataclass
class FakeUpstream:
    """`script`: the outcomes of the next calls. An event delays a call until it is set."""

    script: deque[FakeAnswer | Exception | asyncio.Event] = field(default_factory=deque)
    calls: list[UpstreamCall] = field(default_factory=list)
    wait_start: asyncio.Event = field(default_factory=asyncio.Event)
    uploaded: list[bytes] = field(default_factory=list)
    """The bytes that arrived of each upload."""

    def will(self, *steps: FakeAnswer | Exception | asyncio.Event) -> None:
        self.script.extend(steps)

    async def send(self, call: UpstreamCall) -> FakeAnswer:
        if call.record is not None and not call.record.is_written:
            await written(call.record)
            call.waiting_since = perf_counter()
        own = {"x-request-id": call.request_id} if call.request_id else {}
        headers = RequestFields({**own, **call.headers})
        self.calls.append(replace(call, headers=headers))  # a copy: the pipeline reuses the object for the next replica
        await asyncio.sleep(0)
        if call.upload is not None and not isinstance(self.script[0], UNSENT):
            call.has_begun = True
            self.uploaded.append(b"")
            while piece := await call.upload.read():
                self.uploaded[-1] += piece
        while True:
            step = self.script.popleft()
            call.has_begun = call.has_begun or not isinstance(step, UNSENT)
            if isinstance(step, asyncio.Event):
                self.wait_start.set()
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                return step
