"""Workers as processes: each slot has a listener that outlives whoever sits on it, so a restart loses no connection.

The supervisor's. It promises that a dead worker is replaced, with backoff when it keeps dying; that no worker outlives
the supervisor; and that a retired slot is empty in bounded time. What workers do is `proxy/worker/app.py`'s business.
"""

import asyncio
import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.edges.process.channel import Channel, Message

BACKLOG = 1024
ANSWER_TIMEOUT_S = 1.0
"""A worker whose loop does not answer within this time is not counted as serving."""
_HEALTHY_AFTER_S = 10.0
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.1, 5.0
_PR_SET_PDEATHSIG = 1
log = logging.getLogger(__name__)


class PortInUseError(Exception):
    """Something else listens on that port already."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port}: {self.__doc__}")


def open_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """One listening socket per worker on the same port; the kernel spreads connections over them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    _check_free(family, host, port)
    listeners: list[socket.socket] = []
    for _ in range(count):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
        port = sock.getsockname()[1]
        sock.listen(BACKLOG)
        sock.setblocking(False)
        listeners.append(sock)
    return listeners


def _check_free(family: socket.AddressFamily, host: str, port: int) -> None:
    """SO_REUSEPORT would let a second proxy share the port silently; a bind without it tells."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            raise PortInUseError(host, port) from None


@dataclass(frozen=True, slots=True)
class SlotCallbacks:
    """What a slot tells and asks the supervisor."""

    counted: Callable[[int, dict[str, Any]], None]
    died: Callable[[int, str], None]
    """The slot's number, and the name that the worker had for its life."""
    confirm: Callable[[], Awaitable[bool]]
    damage: Callable[[], Awaitable[None]]


class WorkerSlot:
    """One worker's place. `run` keeps it filled until `retire`."""

    def __init__(
        self, number: int, listener: socket.socket, environ: Mapping[str, str], callbacks: SlotCallbacks
    ) -> None:
        self.number = number
        self.health: Message = {}
        """What the worker said of itself at the last flush."""
        self._listener = listener
        self._environ = environ
        self._callbacks = callbacks
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._serving = False
        self._retired = asyncio.Event()
        self._flushed: asyncio.Future[bool] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.incarnation = ""
        """The name of the worker that sits here now; every life has another. Empty: nobody does."""

    async def run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._retired.is_set():
            started_s = time.monotonic()
            status = await self._one_life()
            if self._retired.is_set():
                return
            healthy = time.monotonic() - started_s > _HEALTHY_AFTER_S
            backoff_s = _FIRST_BACKOFF_S if healthy else min(backoff_s * 2, _LAST_BACKOFF_S)
            log.error("worker %d ended with status %d; it is replaced", self.number, status)
            if not healthy:
                await asyncio.sleep(backoff_s)

    async def flush(self) -> bool:
        """Have the worker send its counts and say how it is; whether it serves, and its loop answered in time."""
        if self._channel is None or not self._serving:
            return False
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
            self._channel.send({"is": "flush"})
        waiting = self._flushed
        await asyncio.wait([waiting], timeout=ANSWER_TIMEOUT_S)
        return waiting.done() and waiting.result()

    async def settled(self) -> int:
        """Up to which number the worker's settlements are in Redis, as it says now; 0 when it says nothing."""
        return int(self.health.get("settled", 0)) if await self.flush() else 0

    def retire(self) -> None:
        """Let the worker finish what it has and leave; nobody follows it."""
        self._retired.set()
        self._listener.close()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _one_life(self) -> int:
        ours, theirs = socket.socketpair()
        self.incarnation = secrets.token_hex(8)
        with theirs:
            self._process = await self._spawn(theirs)
        channel = Channel(self._heard, lambda: None)
        await channel.open(ours)
        self._channel = channel
        if self._retired.is_set():  # SIGTERM came while the process was being made
            self._signal(signal.SIGTERM)
        try:
            return await self._process.wait()
        finally:
            await asyncio.sleep(0)  # what it had still sent is read before it counts as dead
            self._serving, self.health, self._channel = False, {}, None
            self._answered(False)
            channel.close()
            gone, self.incarnation = self.incarnation, ""
            self._callbacks.died(self.number, gone)

    async def _spawn(self, channel: socket.socket) -> asyncio.subprocess.Process:
        fds = (self._listener.fileno(), channel.fileno())
        arguments = [*map(str, fds), self.incarnation]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no module of the working directory takes the place of an installed one
            "-m",
            "proxy.worker",
            *arguments,
            env=dict(self._environ),
            pass_fds=fds,
            preexec_fn=die_with_parent(),
        )

    def _heard(self, message: Message) -> None:
        match message["is"]:
            case "serving":
                self._serving = True
                log.info("worker %d serves", self.number)
            case "counts":
                self._callbacks.counted(self.number, message["counts"])
            case "flushed":
                self.health = message["health"]
                self._answered(True)
            case "confirm":
                self._start(self._confirm(message["number"]))
            case "damage":
                self._start(self._callbacks.damage())

    async def _confirm(self, number: int) -> None:
        asker = self._channel
        ok = await self._callbacks.confirm()
        if asker is not None:
            asker.send({"is": "confirmed", "number": number, "ok": ok})

    def _answered(self, ok: bool) -> None:
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(ok)
        self._flushed = None

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def die_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: the kernel kills the child when this process ends, however it ends (Linux)."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return arm
