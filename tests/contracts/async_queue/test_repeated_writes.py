"""Writes that are repeated after a loss outweigh what others began since, because they were acknowledged once.

The loss is exact: Redis' keys are put back to what they were at a moment.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from proxy.async_requests.queues import RequestUnknownError
from proxy.async_requests.requests import AttemptRef, Delivery, Failed, Outcome, Succeeded
from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue import attempt_queue, records
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.repeats import Repeats
from tests.contracts.async_queue.queue_world import DEP, ERROR, LEASE_MS, WS, World, again, redis_world
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis

TIMEOUT_MS = 600_000


@pytest.fixture(scope="module", params=REDIS_BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(binary=request.param) as instance:
        yield instance


class Losing:
    """A world whose Redis can lose writes."""

    def __init__(self, world: World, client: QueueClient, own: "redis.Redis") -> None:
        self.world = world
        self._client = client
        self._own = own
        self._dumps: dict[bytes, Any] = {}

    def keep(self) -> None:
        keys: Any = self._own.keys("tga:*")
        self._dumps = {key: self._own.dump(key) for key in keys}

    def forget(self) -> None:
        """Forget the writes so far. A process does so some seconds after them."""
        self._client.repeats = Repeats(self._client.commands, self._client.index)

    def lose(self) -> None:
        """Lose all writes since `keep`."""
        keys: Any = self._own.keys("tga:*")
        if keys:
            self._own.delete(*keys)
        for key, value in self._dumps.items():
            self._own.restore(key, 0, value)

    async def finish_again(self, ref: AttemptRef, outcome: Outcome) -> int:
        arguments = *records.attempt_arguments(ref), *records.outcome_arguments(outcome)
        return await self._run("finish", TIMEOUT_MS, 1, *arguments)

    async def store_again(self, ref: AttemptRef, number: int, chunk: bytes) -> int:
        return await self._run("store", TIMEOUT_MS, 1, *records.attempt_arguments(ref), number, chunk, "")

    async def end_delivery_again(self, delivery: Delivery, what: str, delay_ms: int = 0) -> int:
        return await self._run("end_delivery", 1, *records.delivery_arguments(delivery), what, delay_ms)

    async def _run(self, script: str, *arguments: str | bytes | int) -> int:
        reply: int = await self._client.commands.run(script, keys_of(WS), *arguments)
        return reply


@pytest.fixture
async def losing(server: RedisServer) -> AsyncIterator[Losing]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as own:
        world = redis_world(server.url, own)
        assert world.client is not None
        yield Losing(world, world.client, own)
        await world.close()


async def test_repeated_end_outweighs_an_attempt_that_began_since(losing: Losing) -> None:
    world = losing.world
    id = await world.submit(hook=None)
    losing.keep()
    first = await world.start("a")
    assert await world.queue.finish(first.ref, Succeeded())
    losing.lose()
    second = await world.start("b")
    assert second.ref.attempt == first.ref.attempt
    assert await losing.finish_again(first.ref, Succeeded()) == 1
    assert await world.queue.renew([second.ref]) == [second.ref]
    assert not await world.queue.finish(second.ref, Failed(ERROR))
    assert (await world.state(id)).status is Status.SUCCEEDED


async def test_end_of_a_later_attempt_counts_though_earlier_ones_were_lost(losing: Losing) -> None:
    world = losing.world
    await world.submit()
    losing.keep()
    assert await world.queue.finish((await world.start("a")).ref, again(0))
    second = await world.start("b")
    losing.lose()
    assert await losing.store_again(second.ref, 0, b"42") == 1
    assert await losing.finish_again(second.ref, Succeeded(2, 1)) == 1
    delivery = await world.next_delivery()
    assert await world.queue.chunk(delivery, 0) == b"42"


async def test_attempt_whose_start_was_lost_is_renewed(losing: Losing) -> None:
    world = losing.world
    id = await world.submit()
    losing.keep()
    attempt = await world.start("a")
    losing.lose()
    assert await world.queue.renew([attempt.ref]) == []
    assert (await world.state(id)).status is Status.IN_PROGRESS
    assert await world.queue.start(DEP, "b") is None
    world.advance(LEASE_MS)
    assert (await world.queue.sweep(WS)).startable == {DEP: 1}
    assert (await world.start("b")).ref.attempt == 2


async def test_repeated_pause_of_a_later_attempt_is_paused(losing: Losing) -> None:
    world = losing.world
    await world.submit()
    losing.keep()
    attempt = await world.start("a")
    assert await world.queue.finish(attempt.ref, again(1000))
    losing.lose()
    assert await losing.finish_again(attempt.ref, again(1000)) == 1
    assert await losing.finish_again(attempt.ref, again(1000)) == 0
    assert (await world.queue.sweep(WS)).startable == {}
    world.advance(1000)
    assert (await world.queue.sweep(WS)).startable == {DEP: 1}


async def test_accepted_delivery_outweighs_one_that_began_since(losing: Losing) -> None:
    world = losing.world
    id = await world.submit()
    assert await world.queue.finish((await world.start()).ref, Succeeded())
    losing.keep()
    first = await world.next_delivery("a")
    assert await world.queue.delivered(first)
    losing.lose()
    for _ in range(2):
        second = await world.next_delivery("b")
        assert await world.queue.undelivered(second, 0)
        await world.queue.sweep(WS)
    assert await losing.end_delivery_again(first, "deliver") == 1
    assert not await world.queue.undelivered(second, None)
    assert (await world.state(id)).status is Status.SUCCEEDED


async def test_refused_delivery_is_counted_again(losing: Losing) -> None:
    world = losing.world
    await world.submit()
    assert await world.queue.finish((await world.start()).ref, Succeeded())
    losing.keep()
    first = await world.next_delivery("a")
    assert await world.queue.undelivered(first, 15_000)
    losing.lose()
    await world.next_delivery("b")
    assert await losing.end_delivery_again(first, "again", 15_000) == 1
    assert await losing.end_delivery_again(first, "again", 15_000) == 0
    assert (await world.queue.sweep(WS)).deliveries == 0
    world.advance(15_000)
    await world.queue.sweep(WS)
    assert (await world.next_delivery()).attempt == 2


async def test_write_to_a_request_that_is_not_there_is_unknown(losing: Losing) -> None:
    world = losing.world
    losing.keep()
    await world.submit()
    attempt = await world.start()
    losing.lose()
    assert await losing.finish_again(attempt.ref, Succeeded()) == -1
    assert await losing.store_again(attempt.ref, 0, b"x") == -1
    assert await world.queue.renew([attempt.ref]) == [], "who accepted it may submit it again"
    with pytest.raises(RequestUnknownError):
        await world.queue.store(attempt.ref, 0, b"x")
    with pytest.raises(RequestUnknownError):
        await world.queue.finish(attempt.ref, Succeeded())
    await world.submit_again()
    assert await world.queue.renew([attempt.ref]) == []
    assert await world.queue.finish(attempt.ref, Succeeded())


async def test_attempt_of_a_request_that_nobody_submits_again_is_lost(
    losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller was not told that the request is accepted."""
    world = losing.world
    losing.keep()
    await world.submit()
    attempt = await world.start()
    losing.lose()
    with pytest.raises(RequestUnknownError):
        await world.queue.store(attempt.ref, 0, b"x")
    monkeypatch.setattr(attempt_queue, "HELD_S", 0.0)
    assert await world.queue.store(attempt.ref, 0, b"x"), "it goes on with what it has"
    assert not await world.queue.finish(attempt.ref, Succeeded())


