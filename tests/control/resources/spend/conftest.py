"""A real Redis, and control's client of what trees spend there."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from control.edges.redis.client import connect
from control.edges.redis.spend.spend_hashes import SpendHashes
from tests.control.plane import ControlPlane
from tests.control.resources.spend.spend_world import SpendWorld
from tests.redis_patience import be_patient
from tests.redis_server import RedisServer, private_redis


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with private_redis() as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator["redis.Redis"]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
async def hashes(redis_server: RedisServer) -> AsyncIterator[SpendHashes]:
    routed = connect(redis_server.url)
    yield SpendHashes(routed)
    await routed.aclose()


@pytest.fixture(params=["CASCADING", "INDEPENDENT"])
async def world(
    request: pytest.FixtureRequest, plane: ControlPlane, hashes: SpendHashes, redis_client: "redis.Redis"
) -> SpendWorld:
    return await SpendWorld.of(plane, hashes, redis_client, request.param)


@pytest.fixture
async def cascading(plane: ControlPlane, hashes: SpendHashes, redis_client: "redis.Redis") -> SpendWorld:
    return await SpendWorld.of(plane, hashes, redis_client, "CASCADING")
