"""A real `tollgate launcher` process, and the scripted control that it serves."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from runtime.child_process import tie_to_parent
from tests.contracts.launcher.scripted_control import API_KEY, DEPLOYMENT, MODEL, ScriptedControl, call
from tests.waiting import eventually

COMMAND = str(Path(sys.executable).parent / "tollgate")
SERVER = (sys.executable, "-m", "tests.model_server", "--port", "{port}")
PROBES = {"interval_s": 0.2, "timeout_s": 0.5, "unhealthy_after": 3}


class Launcher:
    """One launcher process; its lines on standard error are kept."""

    def __init__(self, control: ScriptedControl) -> None:
        self.control = control
        self.output = ""
        self.ready = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, *flags: str, server: tuple[str, ...] = SERVER, api_key: str = API_KEY) -> None:
        """Start it without waiting."""
        words = ("--url", self.control.url, "--model", MODEL, "--deployment", DEPLOYMENT, *flags, "--", *server)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        self._process = await asyncio.create_subprocess_exec(
            *(COMMAND, "launcher", *words),
            env=environment | {"TOLLGATE_API_KEY": api_key, "TOLLGATE_DRAIN_TIMEOUT_S": "10"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=tie_to_parent(),
        )
        self._reading = asyncio.create_task(self._read())

    async def started(self, *flags: str, server: tuple[str, ...] = SERVER) -> None:
        """Start it and wait for its `ready` line."""
        await self.start(*flags, server=server)
        assert self.process.stdout is not None
        self.ready = (await asyncio.wait_for(self.process.stdout.readline(), 20)).decode()
        assert self.ready.startswith("ready "), self.output

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.output += line.decode()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._reading is not None:
            await self.ended()

    async def ended(self) -> int:
        status = await asyncio.wait_for(self.process.wait(), 30)
        assert self._reading is not None
        await self._reading
        return status

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        return await eventually(look, lambda: f"{what}\n{self.output}\n{self.control.history}", every_s=0.02)

    async def replicas(self, count: int) -> list[str]:
        """Wait until control's list has this many entries; return it."""
        await self.until(lambda: len(self.control.replicas) == count, f"{count} replicas are listed")
        return self.control.replicas

    async def woken(self) -> str:
        """Wake it and return the URL of its replica."""
        assert await self.control.wake() == 202
        return (await self.replicas(1))[0]

    async def pid_of(self, url: str) -> int:
        status, answer = await call(url)
        assert status == 200
        return int(answer["choices"][0]["message"]["content"].removeprefix("pid "))


@pytest.fixture
async def control() -> AsyncIterator[ScriptedControl]:
    async with ScriptedControl() as control:
        yield control


MakeLauncher = Callable[[], Awaitable[Launcher]]


@pytest.fixture
async def make_launcher(control: ScriptedControl) -> AsyncIterator[MakeLauncher]:
    async with AsyncExitStack() as stack:

        async def make() -> Launcher:
            launcher = Launcher(control)
            stack.push_async_callback(launcher.kill)
            return launcher

        yield make


@pytest.fixture
async def launcher(make_launcher: MakeLauncher) -> Launcher:
    return await make_launcher()
