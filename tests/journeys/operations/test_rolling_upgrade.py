"""The last release's control and proxy beside the next one's, on one PostgreSQL, and the way back by a backup.

Nothing is refused, lost or doubled.

The last release's tree runs with this environment's packages.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.journeys.operations.last_release import ROOT, last_tree
from tests.journeys.product import OperatorClient, ended, spawn
from tests.ports import own_port
from tests.postgres_server import MISSING, PostgresServer, find_binaries, running_postgres
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

__all__ = ["last_tree"]
DATABASE = "upgrade"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_binaries() is None, reason=MISSING),
    pytest.mark.skipif(not REDIS_BINARIES, reason="no redis-server"),
]


@dataclass
class Installation:
    """Processes of two versions that share a database and a Redis."""

    directory: Path
    settings: dict[str, str]
    database: PostgresServer
    running: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def environment(self, tree: Path) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        return environment | self.settings | {"PYTHONPATH": str(tree), "PYTHONWARNINGS": "default"}

    def start(self, name: str, tree: Path, *words: str, **settings: str) -> None:
        environment = self.environment(tree) | settings
        self.running[name] = spawn(words, environment, self.log(name), (sys.executable, "-P", "-m"))

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        process.terminate()
        assert ended(process) == 0, self.log(name).read_text()[-2000:]

    async def control(self, session: aiohttp.ClientSession, name: str, tree: Path, port: int = 0) -> str:
        """Start a control process; return its URL once it is ready. `port`: where an earlier one was."""
        port = port or own_port()
        self.start(name, tree, "control", "--control-port", str(port))
        await self._ready(session, name, port)
        return f"http://127.0.0.1:{port}"

    async def proxy(self, session: aiohttp.ClientSession, name: str, tree: Path, control: str) -> str:
        """Start a proxy of that control; return its URL once it is ready. The same name has the same data."""
        port = own_port()
        admin = own_port()
        ports = ("--proxy-port", str(port), "--admin-port", str(admin))
        words = ("proxy", "--data", str(self.directory / name), "--workers", "1", *ports)
        self.start(name, tree, *words, TOLLGATE_CONTROL_URL=control)
        await self._ready(session, name, admin)
        return f"http://127.0.0.1:{port}"

    async def _ready(self, session: aiohttp.ClientSession, name: str, port: int) -> None:
        async def look() -> bool:
            assert self.running[name].poll() is None, self.log(name).read_text()[-2000:]
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectionError:
                return False

        await eventually(look, lambda: f"{name} is ready: {self.log(name).read_text()[-2000:]}", 60, 0.05)

    def back_up(self) -> Path:
        dump = self.directory / "before.dump"
        self.database.tool("pg_dump", "--format=custom", f"--file={dump}", DATABASE)
        return dump

    async def restore(self, dump: Path) -> None:
        await self.database.drop_database(DATABASE)
        await self.database.create_database(DATABASE, "template0")
        self.database.tool("pg_restore", f"--dbname={DATABASE}", dump)

    def command(self, tree: Path, *words: str) -> str:
        line = [sys.executable, "-P", "-m", "control.operator.cli", *words]
        result = subprocess.run(line, env=self.environment(tree), capture_output=True, text=True, check=True)
        return result.stdout

    def file_of_control(self, tree: Path) -> str:
        line = [sys.executable, "-P", "-c", "import control; print(control.__file__)"]
        result = subprocess.run(line, env=self.environment(tree), capture_output=True, text=True, check=True)
        return result.stdout.strip()

    def kill_all(self) -> None:
        for process in self.running.values():
            process.kill()
            ended(process)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with private_redis() as server:
        yield server


@pytest.fixture
async def installation(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Installation]:
    with running_postgres() as server:
        settings = {
            "TOLLGATE_DATABASE_URL": await server.create_database(DATABASE),
            "TOLLGATE_REDIS_URL": redis_server.url,
            "TOLLGATE_INTERNAL_TOKEN": "internal-token-of-the-upgrade-test",
            "TOLLGATE_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
            "TOLLGATE_EGRESS_ALLOW": "127.0.0.0/8",
            "TOLLGATE_EVENT_HOLDBACK_S": "1",
            "TOLLGATE_REDIS_TIMEOUT_S": "1",
            "TOLLGATE_READY_GRACE_S": "0",
        }
        new_installation = Installation(tmp_path, settings, server)
        try:
            yield new_installation
        finally:
            new_installation.kill_all()


@dataclass
class Place:
    """The address at which an operator's client finds control."""

    control: str


