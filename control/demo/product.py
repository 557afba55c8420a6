"""The demo's own `tollgate up`, reached through its command and its HTTP APIs.

Of the product, imports only `tie_to_parent`, which stops children from outliving this process.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from runtime.child_process import tie_to_parent

TOLLGATE = (sys.executable, "-P", "-c", "from control.operator.cli import main; main()")
_SETTINGS = {"TOLLGATE_EVENT_HOLDBACK_S": "2"}  # events can be listed after seconds, not after a minute
READY_TIMEOUT_S = 120
_OURS_ALONE = frozenset({signal.SIGINT})
"""The signals that the demo answers itself, though Ctrl-C reaches the whole process group."""


class ProductError(Exception):
    """A `tollgate` command failed. The message includes its last output."""


class Product:
    """`tollgate up` on free ports, with its own data directory."""

    def __init__(self, data: Path, settings: Mapping[str, str]) -> None:
        self.data = data
        self.log = data / "up.log"
        self.proxy = self.control = self.admin = ""
        self._process: Process | None = None
        self._launcher: Process | None = None
        self._launcher_is_stopping = False
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        self._environment = {**ours, **_SETTINGS, **settings}

    async def start(self) -> str:
        """Start it and return its `ready` line."""
        ports = ("--proxy-port", "0", "--control-port", "0", "--admin-port", "0", "--workers", "2")
        with self.log.open("wb") as log:
            self._process = await self._spawn("up", *ports, "--data", str(self.data), stderr=log.fileno())
        assert self._process.stdout is not None
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = (await self._process.stdout.readline()).decode().strip()
        if not line.startswith("ready "):
            raise ProductError("`tollgate up` did not become ready")
        urls = dict(word.split("=", 1) for word in line.split()[1:])
        self.proxy = urls["proxy"]
        self.control = urls["control"]
        self.admin = urls["admin"]
        return line

    async def launch(self, api_key: str, *arguments: str) -> str:
        """Start `tollgate launcher` with these arguments and return its `ready` line."""
        with self.log.open("ab") as log:
            self._launcher = await self._spawn(
                "launcher", "--url", self.control, *arguments, stderr=log.fileno(), api_key=api_key
            )
        assert self._launcher.stdout is not None
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = (await self._launcher.stdout.readline()).decode().strip()
        if not line.startswith("ready"):
            raise ProductError("`tollgate launcher` did not become ready")
        return line

    def stop_launcher(self) -> None:
        """Send the launcher SIGTERM, once: at the second one it would not drain. It drains beside what follows."""
        if self._launcher is not None and not self._launcher_is_stopping:
            self._launcher_is_stopping = True
            _terminate(self._launcher)

    async def stop(self) -> int:
        """Wait for the launcher, then send SIGTERM; returns the exit status, 0 if all ended well."""
        self.stop_launcher()
        if self._launcher is not None and await self._launcher.wait():
            raise ProductError(f"`tollgate launcher` ended with {self._launcher.returncode}")
        if self._process is None:
            return 0
        _terminate(self._process)
        return await self._process.wait()

    async def command(self, *arguments: str) -> Any:
        """Run a `tollgate` command on the same data directory; returns the JSON it prints."""
        process = await self._spawn(*arguments, "--data", str(self.data), stderr=PIPE)
        out, err = await process.communicate()
        if process.returncode != 0:
            raise ProductError(f"`tollgate {' '.join(arguments)}` ended with {process.returncode}: {err.decode()}")
        return json.loads(out)

    def last_log_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    async def _spawn(self, *arguments: str, stderr: int, api_key: str = "") -> Process:
        environment = self._environment | ({"TOLLGATE_API_KEY": api_key} if api_key else {})
        return await asyncio.create_subprocess_exec(
            *(*TOLLGATE, *arguments), env=environment, stdout=PIPE, stderr=stderr, preexec_fn=tie_to_parent(_OURS_ALONE)
        )


def _terminate(process: Process) -> None:
    """Send SIGTERM if it still runs."""
    if process.returncode is None:
        process.terminate()


class ManagementClient:
    """A client of the management API with one workspace key."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.api_key = api_key
        self._base_url = base_url
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"})

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Call the API; returns the answer's JSON. Raises ProductError unless the status is 200."""
        async with self._session.request(method, self._base_url + path, json=body, params=query or None) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise ProductError(f"{method} {path} answered {answer.status}: {text}")
            return json.loads(text)

    async def text(self, url: str) -> str:
        """The body of a page that needs no credential, such as the metrics."""
        async with self._session.get(url, headers={"Authorization": ""}) as answer:
            return await answer.text()

    async def close(self) -> None:
        await self._session.close()
