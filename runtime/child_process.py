"""A child process that cannot outlive its parent, and socket probes for starting it.

Children stay in the parent's process group. On Linux the kernel kills a child when its parent dies (PR_SET_PDEATHSIG),
so even `kill -9` of the parent leaves no process and no open port behind.
"""

import asyncio
import ctypes
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PORTS_TO_TRY = range(20_000, 30_000)
"""Below Linux' ephemeral range: no outgoing connection can take a port between choosing and binding it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one child."""

    argv: Sequence[str]
    env: Mapping[str, str]
    keep_open: tuple[int, ...] = ()
    """File descriptors that the child inherits, such as the data directory's lock."""
    blocked_signals: frozenset[signal.Signals] = frozenset()
    """Signals that the child blocks: those that a terminal or init system sends to the whole group."""


class Child:
    """A running child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, launch: Launch) -> "Child":
        """Start a child. Its standard output goes to our standard error: ours carries only the `ready` line."""
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            env=dict(launch.env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=launch.keep_open,
            preexec_fn=tie_to_parent(launch.blocked_signals),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the exit status; a negative one is the signal that ended the child."""
        return await self._process.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


def tie_to_parent(blocked_signals: frozenset[signal.Signals] = frozenset()) -> Callable[[], None]:
    """The function for `preexec_fn`. Everything it needs is looked up before the fork."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def tie() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # the parent died before prctl took effect
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_signals)

    return tie


def can_bind(host: str, port: int) -> bool:
    """Return whether the port is free. SO_REUSEADDR ignores connections of an earlier run in TIME_WAIT."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(host: str, count: int, excluded: Collection[int] = ()) -> list[int]:
    """`count` distinct free ports, none of them in `excluded`."""
    candidates = random.sample(_PORTS_TO_TRY, len(_PORTS_TO_TRY))
    free = list(islice((port for port in candidates if port not in excluded and can_bind(host, port)), count))
    if len(free) < count:
        raise OSError(f"no {count} free ports between {_PORTS_TO_TRY.start} and {_PORTS_TO_TRY.stop - 1}")
    return free


async def accepts(host: str, port: int) -> bool:
    """Return whether a TCP connection is accepted within a second."""
    try:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_connection(host, port)
    except (TimeoutError, OSError):
        return False
    writer.close()
    return True


async def replies_with(path: Path, command: bytes, reply: bytes) -> bool:
    """Return whether a unix socket replies to `command` with `reply`. An empty `reply` means that the peer closes."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_unix_connection(str(path))
    except (TimeoutError, OSError):
        return False
    try:
        writer.write(command)
        async with asyncio.timeout(5):
            return await reader.read(len(reply) or 1) == reply
    except (TimeoutError, OSError):
        return False
    finally:
        writer.close()
