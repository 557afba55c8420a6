"""Backup and restore as docs/operating.md describes them: changes after the backup are lost, events are not."""

import contextlib
import json
import secrets
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import OperatorClient, Product, ended, models, spawn
from tests.ports import own_port
from tests.postgres_server import MISSING, PostgresServer, find_binaries, running_postgres
from tests.redis_server import private_redis
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)


def back_up(database: Path, copy: Path) -> None:
    """`sqlite3 control.db ".backup COPY"`, while everything runs."""
    with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def restore(copy: Path, database: Path) -> None:
    """Replace the database by the copy, with control stopped, and remove the write-ahead log of the old one."""
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    database.unlink()
    database.write_bytes(copy.read_bytes())


class RestoreScenario:
    """Changes and calls before and after a backup. `answered`: answered calls by key prefix; each is one event."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.group = self.kept_key = self.revoked_key = self.created_after_backup = ""
        self.answered: Counter[str] = Counter()

    async def back_up_between_changes(self, save: Callable[[], None]) -> None:
        stage = self.stage
        operator = self.stage.operator
        await operator.endpoint(stage.slug, await operator.model(stage.name, stage.upstream.url))
        self.group = await operator.group(stage.name, models(stage.slug, ("REQUEST", "DAY", 1000)))
        self.kept_key = await operator.key(self.group)
        self.revoked_key = await operator.key(self.group)
        await self.call(self.kept_key, 2)
        await self.call(self.revoked_key, 1)
        await operator.call("DELETE", f"/v1/gateway/groups/{self.group}/api_keys/{self.revoked_key.split('.')[0]}")
        await self.until_refused(self.revoked_key)
        await stage.events_of(stage.name, self.answered.total())
        save()
        self.created_after_backup = await operator.key(self.group)
        await self.call(self.created_after_backup, 4)
        await self.call(self.kept_key, 3)
        await operator.call(
            "PATCH", f"/v1/gateway/groups/{self.group}", {"models": models(stage.slug, ("REQUEST", "DAY", 7))}
        )
        await stage.events_of(stage.name, self.answered.total())

    async def call(self, key: str, times: int) -> None:
        for _ in range(times):
            assert await self.status_of(key) == 200

    async def status_of(self, key: str) -> int:
        try:
            await self.stage.ask(key)
        except openai.APIStatusError as error:
            return error.status_code
        self.answered[key.split(".")[0]] += 1
        return 200

    async def until_refused(self, key: str) -> None:
        """Call until the proxy refuses the key."""

        async def refused() -> bool:
            return await self.status_of(key) == 403

        await self.stage.until(refused, "the key is refused")

    async def assert_backup_applies_and_no_event_is_lost(self) -> None:
        stage = self.stage
        await self.until_refused(self.created_after_backup)
        assert await self.status_of(self.revoked_key) == 403
        assert await self.status_of(self.kept_key) == 200, "the limit set after the backup no longer applies"
        events = await stage.events_of(stage.name, self.answered.total())
        keys = [event["idempotencyKey"] for event in events]
        assert len(keys) == len(set(keys))
        assert Counter(event["apiKeyPrefix"] for event in events) == self.answered


async def test_restore_loses_later_changes_but_no_event(killable_stage: Stage, tmp_path: Path) -> None:
    product = killable_stage.product
    database = product.data / "control.db"
    scenario = RestoreScenario(killable_stage)
    copy = tmp_path / "backup.db"
    await scenario.back_up_between_changes(lambda: back_up(database, copy))
    assert product.stop() == 0, product.log_tail()
    restore(copy, database)
    product.start()
    await scenario.assert_backup_applies_and_no_event_is_lost()
    usage = await killable_stage.operator.call("GET", f"/v1/gateway/groups/{scenario.group}/usage")
    assert usage["items"][0]["current_usage"] == scenario.answered.total(), (
        "the counters were not restored, and nothing is counted twice"
    )
    await eventually(lambda: "its database was restored or replaced" in product.log.read_text(), product.log_tail)


class Planes:
    """`tollgate control` and `tollgate proxy` as on two machines, with the members of `Product` that a stage needs."""

    def __init__(self, folder: Path, redis_url: str, database_url: str = "") -> None:
        self.data = folder / "control"
        self.log = folder / "planes.log"
        ports = [str(own_port()) for _ in range(3)]
        self.control, self.proxy, self.admin = (f"http://127.0.0.1:{port}" for port in ports)
        self._ports = ports
        self._product = Product(folder / "none")
        if database_url:
            self._product.environment["TOLLGATE_DATABASE_URL"] = database_url
        self._environment = self._product.environment | {
            "TOLLGATE_REDIS_URL": redis_url,
            "TOLLGATE_INTERNAL_TOKEN": secrets.token_urlsafe(24),
            "TOLLGATE_SECRET_KEY": b64encode(secrets.token_bytes(32)).decode(),
            "TOLLGATE_CONTROL_URL": self.control,
            "TOLLGATE_REFRESH_INTERVAL_S": "1",
        }
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start_control(self) -> None:
        self._start("control", "--data", str(self.data), "--control-port", self._ports[0])

    def start_proxy(self) -> None:
        ports = ("--proxy-port", self._ports[1], "--admin-port", self._ports[2])
        self._start("proxy", "--data", str(self.data.parent / "proxy"), *ports)

    def _start(self, plane: str, *words: str) -> None:
        self._running[plane] = spawn((plane, *words), self._environment, self.log)

    def stop(self, plane: str) -> None:
        process = self._running.pop(plane)
        process.terminate()
        ended(process)

    def command(self, *arguments: str) -> Any:
        return self._product.command(*arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._product.run(*arguments)

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def stop_all(self) -> None:
        for plane in list(self._running):
            self.stop(plane)


@contextlib.contextmanager
def planes(folder: Path, database_url: str = "") -> Iterator[Planes]:
    with private_redis() as redis:
        running = Planes(folder, redis.url, database_url)
        try:
            yield running
        finally:
            running.stop_all()


@pytest.fixture
async def separate_planes(
    tmp_path: Path, session: aiohttp.ClientSession, upstream: ScriptedUpstream
) -> AsyncIterator[Stage]:
    """A stage on two planes that run separately."""
    with planes(tmp_path) as running:
        workspace = Product(running.data).command("workspace", "create", "acme", "--prefix", "acme")
        yield await stage_on(running, workspace["api_key"], session, upstream)


async def stage_on(running: Planes, api_key: str, session: aiohttp.ClientSession, upstream: ScriptedUpstream) -> Stage:
    """Start both planes, and wait until they are ready."""
    running.start_control()
    running.start_proxy()
    operator: Any = OperatorClient(session, running, api_key)
    product: Any = running
    stage = Stage(product, operator, session, upstream, "own", "2000-01-01T00:00:00Z")
    await stage.until(lambda: is_ready(session, running.admin), "the proxy is ready")
    return stage


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url + "/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientConnectionError:
        return False


CREATE_WORKSPACES = """
import sys
from control.operator.cli import tollgate
for name in sys.argv[1:]:
    tollgate.main(["workspace", "create", name, "--prefix", name], standalone_mode=False)
