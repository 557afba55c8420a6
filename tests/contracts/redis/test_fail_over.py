"""All parts that use redis-py go on: after the death of a primary, and while a slot moves."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from control.edges.redis.client import connect
from control.edges.redis.hints import HintPublisher
from control.edges.redis.load_book import RedisLoadBook
from control.edges.redis.throttle_windows import RedisWindows
from control.edges.redis.usage_counters import UsageCounters
from control.errors import UsageUnavailableError
from control.records.usage import Bucket, Meter
from control.throttle import Allowance
from policy.deployment_load import DeploymentLoad
from policy.limits.kinds import LimitType, Unit
from policy.limits.windows import day_of
from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import DeploymentRef, NewRequest, RetryRules, Submission, Succeeded
from proxy.async_requests.states import Status
from proxy.edges.policy.supervisor.hints import CHANNEL, HintSubscriber
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from runtime.redis.routed import RoutedRedis
from tests.redis_cluster import CLUSTER_BINARY, MISSING, PATIENT_MS, RedisCluster, running_cluster
from tests.redis_sentinel import running_sentinels
from tests.redis_topologies import SEVERAL
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(CLUSTER_BINARY is None, reason=MISSING)
TAG = "died"
"""Hash tag of all keys here, so that they are on one primary."""
MOVES = 8
FEW = Allowance("few", 3, 600_000)
LOAD = DeploymentLoad("mdl", "dep", 3, 2, 1, 1_000, (), ())
DEPLOYMENT = DeploymentRef(TAG, "mdl", "dep")
BUCKET = Bucket(f"tg:{{{TAG}}}", "group")
METER = Meter(BUCKET, LimitType.REQUEST, Unit.DAY)


@dataclass
class Place:
    """`kill`: the primary of `TAG`, with SIGKILL."""

    url: str
    kill: Callable[[], None]


@contextmanager
def running(kind: str) -> Iterator[Place]:
    if kind == "cluster":
        with running_cluster() as cluster:
            yield Place(cluster.url, cluster.owner_of(TAG).server.kill)
    else:
        with running_sentinels() as sentinels:
            yield Place(sentinels.url, sentinels.primary.kill)


@dataclass
class Parts:
    """Users of Redis, as control and a proxy build them."""

    redis: RoutedRedis
    client: QueueClient

    def __post_init__(self) -> None:
        self.windows = RedisWindows(self.redis)
        self.usage = UsageCounters(self.redis)
        self.book = RedisLoadBook(self.redis)
        self.reader = RedisLoadBook(self.redis)
        self.requests = RedisRequestQueue(self.client, 10_000_000)
        self.attempts = RedisAttemptQueue(self.client, 600, 10_000_000)

    async def count_usage(self, requests: int) -> None:
        """Count as the proxy's scripts do, on the bucket's own key."""
        numbers = day_of(int(time.time() * 1000)).to_bytes(3, "little") + requests.to_bytes(7, "little")
        header = bytes(6) + numbers + bytes(7)
        await self.redis.at(BUCKET.key, lambda server: server.hset(BUCKET.key, BUCKET.group_id, header))

    async def usage_is(self, requests: int) -> bool:
        try:
            (usage_of_meter,) = await self.usage.used([METER])
            return usage_of_meter.amount == requests
        except UsageUnavailableError:
            return False

    async def is_refused_by_redis(self) -> bool:
        """Return whether Redis refuses, as the window is full. Not `admit`: it counts here while Redis is away."""
        try:
            async with asyncio.timeout(0.25):
                return await self.windows.ask(TAG, FEW) > 0
        except (RedisError, OSError, TimeoutError):
            return False

    async def loads_are_shared(self) -> bool:
        await self.book.report("a" * 16, [LOAD])
        return (await self.reader.loads(["dep"])).get("dep") is not None

    async def submit(self, id: str) -> bool:
        submission = Submission(b"{}", None, retries=RetryRules(3, 0, 0))
        try:
            await self.requests.submit(NewRequest(id, DEPLOYMENT, "/predict", submission), parks=False)
        except QueueUnavailableError:
            return False
        return True

    async def work(self) -> bool:
        """Run a request. False if there was none, or Redis is away."""
        try:
            attempt = await self.attempts.start(DEPLOYMENT, "holder")
            if attempt is None:
                return False
            while True:
                try:
                    return await self.attempts.finish(attempt.ref, Succeeded(0, 0))
                except QueueUnavailableError:
                    await asyncio.sleep(0.05)
        except QueueUnavailableError:
            return False

    async def succeeded(self, id: str) -> bool:
        try:
            state = await self.requests.state(TAG, id)
        except QueueUnavailableError:
            return False
        return state is not None and state.status is Status.SUCCEEDED


@asynccontextmanager
async def parts_at(url: str) -> AsyncIterator[Parts]:
    async with aclosing(connect(url)) as redis:
        client = QueueClient(url)
        try:
            yield Parts(redis, client)
        finally:
            await client.close()


@asynccontextmanager
async def hints_from(url: str) -> AsyncIterator[list[int | None]]:
    """Yield the hints that a subscriber has received so far."""
    received: list[int | None] = []
    subscriber = HintSubscriber(url, received.append)
    listening = asyncio.create_task(subscriber.run())
    try:
        await eventually(lambda: received)
        yield received
        await eventually(lambda: is_empty(subscriber.refusal()))
    finally:
        listening.cancel()
        await asyncio.wait([listening])
        await subscriber.close()


async def is_empty(text: Awaitable[str]) -> bool:
    return not await text


async def is_heard(publisher: HintPublisher, hints: list[int | None]) -> bool:
    """Publish a hint; return whether a subscriber gets it. A hint that is published while it is away is lost."""
    revision = 1 + max(hint or 0 for hint in hints)
    publisher.publish(revision)
    await asyncio.sleep(0.05)
    return revision in hints


async def done(parts: Parts, id: str) -> bool:
    await parts.work()
    return await parts.succeeded(id)


@pytest.mark.parametrize("kind", SEVERAL)
async def test_everything_goes_on_after_the_death_of_a_primary(kind: str) -> None:
    with running(kind) as place:
        async with parts_at(place.url) as parts, hints_from(place.url) as hints:
            publisher = HintPublisher(parts.redis)
            await publisher.start()
            assert [await parts.windows.ask(TAG, FEW) for _ in range(FEW.requests)] == [0] * FEW.requests
            await parts.count_usage(7)
            assert await parts.redis.at(TAG, lambda server: server.wait(1, 5000))  # replicated
            for id in ("r1", "r2"):
                assert await parts.submit(id)
            assert await parts.work()
            place.kill()
            await eventually(partial(is_heard, publisher, hints))
            await eventually(parts.is_refused_by_redis)
            await eventually(lambda: parts.usage_is(7))
            await eventually(parts.loads_are_shared)
            await eventually(lambda: parts.submit("r3"))
            for id in ("r1", "r2", "r3"):
                await eventually(partial(done, parts, id))
            await publisher.close()


async def test_subscription_leaves_a_node_that_died() -> None:
    with running_cluster(replicas=0) as cluster:
        async with hints_from(cluster.url) as hints:
            (node,) = (node for node in cluster.nodes if node.run("PUBSUB", "NUMSUB", CHANNEL)[1])
            living = next(other for other in cluster.nodes if other is not node)
            node.server.kill()
            await eventually(lambda: len(hints) == 2)
            living.run("PUBLISH", CHANNEL, "7")
            await eventually(lambda: hints == [None, None, 7])
            node.server.start()  # it may have the key of the check


async def test_every_request_runs_once_while_its_slot_moves() -> None:
    """The slot moves several times."""
    with running_cluster(replicas=0, node_timeout_ms=PATIENT_MS) as cluster:
        async with parts_at(cluster.url) as parts:
            moves: list[int] = []
            moving = asyncio.create_task(asyncio.to_thread(move_around, cluster, moves))
            ids = list[str]()
            runs = 0
            while not moving.done():
                ids.append(f"r{len(ids)}")
                assert await parts.submit(ids[-1]), parts.client.trouble
                runs += await parts.work()
                assert await parts.windows.ask(ids[-1], FEW) == 0
                await parts.count_usage(1)
                assert await parts.usage_is(1)
            await moving
            assert len(moves) >= MOVES - 1, "the first target may have been the owner"
            assert runs == len(ids)
            assert all([await parts.succeeded(id) for id in ids])


def move_around(cluster: RedisCluster, moves: list[int]) -> None:
    """The slot of `TAG`, from node to node, with pauses in which its keys are on both sides."""
    slot = key_slot(TAG.encode())
    for place in range(MOVES):
        target = cluster.primaries[place % 3]
        if cluster.owner(slot) is target:
            continue
        source = cluster.begin_move(slot, target)
        time.sleep(0.1)
        cluster.move_keys(slot, source, target)
        time.sleep(0.05)
        cluster.end_move(slot, source, target)
        moves.append(place)
        time.sleep(0.1)
