"""The number of bytes sent on a socket that the peer has not acknowledged, as the kernel counts them."""

import fcntl
import socket
import struct
import sys
import termios


def unacknowledged_bytes(sock: socket.socket) -> int | None:
    """Bytes in the kernel's send queue that the peer has not acknowledged; None where the system does not report it."""
    if sys.platform != "linux" or sock.fileno() < 0:
        return None
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    except OSError:
        return None
    return int(struct.unpack("i", answer)[0])
