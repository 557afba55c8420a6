"""Limits of a process on descriptors, memory, threads and local ports, and the errors that tell that one is reached.

The kernel hands out the lowest free descriptor, so a new one's number says how many are left.
"""

import errno
import logging
import os
import resource
import socket
import time
from pathlib import Path

SPARE_DESCRIPTORS = 32
"""Descriptors kept from calls' connections: for journals, the policy replica, name look-ups, connections to Redis."""
REFUSING_DESCRIPTORS = 32
"""Descriptors kept besides for callers who are only told that there is no room."""
LOG_INTERVAL_S = 1.0
LASTS_S = 6.0
"""The time that a shortage is shown after it was met last: the supervisor looks every 5 s."""
_LEAST_PARTS = 8
"""The part of a low limit that each of the two keeps at most."""
_NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
_NO_MEMORY = frozenset((errno.ENOMEM, errno.ENOBUFS, socket.EAI_MEMORY))
_NO_THREAD = "can't start new thread"
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
log = logging.getLogger(__name__)


class NoLocalPortError(OSError):
    """No local port is left for a connection to this address."""


def is_exhausted(error: BaseException) -> bool:
    """Return whether the process, or the machine, has run out of something: nobody else is at fault."""
    return is_out_of_descriptors(error) or is_out_of_memory(error) or isinstance(error, NoLocalPortError)


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return whether the process, or the machine, had no file descriptor left."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the process may take no more memory. A thread's stack is memory, too."""
    if isinstance(error, OSError):
        return error.errno in _NO_MEMORY
    return isinstance(error, MemoryError) or _is_out_of_threads(error)


def _is_out_of_threads(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


def lacks_local_port(error: OSError, family: socket.AddressFamily, address: tuple[str, int]) -> bool:
    """Return whether a connection could not be made because no local port was left for it.

    The error is the same where this machine has no address of the family, as without IPv6. Then the destination is at
    fault. A datagram socket tells: it has ports of its own, and to connect it sends nothing.
    """
    if error.errno != errno.EADDRNOTAVAIL:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except OSError as without_port:
            return without_port.errno == errno.EAGAIN
    return True


def no_descriptor_is_left() -> bool:
    """Try it: some libraries report a lack of descriptors as another error."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return is_out_of_descriptors(error)
    return False


def out_of_descriptors() -> OSError:
    """The error of a call that would take a descriptor that is kept for others."""
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def descriptor_limit() -> int:
    """Return how many file descriptors this process may have (`ulimit -n`)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def highest_descriptor(spare: int) -> int:
    """The highest number of a descriptor that leaves `spare` of them, fewer where the limit is low."""
    limit = descriptor_limit()
    return limit - min(spare, limit * spare // (SPARE_DESCRIPTORS * _LEAST_PARTS)) - 1


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit to the hard one. Its children inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_limit() -> int | None:
    """Return how many bytes of address space this process may have (`ulimit -v`); None if that is not limited."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


class Exhaustion:
    """Records everything that is not done because the process or the machine has run out of something.

    Logs it once a second with the limit and the remedy; `/readyz` shows it. `consequence`: what becomes of it, for the
    log.
    """

    def __init__(self, consequence: str = "calls were answered 529 CAPACITY_EXHAUSTED") -> None:
        self._consequence = consequence
        self._trouble = ""
        self._lasts_until = 0.0
        self._unlogged = 0
        self._not_before = 0.0

    def note(self, error: BaseException) -> None:
        """Log the shortage, at most once per `LOG_INTERVAL_S`."""
        now = time.monotonic()
        self._trouble = shortage_of(error)
        self._lasts_until = now + LASTS_S
        self._unlogged += 1
        if now < self._not_before:
            return
        log.error("%s Since the last such line %d %s.", self._trouble, self._unlogged, self._consequence)
        self._unlogged = 0
        self._not_before = now + LOG_INTERVAL_S

    @property
    def trouble(self) -> str:
        """The text for `/readyz`; "" if nothing is short."""
        if time.monotonic() < self._lasts_until:
            return self._trouble
        return _no_descriptor() if no_descriptor_is_left() else ""


def shortage_of(error: BaseException) -> str:
    """Name what has run out, its limit and the remedy."""
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return (
            "Out of file descriptors: the whole machine has none left. Raise fs.file-max, or find the process that"
            " holds them."
        )
    if isinstance(error, NoLocalPortError):
        return _no_port()
    if _is_out_of_threads(error):
        return (
            "Out of threads: this process may start no more. Raise `ulimit -u`, TasksMax= of a systemd unit,"
            " `pids_limit` of a container, or `ulimit -v`, because a thread takes address space."
        )
    return _no_memory() if is_out_of_memory(error) else _no_descriptor()


def _no_descriptor() -> str:
    return (
        f"Out of file descriptors: the limit of this process is {descriptor_limit()}. Raise it: `ulimit -n`,"
        " LimitNOFILE= of a systemd unit, `ulimits: nofile` of a container."
    )


def _no_port() -> str:
    first, last = _PORT_RANGE.read_text().split()
    return (
        f"Out of local ports: connections to one address and port have those from {first} to {last}. Widen"
        " net.ipv4.ip_local_port_range, set net.ipv4.tcp_tw_reuse=1, or give the upstream more addresses."
    )


def _no_memory() -> str:
    limit = memory_limit()
    bound = "the machine has none left" if limit is None else f"the limit of this process is {limit} bytes"
    return (
        f"Out of memory: {bound}. Raise `ulimit -v` or the machine's memory, or lower TOLLGATE_MAX_HELD_BYTES and"
        " TOLLGATE_MAX_IN_FLIGHT."
    )
