"""Ports for products and for the servers of journeys: each test process has a range of its own and goes round in it.

A product goes on calling servers whose test has ended: it probes replicas, repeats webhooks and wake hooks. With ports
that the kernel picks, such a call now and then reached a server of another test process. And a port that was free when
a test chose it could be taken before its product listened. These ranges lie below those of the kernel and of `up`.
"""

import os
import random
import socket
from collections.abc import Iterator

from runtime.child_process import can_bind

HOST = "127.0.0.1"
_ALL = range(10_000, 20_000)


def ports_of(worker: str, workers: int) -> range:
    """The range of one process of pytest-xdist, such as `gw0`."""
    share = len(_ALL) // workers
    number = int(worker.removeprefix("gw") or 0)
    return _ALL[number * share : (number + 1) * share]


def _round_and_round(ports: range) -> Iterator[int]:
    at = random.randrange(len(ports))
    while True:
        at = (at + 1) % len(ports)
        if can_bind(HOST, ports[at]):
            yield ports[at]


_next = _round_and_round(
    ports_of(os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
)


def own_port() -> int:
    """A free port. It is given out again only after all others of this process were."""
    return next(_next)


def is_held(port: int) -> bool:
    """Return whether this process has a socket at the port: a listener's or a connection's, even a broken one."""
    return any(_port_of(int(descriptor)) == port for descriptor in os.listdir("/proc/self/fd"))


def _port_of(descriptor: int) -> int | None:
    """The local port of this descriptor; None if it is no socket of IP."""
    try:
        looked_at = socket.socket(fileno=descriptor)
    except OSError:
        return None  # no socket, or closed meanwhile
    try:
        return int(looked_at.getsockname()[1]) if looked_at.family in (socket.AF_INET, socket.AF_INET6) else None
    finally:
        looked_at.detach()  # its owner closes it
