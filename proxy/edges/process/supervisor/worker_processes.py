"""Runs workers as processes. The listening socket of a proxy worker belongs to its slot and survives the worker.

So a restart drops no queued connection. A dead worker is replaced, with backoff when it keeps dying, and no worker
outlives the supervisor. What workers do is in `proxy/worker/app.py` and `proxy/async_worker/app.py`.
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
"""A worker whose event loop does not answer within this time does not count as serving."""
_HEALTHY_AFTER_S = 10.0
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 5.0
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
    """Bind once without SO_REUSEPORT, with which a second proxy would share the port silently."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            raise PortInUseError(host, port) from None


@dataclass(frozen=True, slots=True)
class SlotCallbacks:
    """The reports and questions of a slot to the supervisor."""

    counted: Callable[[int, dict[str, Any]], None]
    died: Callable[[int, str], None]
    """Takes the slot's number and the dead worker's incarnation."""
    confirm: Callable[[], Awaitable[bool]]
    damage: Callable[[], Awaitable[None]]
    replicas: Callable[[int, Message], None]
    """Takes the slot's number and a message about replicas."""
    on_start: Callable[[str], None] = lambda incarnation: None
    places: Callable[[str, Message], None] = lambda incarnation, message: None
    """Takes the worker's incarnation and a message about where it may have places of calls in flight."""
    confirm_keys: Callable[[str], Awaitable[bool]] | None = None
    """Takes the id of an identity provider. None: nobody can be asked for its keys."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a slot: `python -m MODULE [LISTEN_FD] CHANNEL_FD INCARNATION [PAIR_FD]`."""

    module: str
    name: str
    """The name in log lines."""
    when_lost: str
    """A log line's sentence: what became of the work of a worker that died."""
    listener: socket.socket | None = None
    """The socket that the worker listens on, which survives it; None if it does not listen."""
    pair_fd: int | None = None
    """The file in memory with the certificate and key that it shows; None: it speaks no TLS."""

    @property
    def fds(self) -> tuple[int, ...]:
        return () if self.listener is None else (self.listener.fileno(),)


def proxy_worker(listener: socket.socket, pair_fd: int | None = None) -> Program:
    return Program("proxy.worker", "Worker", "Calls that it served were cut off.", listener, pair_fd)


ASYNC_WORKER = Program(
    "proxy.async_worker", "Async worker", "Its attempts are used up; what is left of its requests is run again."
)


class WorkerSlot:
    """A place for one worker. `run` keeps a worker running in it until `retire`."""

    def __init__(self, number: int, program: Program, environ: Mapping[str, str], callbacks: SlotCallbacks) -> None:
        self.number = number
        self.health: Message = {}
        """The worker's state, as of the last flush."""
        self._program = program
        self._environ = environ
        self._callbacks = callbacks
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._serving = False
        self._retired = asyncio.Event()
        self._flush_answer: asyncio.Future[bool] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.incarnation = ""
        """The name of the worker process that runs now, unique to it. Empty when none runs."""

    async def run(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._retired.is_set():
            started_s = time.monotonic()
            status = await self._run_worker()
            if self._retired.is_set():
                return
            healthy = time.monotonic() - started_s > _HEALTHY_AFTER_S
            backoff_s = _FIRST_BACKOFF_S if healthy else min(backoff_s * 2, _LAST_BACKOFF_S)
            log.error(
                "%s %d ended with status %d; starting another. %s",
                self._program.name,
                self.number,
                status,
                self._program.when_lost,
            )
            if not healthy:
                await asyncio.sleep(backoff_s)

    async def flush(self, within_s: float = ANSWER_TIMEOUT_S) -> bool:
        """Ask the worker for its counts and its state. Return whether it serves and answered in time."""
        if self._channel is None or not self._serving:
            return False
        if self._flush_answer is None:
            self._flush_answer = asyncio.get_running_loop().create_future()
            self._channel.send({"is": "flush"})
        answer = self._flush_answer
        await asyncio.wait([answer], timeout=within_s)
        return answer.done() and answer.result()

    async def settled(self) -> int:
        """Ask the worker up to which number its settlements are in Redis. 0 when it does not answer."""
        return int(self.health.get("settled", 0)) if await self.flush() else 0

    def retire(self) -> None:
        """Tell the worker to finish its calls and exit. It is not replaced."""
        self._retired.set()
        if self._program.listener is not None:
            self._program.listener.close()
        self._signal(signal.SIGTERM)

    def send(self, message: Message) -> None:
        """Send to the worker. Does nothing while none runs."""
        if self._channel is not None:
            self._channel.send(message)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _run_worker(self) -> int:
        ours, theirs = socket.socketpair()
        self.incarnation = secrets.token_hex(8)
        with theirs:
            self._process = await self._spawn(theirs)
        channel = Channel(self._on_message, lambda: None)
        await channel.open(ours)
        self._channel = channel
        self._callbacks.on_start(self.incarnation)
        if self._retired.is_set():  # retired while the process was being created
            self._signal(signal.SIGTERM)
        try:
            return await self._process.wait()
        finally:
            await asyncio.sleep(0)  # read what it still sent before it counts as dead
            self._serving = False
            self.health = {}
            self._channel = None
            self._answered(False)
            channel.close()
            incarnation = self.incarnation
            self.incarnation = ""
            self._callbacks.died(self.number, incarnation)

    async def _spawn(self, channel: socket.socket) -> asyncio.subprocess.Process:
        fds = (*self._program.fds, channel.fileno())
        arguments = [*map(str, fds), self.incarnation]
        if self._program.pair_fd is not None:
            fds = (*fds, self._program.pair_fd)
            arguments.append(str(self._program.pair_fd))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working directory must not shadow installed modules
            "-m",
            self._program.module,
            *arguments,
            env=dict(self._environ),
            pass_fds=fds,
            preexec_fn=die_with_parent(),
        )

    def _on_message(self, message: Message) -> None:
        match message["is"]:
            case "serving":
                self._serving = True
                log.info("%s %d serves.", self._program.name, self.number)
            case "counts":
                self._callbacks.counted(self.number, message["counts"])
            case "flushed":
                self.health = message["health"]
                self._answered(True)
            case "confirm":
                self._start(self._confirm(message["number"], self._callbacks.confirm()))
            case "confirm_keys":
                self._start(self._confirm(message["number"], self._confirm_keys(message["provider"])))
            case "damage":
                self._start(self._callbacks.damage())
            case "places":
                self._callbacks.places(self.incarnation, message)
            case "ask" | "outcome" | "ended" | "wake":
                self._callbacks.replicas(self.number, message)

    async def _confirm(self, number: int, question: Awaitable[bool]) -> None:
        channel = self._channel
        ok = await question
        if channel is not None:
            channel.send({"is": "confirmed", "number": number, "ok": ok})

    async def _confirm_keys(self, provider_id: str) -> bool:
        confirm_keys = self._callbacks.confirm_keys
        return confirm_keys is not None and await confirm_keys(provider_id)

    def _answered(self, ok: bool) -> None:
        if self._flush_answer is not None and not self._flush_answer.done():
            self._flush_answer.set_result(ok)
        self._flush_answer = None

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def die_with_parent() -> Callable[[], None]:
    """Make a `preexec_fn` by which the kernel kills the child when this process ends, however it ends. Linux only."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl took effect
            os._exit(1)

    return arm
