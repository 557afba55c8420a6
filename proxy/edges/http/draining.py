"""The end of a listener and of its connections: none is reset or cut in a request, none keeps the process from ending.

New handshakes are turned away before the listener closes, since closing resets those under way. A kept connection that
is idle may be about to carry a request: it stays open for a moment, and the answer says `connection: close`. Then our
side is closed in order (FIN); what crosses that is read and thrown away, as closing at once would answer it by a reset.
"""

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Protocol

_LOOK_S = 0.05
_SO_ATTACH_FILTER = 26
_DROP_SYN = (  # classic BPF, which sees the TCP header: code, jump if true, jump if false, operand
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # take all else, whole
)


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


def turn_away(listener: socket.socket) -> bool:
    """Have the kernel drop each SYN from here on, and nothing else; whether it does (Linux).

    A caller's kernel repeats its SYN after a second, and is refused once the listener is closed.
    """
    if not sys.platform.startswith("linux"):
        return False
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in _DROP_SYN))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_DROP_SYN), ctypes.addressof(program))
        )
    except OSError:  # a sandbox that knows no filters: what comes in the last moment is reset
        return False
    return True


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
