"""Closes a listener and its idle connections without resetting a request.

The kernel drops new handshakes before the listener closes, since closing resets those in progress. An idle connection
stays open for a moment, as its next request may be on the way; that answer says `connection: close`. Then the proxy
sends FIN and discards what still arrives, since closing at once would answer it with a reset.
"""

import asyncio
import ctypes
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Protocol

_LOOK_S = 0.05
_SO_ATTACH_FILTER = 26
_DROP_SYN = (  # classic BPF on the TCP header: code, jump if true, jump if false, operand
    (0x30, 0, 0, 13),  # load the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # accept everything else
)


class Draining(Protocol):
    """A connection whose answers already say `connection: close`."""

    @property
    def is_idle(self) -> bool:
        """True if no request is arriving, waiting or being served."""
        ...

    def half_close(self) -> None:
        """Send FIN; keep reading and discard the bytes. Idempotent."""
        ...

    def force_close(self) -> None: ...


def turn_away(listener: socket.socket) -> bool:
    """Make the kernel drop every new SYN. Returns whether it does; only Linux can.

    The caller's kernel repeats its SYN after a second, and is then refused, as the listener is closed.
    """
    if not sys.platform.startswith("linux"):
        return False
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in _DROP_SYN))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(_DROP_SYN), ctypes.addressof(program))
        )
    except OSError:  # a sandbox without socket filters: the last connections may be reset
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
    while (now := loop.time()) < ends_at and (open_connections := connections()):
        for connection in open_connections:
            if not connection.is_idle:
                idle_since.pop(connection, None)
                continue
            idle_for_s = now - idle_since.setdefault(connection, now)
            if idle_for_s >= idle_s + linger_s:
                connection.force_close()
            elif idle_for_s >= idle_s:
                connection.half_close()
        await asyncio.sleep(min(_LOOK_S, ends_at - now))


def peer_left(transport: asyncio.Transport) -> bool:
    """Return whether the peer has closed its side; needed while reading is paused."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