"""


def create_workspaces(running: Planes, names: list[str]) -> None:
    """Run `tollgate workspace create` for each name, in one process, because starting is most of a command's time."""
    environment = Product(running.data).environment | {"TOLLGATE_DATA": str(running.data)}
    subprocess.run([sys.executable, "-c", CREATE_WORKSPACES, *names], env=environment, check=True, timeout=60)


@pytest.mark.parametrize(
    "rounds", [(2, 12), pytest.param((0, 1, 2, 12), marks=pytest.mark.soak)], ids=["quick", "long"]
)
async def test_running_proxy_reloads_all_policy_after_a_restore(
    separate_planes: Stage, tmp_path: Path, rounds: tuple[int, ...]
) -> None:
    """The restored database may be behind the proxy's revision, at it, or past it with different changes.

    Behind it, it is in the test before too.
    """
    running: Any = separate_planes.product
    database = running.data / "control.db"
    for written_since in rounds:
        separate_planes.name = f"written-{written_since}"
        scenario = RestoreScenario(separate_planes)
        copy = tmp_path / f"backup-{written_since}.db"
        await scenario.back_up_between_changes(partial(back_up, database, copy))
        running.stop("control")
        restore(copy, database)
        create_workspaces(running, [f"new-{written_since}-{number}" for number in range(written_since)])
        running.start_control()
        await separate_planes.control_is_back()
        await scenario.assert_backup_applies_and_no_event_is_lost()


@contextlib.contextmanager
def one_database() -> Iterator[tuple[PostgresServer, str]]:
    if find_binaries() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        yield server, server.url("tollgate")


@pytest.mark.soak
async def test_lost_postgresql_database_is_restored_from_a_dump_without_losing_an_event(
    tmp_path: Path, session: aiohttp.ClientSession, upstream: ScriptedUpstream
) -> None:
    """`pg_dump` while everything runs; the database is dropped under a running control; `pg_restore` into a new one."""
    dump = tmp_path / "tollgate.dump"
    with one_database() as (server, url):
        await server.create_database("tollgate")
        with planes(tmp_path, url) as running:
            created = running.run("workspace", "create", "acme", "--prefix", "acme", "--database-url", url)
            api_key = json.loads(created.stdout)["api_key"]
            scenario = RestoreScenario(await stage_on(running, api_key, session, upstream))
            await scenario.back_up_between_changes(
                lambda: server.tool("pg_dump", "--format=custom", f"--file={dump}", "tollgate")
            )
            await server.drop_database("tollgate")
            assert await scenario.status_of(scenario.kept_key) == 429, "the last policy applies without the database"
            running.stop("control")
            await server.create_database("tollgate", "template0")
            server.tool("pg_restore", "--dbname=tollgate", dump)
            running.start_control()
            await scenario.stage.control_is_back()
            await scenario.assert_backup_applies_and_no_event_is_lost()
