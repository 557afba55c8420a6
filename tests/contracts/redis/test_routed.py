"""Commands reach the server that has their key: while slots move, after a fail-over, past servers that hang.

On a real cluster and on real sentinels.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from runtime.redis.node_clients import RedisOptions
from runtime.redis.routed import Keyed, RoutedRedis
from runtime.redis.script import RedisScript
from tests.ports import HOST
from tests.redis_cluster import CLUSTER_BINARY, MISSING, RedisCluster, running_cluster
from tests.redis_sentinel import SentinelSet, running_sentinels
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
DEADLINE_S = 0.25
"""Deadline below any time-out of redis-py: only the caller's cancellation tells of a server that hangs."""
INCREMENT = RedisScript("return redis.call('INCR', KEYS[1])")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with running_cluster() as instance:
        yield instance


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelSet]:
    with running_sentinels() as instance:
        yield instance


def routed(url: str) -> aclosing[RoutedRedis]:
    return aclosing(RoutedRedis(url, RedisOptions(connections=8)))


async def succeeds(redis: RoutedRedis, key: str) -> bool:
    try:
        async with asyncio.timeout(DEADLINE_S):
            await redis.at(key, lambda server: server.incr(key))
    except (RedisError, OSError, TimeoutError):
        return False
    return True


def keys_of(place: int, count: int) -> list[str]:
    """Return keys of different slots of the primary in this place."""
    first = place * 16_384 // 3 + 1000
    key_of_slot = dict.fromkeys(range(first, first + count), "")
    for number in range(1_000_000):
        if not key_of_slot.get(slot := key_slot(f"k{number}".encode()), "-"):
            key_of_slot[slot] = f"k{number}"
            if all(key_of_slot.values()):
                break
    return list(key_of_slot.values())


def incrementing(key: str) -> Keyed:
    return key, lambda server: server.incr(key)


async def test_commands_follow_a_slot_while_it_moves(cluster: RedisCluster) -> None:
    (key,) = keys_of(0, 1)
    slot = key_slot(key.encode())
    target = cluster.owner_of(keys_of(1, 1)[0])
    async with routed(cluster.url) as redis:
        (there,) = keys_of(1, 1)
        await asyncio.gather(*(redis.each([incrementing(there)]) for _ in range(8)))  # several connections
        source = cluster.begin_move(slot, target)  # the key does not exist: ASK
        before = await asyncio.gather(*(redis.at(key, lambda server: server.incr(key)) for _ in range(20)))
        assert sorted(before) == list(range(1, 21))
        assert await redis.each([incrementing(key)] * 3) == [21, 22, 23]
        assert await INCREMENT.run(redis, [key]) == 24
        cluster.end_move(slot, source, target)  # MOVED
        assert await redis.at(key, lambda server: server.incr(key)) == 25
        assert await redis.each([incrementing(key)] * 3) == [26, 27, 28]
    cluster.move(slot, source)


async def test_redirects_disturb_no_command_on_another_node(cluster: RedisCluster) -> None:
    (staying, *moving) = keys_of(0, 13)
    (there,) = keys_of(1, 1)
    (elsewhere,) = keys_of(2, 1)
    async with routed(cluster.url) as redis:
        await redis.data_servers()
        command = asyncio.create_task(redis.at(elsewhere, lambda server: server.blpop([elsewhere], timeout=20)))
        for key in moving:
            cluster.move(key_slot(key.encode()), cluster.owner_of(there))
        for key in moving:
            assert await redis.at(*incrementing(key)) == 1
        await redis.at(elsewhere, lambda server: server.rpush(elsewhere, "x"))
        assert (await command)[1] == b"x"
    for key in moving:
        cluster.move(key_slot(key.encode()), cluster.owner_of(staying))


async def test_script_with_keys_on_both_sides_waits_until_its_slot_has_moved(cluster: RedisCluster) -> None:
    slot = key_slot(b"ws")
    target = next(node for node in map(cluster.owner, (0, 16_383)) if node is not cluster.owner_of("ws"))
    count = RedisScript("return redis.call('HLEN', KEYS[1] .. 'one')")
    async with routed(cluster.url) as redis:
        await redis.at("{ws}one", lambda server: server.hset("{ws}one", "a", "b"))
        source = cluster.begin_move(slot, target)
        command = asyncio.create_task(count.run(redis, ["{ws}", "{ws}missing"]))
        ended, _ = await asyncio.wait([command], timeout=0.3)
        assert not ended
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, source, target)
        assert await command == 1
    cluster.move(slot, source)


@asynccontextmanager
async def out_of_service(cluster: RedisCluster, key: str, hangs: bool) -> AsyncIterator[None]:
    """Stop the primary of a key. Afterwards it is a replica."""
    primary = cluster.owner_of(key)
    primary.server.pause() if hangs else primary.server.kill()
    try:
        yield
    finally:
        primary.server.resume() if hangs else primary.server.start()
    await eventually(lambda: primary.run("ROLE")[0] == b"slave" and primary.run("ROLE")[3] == b"connected")


@pytest.mark.parametrize("hangs", [False, True])
async def test_commands_reach_the_replica_that_replaces_a_primary(cluster: RedisCluster, hangs: bool) -> None:
    key = "failing"
    async with routed(cluster.url) as redis:
        assert await succeeds(redis, key)
        async with out_of_service(cluster, key, hangs):
            await eventually(lambda: succeeds(redis, key))
        assert await succeeds(redis, key)


async def test_cluster_is_used_when_no_host_of_the_url_lives(cluster: RedisCluster) -> None:
    key = "lonely"
    async with routed(f"redis+cluster://{HOST}:{cluster.owner_of(key).port}") as redis:
        assert await succeeds(redis, key)
        async with out_of_service(cluster, key, hangs=False):
            await eventually(lambda: succeeds(redis, key))


async def test_new_primary_of_sentinels_is_used_though_a_sentinel_hangs(sentinels: SentinelSet) -> None:
    first = next(iter(sentinels.sentinels.values()))
    async with routed(sentinels.url) as redis:
        assert await succeeds(redis, "key")
        old_port = sentinels.primary_port
        old = sentinels.primary
        old.kill()
        await eventually(lambda: succeeds(redis, "key"))
        first.pause()
        try:
            async with routed(sentinels.url) as another:
                await eventually(lambda: succeeds(another, "key"))
        finally:
            first.resume()
        old.start()
        assert sentinels.primary_port != old_port


@pytest.mark.soak  # sentinels that have just replaced a primary replace none for six seconds: it needs its own
async def test_planned_fail_over_of_sentinels_is_followed() -> None:
    with running_sentinels() as sentinels:
        async with routed(sentinels.url) as redis:
            assert await succeeds(redis, "key")
            await asyncio.to_thread(sentinels.fail_over)

            async def is_followed() -> bool:  # the old primary takes writes until sentinels tell it
                (node,) = await redis.data_servers()
                return await succeeds(redis, "key") and node.name == f"{HOST}:{sentinels.primary_port}"

            await eventually(is_followed, every_s=0.1)


async def test_unknown_service_is_named(sentinels: SentinelSet) -> None:
    async with routed(f"redis+sentinel://{sentinels.hosts}/other") as redis:
        with pytest.raises(RedisError, match="no sentinel of the URL names a primary of other"):
            await redis.data_servers()