async def test_end_stores_the_part_of_its_answer_that_was_lost(losing: Losing) -> None:
    world = losing.world
    await world.submit()
    attempt = await world.start("a")
    await world.queue.store(attempt.ref, 0, b"one")
    losing.keep()
    await world.queue.store(attempt.ref, 1, b"two")
    losing.lose()
    assert await world.queue.finish(attempt.ref, Succeeded(6, 2))
    delivery = await world.next_delivery()
    assert [await world.queue.chunk(delivery, number) for number in range(2)] == [b"one", b"two"]


async def test_request_is_attempted_again_if_nobody_has_its_answer_any_more(losing: Losing) -> None:
    world = losing.world
    id = await world.submit()
    attempt = await world.start("a")
    losing.keep()
    await world.queue.store(attempt.ref, 0, b"one")
    losing.lose()
    losing.forget()
    assert await world.queue.finish(attempt.ref, Succeeded(3, 1))
    assert (await world.state(id)).status is Status.IN_PROGRESS
    assert (await world.start("b")).ref.attempt == 2


async def test_same_end_is_told_as_recorded_again(losing: Losing) -> None:
    """The first reply may have been lost."""
    world = losing.world
    await world.submit(hook=None)
    attempt = await world.start()
    for _ in range(2):
        assert await world.queue.finish(attempt.ref, Succeeded())
    assert not await world.queue.finish(attempt.ref, Failed(ERROR))


async def test_known_end_stays(losing: Losing) -> None:
    world = losing.world
    id = await world.submit(hook=None)
    attempt = await world.start()
    assert await world.queue.finish(attempt.ref, Failed(ERROR))
    assert await losing.finish_again(attempt.ref, Succeeded()) == 0
    assert (await world.state(id)).status is Status.FAILED
