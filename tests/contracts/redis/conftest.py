"""The counters as tests see them: the fake, and the real scripts on each redis-server of this machine."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
import redis

from tests.contracts.redis.counters_world import World, fake_world, redis_world
from tests.redis_patience import be_patient
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis

Servers = Callable[[str], RedisServer]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """A running server per binary, started on first use."""
    with ExitStack() as stack:
        yield cache(lambda binary: stack.enter_context(private_redis(binary=binary)))


@pytest.fixture(params=["twin", *REDIS_BINARIES])
async def world(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[World]:
    if request.param == "twin":
        yield fake_world()
        return
    server = servers(request.param)
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        new_world = redis_world(server.url, client)
        await new_world.counters.start()
        yield new_world
        await new_world.counters.close()
