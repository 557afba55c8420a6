"""Reads a replica's answer to its end: stores it for the webhook, or discards it, or takes the text of an error.

Stored in chunks as it arrives, no faster than the queue takes them. Never whole in memory.
"""

import asyncio

from proxy.async_requests.answer_text import AnswerKind, AnswerText
from proxy.async_requests.outcomes import MAX_ANSWER_BYTES, TOO_LARGE, UNREADABLE, Fault
from proxy.async_requests.queues import AttemptQueue, QueueUnavailableError
from proxy.async_requests.requests import AttemptRef, Succeeded
from proxy.errors import UpstreamError
from proxy.records.messages import UpstreamAnswer

CHUNK_BYTES = 128 << 10
MAX_ERROR_BYTES = 64 << 10
"""Most bytes of an error's body that are read."""
ERROR_BODY_S = 30.0
RETRY_S = 0.25
"""Time between two attempts to store a chunk while the queue does not answer."""
FULL_RETRY_S = 2.0
"""The same while the workspace's answers have reached their bound. Each attempt costs Redis a chunk."""


class AnswerStore:
    """The answer of one attempt, on its way to the queue."""

    def __init__(self, queue: AttemptQueue, ref: AttemptRef) -> None:
        self._queue = queue
        self._ref = ref
        self._size_bytes = 0
        self._chunks = 0
        self._buffer = bytearray()
        self._text = AnswerText()

    async def take_all(self, answer: UpstreamAnswer) -> Succeeded | Fault:
        """Store the answer. Raises what reading it raises."""
        while data := await answer.read():
            self._size_bytes += len(data)
            if self._size_bytes > MAX_ANSWER_BYTES:
                return TOO_LARGE
            self._buffer += data
            while len(self._buffer) >= CHUNK_BYTES:
                await self._store(bytes(self._buffer[:CHUNK_BYTES]))
                del self._buffer[:CHUNK_BYTES]
        if self._buffer:
            await self._store(bytes(self._buffer))
        kind = self._text.kind()
        if kind is AnswerKind.BINARY:
            return UNREADABLE
        return Succeeded(self._size_bytes, self._chunks, kind is AnswerKind.JSON)

    async def _store(self, chunk: bytes) -> None:
        """Look at a chunk and store it, however long that takes: the lease ends what takes too long."""
        for _ in self._text.add(chunk):
            await asyncio.sleep(0)
        while True:
            try:
                stored = await self._queue.store(self._ref, self._chunks, chunk)
                pause_s = FULL_RETRY_S
            except QueueUnavailableError:
                stored = False
                pause_s = RETRY_S
            if stored:
                self._chunks += 1
                return
            await asyncio.sleep(pause_s)


async def discard(answer: UpstreamAnswer) -> None:
    """Read the answer to its end. Raises what reading it raises."""
    while not answer.ended:
        await answer.pour(lambda data: True)


async def error_text(answer: UpstreamAnswer) -> bytes:
    """The body of an error as far as it arrived: one that breaks off does not change the status."""
    text = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            while len(text) < MAX_ERROR_BYTES and (data := await answer.read()):
                text += data
    except (UpstreamError, TimeoutError):
        pass
    return bytes(text[:MAX_ERROR_BYTES])
