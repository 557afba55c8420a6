"""Spreads large texts over time, so that Redis, which serves one command at a time, stays free for others.

Reads a clock and waits; otherwise no I/O.
"""

import asyncio
import time


class Pace:
    """One for all that a process sends or reads in pieces."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._order = asyncio.Lock()
        self._free_at = float("-inf")

    async def wait(self, size_bytes: int) -> None:
        """Wait until so many bytes may move, in the order of the calls. A call that is cancelled takes nothing."""
        async with self._order:
            wait_s = self._free_at - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._free_at = max(self._free_at, time.monotonic()) + size_bytes / self._bytes_per_s
