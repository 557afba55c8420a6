"""The state that all connections of one client share."""

import asyncio

READ_BYTES = 65_536
"""Size of the read buffer: each read is parsed before the next one."""


class SharedState:
    """The event loop and the read buffer."""

    __slots__ = ("buffer", "loop", "received")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.received = bytearray(READ_BYTES)
        self.buffer = memoryview(self.received)
