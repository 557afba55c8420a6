"""Large inputs, which go to Redis and come back in pieces: one long command would make all other clients wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.edges.redis.async_queue.commands import QueueCommands
from proxy.edges.redis.async_queue.pace import Pace

INCOMPLETE = b"incomplete"
"""The reply to a submission whose input lacks pieces."""


class Inputs:
    """One per process. Only one piece is on its way at a time, within the pace."""

    def __init__(self, commands: QueueCommands, pace: Pace, piece_bytes: int) -> None:
        self._commands = commands
        self._piece_bytes = piece_bytes
        self._pace = pace
        self._one = asyncio.Lock()

    def pieces_of(self, model_input: bytes) -> int:
        """The number of pieces of an input. 0: it is small, and goes with its submission."""
        size = len(model_input)
        return 0 if size <= self._piece_bytes else -(-size // self._piece_bytes)

    async def put(self, key: str, request_id: str, model_input: bytes) -> None:
        """Store the input, unless its request is known. It expires after a minute without a submission."""
        for number in range(self.pieces_of(model_input)):
            piece = model_input[number * self._piece_bytes : (number + 1) * self._piece_bytes]
            async with self._paced(len(piece)):
                if not await self._commands.run("put", key, request_id, number, piece):
                    return

    async def piece(self, key: str, request_id: str, number: int) -> bytes | None:
        """Read a piece. None if it was lost with a crash of Redis."""
        async with self._paced(self._piece_bytes):
            pieces = f"{key}b:{request_id}"
            content: bytes | None = await self._commands.call(pieces, lambda redis: redis.hget(pieces, str(number)))
        return content

    @asynccontextmanager
    async def _paced(self, size_bytes: int) -> AsyncIterator[None]:
        async with self._one:
            await self._pace.wait(size_bytes)
            yield
