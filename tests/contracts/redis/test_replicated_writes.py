"""A write counts once a replica has it, where its primary has one online. On a real primary with a real replica."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from redis.exceptions import NoPermissionError

from runtime.redis import replicated_writes
from runtime.redis.node_clients import RedisOptions
from runtime.redis.replicated_writes import ReplicatedWrites, UnconfirmedWriteError
from runtime.redis.routed import RoutedRedis
from runtime.redis.script import RedisScript
from tests.redis_server import RedisServer
from tests.redis_topologies import acknowledging, running_pair
from tests.waiting import eventually

INCREMENT = RedisScript("return redis.call('INCR', KEYS[1])")
BY_SCRIPT = ("+evalsha", "+script|load", "+incr")


class Pair:
    """A primary and its replica. `write` counts up on the primary."""

    def __init__(self, primary: RedisServer, replica: RedisServer, redis: RoutedRedis) -> None:
        self.primary = primary
        self.replica = replica
        self.writes = ReplicatedWrites(redis)

    async def write(self) -> int:
        count: int = await self.writes.run(INCREMENT, ["count"])
        return count

    def replicas(self) -> int:
        """Return how many replicas have acknowledged something to the primary."""
        return acknowledging(self.primary)


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with running_pair() as instance:
        yield instance


@pytest.fixture
async def pair(servers: tuple[RedisServer, RedisServer]) -> AsyncIterator[Pair]:
    async with aclosing(RoutedRedis(servers[0].url, RedisOptions(connections=4))) as redis:
        server_pair = Pair(*servers, redis)
        yield server_pair
        await server_pair.writes.close()


async def test_write_counts_when_a_replica_has_it(pair: Pair) -> None:
    for count in range(1, 20):
        assert await pair.write() == count
        assert pair.replica.run("GET", "count") == str(count).encode()


async def test_write_that_no_replica_confirms_does_not_count_until_one_does(pair: Pair) -> None:
    assert await pair.write() == 1
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(UnconfirmedWriteError, match="no replica had a write"):
            await pair.write()
    pair.replica.resume()
    assert await pair.write() == 4


async def test_write_counts_by_the_primary_s_word_after_its_replica_died(pair: Pair) -> None:
    assert await pair.write() == 1
    pair.replica.kill()
    await eventually(lambda: pair.replicas() == 0)
    assert [await pair.write() for _ in range(3)] == [2, 3, 4]


async def test_write_to_a_lone_primary_waits_for_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_writes, "WAIT_MS", 60_000)
    pair.replica.kill()
    await eventually(lambda: pair.replicas() == 0)
    began = time.monotonic()
    assert [await pair.write() for _ in range(3)] == [1, 2, 3]
    assert time.monotonic() - began < 60


async def test_replica_that_joins_confirms_from_then_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_writes, "ALONE_S", 0.0)
    pair.replica.kill()
    await eventually(lambda: pair.replicas() == 0)
    assert await pair.write() == 1
    pair.replica.start()
    await eventually(lambda: pair.replicas() == 1)
    assert await pair.write() == 2
    pair.replica.pause()
    with pytest.raises(UnconfirmedWriteError):
        await pair.write()
    pair.replica.resume()


async def test_replica_that_is_silent_for_long_is_not_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_writes, "SILENT_S", 2)
    pair.replica.pause()

    async def counts() -> bool:
        try:
            return await pair.write() > 0
        except UnconfirmedWriteError:
            return False

    await eventually(counts)
    pair.replica.resume()


@pytest.mark.parametrize("missing", ["info", "wait"])
async def test_missing_right_is_an_error(servers: tuple[RedisServer, RedisServer], missing: str) -> None:
    granted = {"+info", "+wait"} - {f"+{missing}"}
    servers[0].run("ACL", "SETUSER", "poor", "on", ">secret", "~*", *BY_SCRIPT, *granted)
    url = servers[0].url.replace("unix://", "unix://poor:secret@")
    async with aclosing(RoutedRedis(url, RedisOptions(connections=4))) as redis:
        writes = ReplicatedWrites(redis)
        with pytest.raises(NoPermissionError, match=missing):
            await writes.run(INCREMENT, ["count"])
        await writes.close()
