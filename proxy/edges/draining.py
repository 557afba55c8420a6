"""The end of a listener's connections: none is cut in the middle of a request, and none keeps the process from ending.

A kept connection that is idle when the drain begins may be about to carry a request. So it stays open for a moment; a
request that comes is served, and its answer says `connection: close`. Then our side is closed in order (FIN), and what
crosses that is read and thrown away for a moment more, because closing at once would answer it by a reset.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

_LOOK_S = 0.05


class Draining(Protocol):
    """One connection of a listener whose answers say `connection: close` already."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come that is not answered yet."""
        ...

    def half_close(self) -> None:
        """Send FIN; read on, and drop what comes. Idempotent."""
        ...

    def force_close(self) -> None: ...


async def close_when_idle(
    connections: Callable[[], Iterable[Draining]], ends_at: float, idle_s: float, linger_s: float
) -> None:
    """Close each connection once it has been idle for `idle_s`; returns when none is left, or at `ends_at`.

    `linger_s`: how long the peer has to close its side too. `ends_at`: the loop's time.
    """
    loop = asyncio.get_running_loop()
    idle_since: dict[Draining, float] = {}
    while (now := loop.time()) < ends_at and (left := connections()):
        for connection in left:
            if not connection.is_idle:
                idle_since.pop(connection, None)
                continue
            idle_for_s = now - idle_since.setdefault(connection, now)
            if idle_for_s >= idle_s + linger_s:
                connection.force_close()
            elif idle_for_s >= idle_s:
                connection.half_close()
        await asyncio.sleep(min(_LOOK_S, ends_at - now))
