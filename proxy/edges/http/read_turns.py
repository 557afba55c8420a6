"""Turns for long reads: one in each turn of the loop, so that many long bodies at once delay no other call.

The kernel gives a connection as much as 512 KiB at once. With fifty that read in the same turn it takes 20 ms, and a
short call needs several turns. So one long read passes in each turn of the loop; the connections after it wait.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol

LONG_BYTES = 65_536
"""The size from which a read is long."""


class Reader(Protocol):
    """A connection."""

    def hold(self) -> None:
        """Pause reading."""
        ...

    def read_now(self) -> None:
        """Resume reading. Does nothing if the connection was closed or is full again."""
        ...


class ReadTurns:
    """The connections that wait to read on, in the order in which they asked. `buffer`: what they read into."""

    def __init__(self, buffer: memoryview) -> None:
        self._whole = buffer
        self._part = buffer[:LONG_BYTES]
        self.room = buffer
        """The part of the buffer that the next read may fill."""
        self._queue: OrderedDict[Reader, None] = OrderedDict()
        self._follows = False
        """True while `_next` is scheduled."""

    def long_read(self, reader: Reader) -> None:
        """Note a read of `LONG_BYTES` or more. `reader` waits for its next turn if others do, or have had this one."""
        if self._queue or self.room is self._part:
            reader.hold()
            self._queue[reader] = None
        self.room = self._part
        self._schedule()

    def join(self, reader: Reader) -> None:
        """Resume `reader`, which has paused, when its turn comes: in the next one, unless others wait."""
        self._queue[reader] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._follows:
            self._follows = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._follows = False
        self.room = self._whole
        if self._queue:
            reader, _ = self._queue.popitem(last=False)
            reader.read_now()
        if self._queue:
            self._schedule()
