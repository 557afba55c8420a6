"""The product driver of all journeys: starts `tollgate` commands, finds and kills their processes, calls the HTTP API.

It imports only `tie_to_parent` from the product: journeys see what an operator sees.
"""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from runtime.child_process import tie_to_parent
from tests.ports import own_port

COMMAND = (str(Path(sys.executable).parent / "tollgate"),)


def spawn(
    words: Sequence[str], environment: Mapping[str, str], log: Path, command: Sequence[str] = COMMAND
) -> subprocess.Popen[str]:
    """Start a `tollgate` command in a session of its own, its standard error appended to `log`.

    It dies with the thread that started it, so that a test run that is killed leaves nothing running.
    """
    with log.open("a") as stderr:
        return subprocess.Popen(
            [*command, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            preexec_fn=tie_to_parent(),  # noqa: PLW1509
        )


def ready_line(process: subprocess.Popen[str], within_s: float = 120) -> str:
    """The first line on standard output; "" if none comes in time."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], within_s)
    return process.stdout.readline() if readable else ""


def ended(process: subprocess.Popen[str], within_s: float = 120) -> int:
    """The exit status, once the process has ended. TimeoutExpired after `within_s`."""
    status = process.wait(timeout=within_s)
    if process.stdout is not None:
        process.stdout.close()
    return status


METRICS_TOKEN = "metrics-token-of-the-tests"


class Product:
    """One `tollgate up` on free ports, over `workers` workers. Asynchronous requests run in `async_workers` others.

    It runs no trainer, unless `settings` say otherwise. `redis_url`: another Redis than its own.
    """

    def __init__(
        self,
        data: Path,
        workers: int = 2,
        settings: Mapping[str, str] | None = None,
        async_workers: int = 0,
        redis_url: str = "",
    ) -> None:
        self.data = data
        self.redis = ("--redis-url", redis_url) if redis_url else ()
        self.log = data.parent / f"{data.name}.log"
        self.workers = workers
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        self.environment |= {"TOLLGATE_EGRESS_ALLOW": "127.0.0.0/8", "TOLLGATE_EVENT_HOLDBACK_S": "1"}
        self.environment["TOLLGATE_REDIS_TIMEOUT_S"] = "1"  # tests beside tests: processes wait for a CPU
        self.environment |= {"TOLLGATE_ASYNC_WORKERS": str(async_workers), "TOLLGATE_TRAINING_BACKEND": "off"}
        self.environment |= {
            "TOLLGATE_METRICS_TOKEN": METRICS_TOKEN,
            "TOLLGATE_PORTAL_COST": "1",
            "TOLLGATE_PORTAL_KEYS": "1",
        }
        self.environment |= settings or {}
        self.program: Sequence[str] = COMMAND
        names = ("proxy", "control", "admin")
        self.ports = tuple(word for name in names for word in (f"--{name}-port", str(own_port())))
        self.proxy = self.control = self.admin = ""
        self._up: subprocess.Popen[str] | None = None

    @property
    def up(self) -> subprocess.Popen[str]:
        assert self._up is not None, "not started"
        return self._up

    @property
    def is_running(self) -> bool:
        return self._up is not None and self._up.poll() is None

    def launch(self) -> subprocess.Popen[str]:
        """Start it without waiting until it is ready."""
        words = ("up", "--data", str(self.data), "--workers", str(self.workers), *self.ports, *self.redis)
        self._up = spawn(words, self.environment, self.log, self.program)
        return self._up

    def start(self) -> str:
        """Start it and return its `ready` line."""
        line = ready_line(self.launch())
        assert line.startswith("ready "), f"up did not get ready: {line!r}\n{self.log_tail()}"
        urls = dict(word.split("=", 1) for word in line.split()[1:])
        self.proxy = urls["proxy"]
        self.control = urls["control"]
        self.admin = urls["admin"]
        return line

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.up.terminate()
        return self.ended(120)

    def kill(self) -> None:
        """Send SIGKILL, as the out-of-memory killer would. Does nothing if the process has ended."""
        if self._up is not None:
            self._up.kill()
            self.ended(120)

    def ended(self, within_s: float) -> int:
        """The exit status, once it has ended."""
        return ended(self.up, within_s)

    def command(self, *arguments: str) -> Any:
        """Run a `tollgate` command on this data directory. Return the printed JSON; several lines become a list."""
        result = self.run(*arguments, "--data", str(self.data))
        assert result.returncode == 0, result.stderr
        values = [json.loads(line) for line in result.stdout.splitlines()]
        return values[0] if len(values) == 1 else values

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.program, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def processes(self, command_part: str = "") -> list[int]:
        """The pids of all running processes of this `up` whose command line contains `command_part`."""
        return [pid for pid, _ in self._processes(command_part)]

    def incarnations(self) -> list[str]:
        """List the incarnations of the running workers, which name their journals."""
        return [line.split()[-1] for _, line in self._processes("-m proxy.worker ")]

    def _processes(self, command_part: str) -> list[tuple[int, str]]:
        lines = [(pid, _command_line(pid)) for pid in _pids() if _group(pid) == self.up.pid]
        return [(pid, line) for pid, line in lines if command_part in line]

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def is_free(url: str) -> bool:
    """Return whether a new listener could bind the address of `url`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((urlsplit(url).hostname, urlsplit(url).port))
        except OSError:
            return False
    return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _group(pid: int) -> int:
    """The process group of `pid`; 0 if the process has ended or is a zombie."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(group)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


class HasControl(Protocol):
    """A source of the management API's URL, which may change from start to start."""

    @property
    def control(self) -> str: ...


class OperatorClient:
    """The operator's HTTP client, with one workspace key."""

    def __init__(self, session: aiohttp.ClientSession, product: HasControl, api_key: str) -> None:
        self._session = session
        self._product = product
        self.api_key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"}

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        url = self._product.control + path
        async with self._session.request(method, url, json=body, params=query, headers=self._headers) as answer:
            return answer.status, await answer.json()

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        status, answer = await self.ask(method, path, body, **query)
        while status == 429:  # a key may make a hundred requests a second
            await asyncio.sleep(answer["retry_after"])
            status, answer = await self.ask(method, path, body, **query)
        assert status == 200, f"{method} {path}: {status} {answer}"
        return answer

    async def model(self, name: str, replica: str) -> str:
        """Create a platform model with one deployment and one replica, in production; return its id."""
        path = "/v1/models"
        id = (await self.call("POST", path, {"name": name}))["id"]
        deployment = (await self.call("POST", f"{path}/{id}/deployments", {"name": "d"}))["id"]
        await self.call("PUT", f"{path}/{id}/deployments/{deployment}/replicas", {"replicas": [replica]})
        await self.call("PUT", f"{path}/{id}/environments/production", {"deployment_id": deployment})
        return str(id)

    async def endpoint(self, slug: str, model_id: str) -> str:
        targets = [{"provider": "PLATFORM", "model_id": model_id, "target_model": "upstream-name"}]
        return str((await self.call("POST", "/v1/gateway/endpoints", {"slug": slug, "targets": targets}))["id"])

    async def group(self, entity: str, models: list[Any], **hierarchy: str) -> str:
        body = {"metadata": {"external_entity_id": entity}, "models": models, "hierarchy": hierarchy}
        return str((await self.call("POST", "/v1/gateway/groups", body))["id"])

    async def key(self, group_id: str) -> str:
        return str((await self.call("POST", f"/v1/gateway/groups/{group_id}/api_keys", {}))["api_key"])

    async def events(self, entity: str, start_time: str, limit: int = 2, **more: str) -> list[Any]:
        """All events of one group, over all pages."""
        query = {"start_time": start_time, "external_entity_ids": entity, "limit": limit, **more}
        page = await self.call("GET", "/v1/gateway/events", **query)
        items = list(page["items"])
        while page["pagination"]["has_more"]:
            page = await self.call("GET", "/v1/gateway/events", cursor=page["pagination"]["cursor"])
            items += page["items"]
        return items


def models(slug: str, *limits: tuple[str, str, int]) -> list[Any]:
    """A group's `models` with one slug and these limits: (type, unit, threshold)."""
    all_limits = [{"type": type, "unit": unit, "threshold": threshold} for type, unit, threshold in limits]
    rates = [limit for limit in all_limits if limit["unit"] in ("SECOND", "MINUTE")]
    return [{"slug": slug, "rate_limits": rates, "usage_limits": [one for one in all_limits if one not in rates]}]
