"""One child process of `tollgate up`: starts it, restarts it if it dies, stops it within its grace period."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from runtime.background import is_set_within
from runtime.child_process import Child, Launch

START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0
_STEADY_S = 30.0
"""A part that ran this long restarts with the first delay again."""
PYTHON_MODULE = (sys.executable, "-P", "-m")
"""`-P` prevents a module in the working directory from shadowing an installed one."""
TERMINAL_SIGNALS = frozenset({signal.SIGINT, signal.SIGHUP})
"""A terminal sends these to the whole group. The parts block them and wait for our SIGTERM, which keeps the order."""

Say = Callable[[str], None]


class StackError(Exception):
    """The product could not be started; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class StackPart:
    """One child: how to start it, when it is ready, how to stop it and how long that may take."""

    name: str
    launch: Launch
    is_ready: Callable[[], Awaitable[bool]]
    stop: Callable[[Child], Awaitable[None]]
    grace_s: float
    is_needed_first: bool = False
    """The parts after it start once it is ready."""


class PartRunner:
    """Runs one part from `begin` until `stop`, and restarts it if it dies once it was ready."""

    def __init__(self, part: StackPart, say: Say) -> None:
        self._part = part
        self._say = say
        self.child: Child | None = None
        self._began = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._spawning = asyncio.Lock()
        self._is_stopping = asyncio.Event()

    async def begin(self) -> None:
        """Start the part."""
        self._say(f"starting {self._part.name}")
        self._began = time.monotonic()
        self.child = await Child.start(self._part.launch)

    async def until_ready(self) -> None:
        """Wait until the part is ready. Raises StackError if it dies first or takes too long from now on.

        What it needs may have been ready only a moment ago.
        """
        name = self._part.name
        child = self.child
        waits_from = time.monotonic()
        assert child is not None, "not begun"
        died = asyncio.create_task(child.wait())
        while not await self._part.is_ready():
            if died.done():
                raise StackError(f"{name} {_how_it_ended(died.result())} before it was ready; see its output above")
            if time.monotonic() - waits_from > START_TIMEOUT_S:
                raise StackError(f"{name} is not ready after {START_TIMEOUT_S:.0f} s")
            await asyncio.wait({died}, timeout=_POLL_S)
        self._say(f"{name} is ready (pid {child.pid}, {time.monotonic() - self._began:.1f} s)")
        self._watch = asyncio.create_task(self._keep(child))

    def stop_restarting(self) -> None:
        """Do not restart the part any more."""
        self._is_stopping.set()

    async def stop(self) -> None:
        """Ask the part to stop, wait for at most its grace period, then kill it."""
        self.stop_restarting()
        async with self._spawning:
            child = self.child
            part = self._part
        if child is None:
            return
        self._say(f"stopping {part.name}")
        try:
            async with asyncio.timeout(part.grace_s):
                await part.stop(child)
            async with asyncio.timeout(part.grace_s):
                await child.wait()
        except TimeoutError:
            self._say(f"{part.name} did not stop within {part.grace_s:.0f} s: killed")
            child.kill()
            await child.wait()
        if self._watch is not None:
            await self._watch

    async def _keep(self, child: Child) -> None:
        delay_s = _FIRST_DELAY_S
        while True:
            began = time.monotonic()
            status = await child.wait()
            if self._is_stopping.is_set():
                return
            if time.monotonic() - began > _STEADY_S:
                delay_s = _FIRST_DELAY_S
            self._say(f"{self._part.name} {_how_it_ended(status)}; restarting it in {delay_s:.1f} s")
            if await is_set_within(self._is_stopping, delay_s):
                return
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
            async with self._spawning:  # a concurrent stop waits, so that it sees the new child
                child = self.child = await Child.start(self._part.launch)


async def terminate(child: Child) -> None:
    """Ask a part to stop, as most parts are asked."""
    child.terminate()


def _how_it_ended(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