class Calls:
    """Calls through slugs, and the request ids of those that were answered."""

    def __init__(self, session: aiohttp.ClientSession, slug: str) -> None:
        self._session = session
        self._slug = slug
        self.answered: list[str] = []

    async def make(self, proxy: str, api_key: str, count: int) -> None:
        """Every call must be answered 200."""
        for _ in range(count):
            id = f"call-{len(self.answered)}"
            headers = {"Authorization": f"Bearer {api_key}", "x-request-id": id}
            body = {"model": self._slug, "messages": [{"role": "user", "content": "Hello"}]}
            async with self._session.post(f"{proxy}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
            self.answered.append(id)

    async def all_listed_by(self, operator: OperatorClient, began: str) -> None:
        """Wait until control lists the event of each call, and none twice."""

        async def look() -> bool:
            listed = [one["requestId"] for one in await operator.events("customer", began, limit=70)]
            assert len(listed) == len(set(listed))
            return sorted(listed) == sorted(self.answered)

        await eventually(look, f"{len(self.answered)} events", every_s=0.2)


async def test_both_versions_serve_and_bill_beside_each_other(
    installation: Installation, last_tree: Path, session: aiohttp.ClientSession, upstream: ScriptedUpstream
) -> None:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assert installation.file_of_control(last_tree) == str(last_tree / "control" / "__init__.py")
    old_control = await installation.control(session, "old-control", last_tree)
    api_key = workspace_key(installation, last_tree)
    old = OperatorClient(session, Place(old_control), api_key)
    await old.endpoint("acme/chat", await old.model("chat", upstream.url))
    group = await old.group("customer", [{"slug": "acme/chat"}])
    first_key = await old.key(group)
    calls = Calls(session, "acme/chat")
    old_proxy = await installation.proxy(session, "old-proxy", last_tree, old_control)
    await calls.make(old_proxy, first_key, 5)
    await calls.all_listed_by(old, began)

    backup = installation.back_up()

    # The next version's control migrates; the last one's goes on with the new schema, and so does its proxy.
    calling = asyncio.create_task(calls.make(old_proxy, first_key, 300))
    new_control = await installation.control(session, "new-control", ROOT)
    new = OperatorClient(session, Place(new_control), api_key)
    await calling
    second_key = await new.key(group)  # made by the one, used through the other
    await eventually(lambda: works(session, old_proxy, second_key), "the key of the new control works", every_s=0.1)
    await calls.make(old_proxy, second_key, 5)
    for operator in (old, new):
        await calls.all_listed_by(operator, began)

    # A proxy of the next version at the last one's control, and the other way round.
    new_proxy = await installation.proxy(session, "new-proxy", ROOT, old_control)
    third_key = await old.key(group)
    await eventually(lambda: works(session, new_proxy, third_key), "the key of the old control works", every_s=0.1)
    await calls.make(new_proxy, third_key, 5)
    installation.stop("old-proxy")
    old_proxy = await installation.proxy(session, "old-proxy", last_tree, new_control)
    await calls.make(old_proxy, third_key, 5)
    for operator in (old, new):
        await calls.all_listed_by(operator, began)

    # The last release's processes stop. What they left is served by the next one's.
    installation.stop("old-control")
    installation.stop("old-proxy")
    installation.stop("new-proxy")
    new_proxy = await installation.proxy(session, "new-proxy", ROOT, new_control)
    await calls.make(new_proxy, first_key, 5)
    await calls.all_listed_by(new, began)

    # Back: the backup is restored while the proxy serves, and the last release's control takes what was shipped since.
    installation.stop("new-control")
    await calls.make(new_proxy, first_key, 5)
    await installation.restore(backup)
    control = await installation.control(session, "restored-control", last_tree, port_of(new_control))
    await calls.make(new_proxy, first_key, 5)
    restored = OperatorClient(session, Place(control), api_key)
    old_proxy = await installation.proxy(session, "old-proxy", last_tree, control)  # its journal has most of the events
    await calls.make(old_proxy, first_key, 5)
    await calls.all_listed_by(restored, began)
    await eventually(lambda: is_unknown(session, new_proxy, second_key), "a key made after the backup is gone", 60, 0.1)
    installation.stop("new-proxy")
    last_proxy = await installation.proxy(session, "new-proxy", last_tree, control)
    await calls.make(last_proxy, first_key, 5)
    await calls.all_listed_by(restored, began)


def workspace_key(installation: Installation, tree: Path) -> str:
    created: Any = json.loads(installation.command(tree, "workspace", "create", "acme", "--prefix", "acme"))
    return str(created["api_key"])


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def is_unknown(session: aiohttp.ClientSession, proxy: str, api_key: str) -> bool:
    async with session.get(f"{proxy}/v1/models", headers={"Authorization": f"Bearer {api_key}"}) as answer:
        return answer.status == 403


async def works(session: aiohttp.ClientSession, proxy: str, api_key: str) -> bool:
    """Return whether the proxy knows a key: the list of its models says so, and is not billed."""
    async with session.get(f"{proxy}/v1/models", headers={"Authorization": f"Bearer {api_key}"}) as answer:
        return answer.status == 200
