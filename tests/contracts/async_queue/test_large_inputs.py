"""Inputs above the size of a piece go to Redis and come back in pieces, and leave nothing behind."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from proxy.async_requests.endings import INPUT_LOST
from proxy.async_requests.queues import QueueFullError, QueueUnavailableError
from proxy.async_requests.requests import Failed, RetryRules, Submission, Succeeded
from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from tests.contracts.async_queue.queue_world import (
    DEP,
    ERROR,
    LEASE_MS,
    PIECE_BYTES,
    WS,
    World,
    again,
    leftovers,
    redis_world,
)
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis

LARGE = bytes(random.Random(1).randbytes(4 * PIECE_BYTES + 1))


@pytest.fixture(scope="module", params=REDIS_BINARIES)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(binary=request.param) as instance:
        yield instance


@pytest.fixture
def own(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        yield client


@pytest.fixture
async def world(server: RedisServer, own: "redis.Redis") -> AsyncIterator[World]:
    world = redis_world(server.url, own)
    yield world
    await world.close()


@pytest.fixture
def client(world: World) -> QueueClient:
    assert world.client is not None
    return world.client


def pieces_of(own: "redis.Redis", id: str) -> int:
    count: Any = own.hlen(f"{keys_of(WS)}b:{id}")
    return int(count)


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, len(LARGE)])
async def test_input_comes_back_byte_for_byte_at_each_attempt(world: World, own: "redis.Redis", size: int) -> None:
    id = await world.submit(LARGE[:size], retries=RetryRules(2, 0, 0))
    assert pieces_of(own, id) == (0 if size <= PIECE_BYTES else -(-size // PIECE_BYTES))
    for outcome in (again(0), Failed(ERROR)):
        attempt = await world.start()
        assert attempt.model_input == LARGE[:size]
        assert await world.queue.finish(attempt.ref, outcome)
    assert pieces_of(own, id) == 0


@pytest.mark.parametrize("hook", [None, "https://hooks.example/"])
@pytest.mark.parametrize("end", ["cancel", "expire", "deleted", "succeed"])
async def test_pieces_go_when_the_outcome_is_known(
    world: World, own: "redis.Redis", end: str, hook: str | None
) -> None:
    id = await world.submit(LARGE, hook=hook, max_time_in_queue_s=10)
    assert pieces_of(own, id) == 5
    match end:
        case "cancel":
            await world.queue.cancel(WS, id)
        case "expire":
            world.advance(10_000)
            await world.queue.sweep(WS)
        case "deleted":
            await world.queue.fail_deployment(DEP)
        case _:
            assert await world.queue.finish((await world.start()).ref, Succeeded())
    assert pieces_of(own, id) == 0
    while (delivery := await world.queue.next_delivery(WS, "a")) is not None:
        assert await world.queue.delivered(delivery)
    await world.queue.sweep(WS)
    world.advance(120_000)
    await world.queue.sweep(WS)
    assert leftovers(own) == []


async def test_second_submission_of_a_large_input_changes_nothing(world: World, own: "redis.Redis") -> None:
    request = world.new_request(Submission(LARGE))
    for _ in range(2):
        await world.queue.submit(request, parks=False)
    assert own.ttl(f"{keys_of(WS)}b:{request.id}") == -1, "its input would expire"
    assert await world.queue.cancel(WS, request.id)
    await world.queue.submit(request, parks=False)
    assert pieces_of(own, request.id) == 0


async def test_late_piece_of_a_known_request_is_not_stored(
    world: World, client: QueueClient, own: "redis.Redis"
) -> None:
    id = await world.submit(LARGE, hook=None)
    await client.inputs.put(keys_of(WS), id, LARGE)
    assert own.ttl(f"{keys_of(WS)}b:{id}") == -1
    await world.queue.cancel(WS, id)
    await client.inputs.put(keys_of(WS), id, LARGE)
    assert pieces_of(own, id) == 0


async def test_pieces_that_nobody_submits_expire(world: World, client: QueueClient, own: "redis.Redis") -> None:
    await client.inputs.put(keys_of(WS), "never", LARGE)
    remaining: Any = own.pttl(f"{keys_of(WS)}b:never")
    assert 0 < remaining <= 60_000


async def test_pieces_that_are_lost_before_the_submission_are_put_again(
    world: World, client: QueueClient, own: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    real_put = client.inputs.put
    losses = 1

    async def lossy(key: str, request_id: str, model_input: bytes) -> None:
        nonlocal losses
        await real_put(key, request_id, model_input)
        if losses:
            own.hdel(f"{key}b:{request_id}", "3")
            losses -= 1

    monkeypatch.setattr(client.inputs, "put", lossy)
    await world.submit(LARGE)
    assert (await world.start()).model_input == LARGE
    losses = 2
    with pytest.raises(QueueUnavailableError):
        await world.submit(LARGE)
    assert await world.queue.start(DEP, "a") is None


async def test_request_whose_pieces_are_lost_fails(world: World, own: "redis.Redis") -> None:
    id = await world.submit(LARGE, hook=None)
    hooked_id = await world.submit(LARGE[:390])
    for one in (id, hooked_id):
        own.hdel(f"{keys_of(WS)}b:{one}", "1")
    for _ in range(2):
        assert await world.queue.start(DEP, "a") is None
    state = await world.state(id)
    assert (state.status, state.errors) == (Status.FAILED, (INPUT_LOST,))
    assert (await world.queue.sweep(WS)).uncounted == {(DEP, Status.FAILED): 1}
    delivery = await world.next_delivery()
    assert (delivery.request_id, delivery.errors) == (hooked_id, (INPUT_LOST,))
    assert await world.queue.delivered(delivery)
    assert not own.keys(f"{keys_of(WS)}b:*")


async def test_no_piece_of_an_input_that_is_too_large_is_stored(world: World, own: "redis.Redis") -> None:
    await world.submit(LARGE)
    own.config_resetstat()
    with pytest.raises(QueueFullError):
        await world.submit(LARGE)
    stats: Any = own.info("commandstats")
    assert "cmdstat_hset" not in stats


async def test_large_inputs_on_their_way_count_against_the_bound(world: World, own: "redis.Redis") -> None:
    results = await asyncio.gather(*(world.submit(LARGE) for _ in range(5)), return_exceptions=True)
    assert sorted(isinstance(result, QueueFullError) for result in results) == [False, True, True, True, True]
    assert len(own.keys(f"{keys_of(WS)}b:*")) == 1


async def test_attempt_that_is_lost_while_its_input_is_read_is_not_run(
    world: World, monkeypatch: pytest.MonkeyPatch, own: "redis.Redis"
) -> None:
    await world.submit(LARGE)
    monkeypatch.setattr("proxy.edges.redis.async_queue.attempt_queue.RENEW_INTERVAL_S", 0)
    read = world.client.inputs.piece  # type: ignore[union-attr]  # it has one

    async def slow(key: str, request_id: str, number: int) -> bytes | None:
        if number == 2:
            world.advance(LEASE_MS)
            await world.queue.sweep(WS)
        return await read(key, request_id, number)

    monkeypatch.setattr(world.client.inputs, "piece", slow)  # type: ignore[union-attr]
    assert await world.queue.start(DEP, "a") is None


async def test_no_command_carries_more_than_a_piece(server: RedisServer, own: "redis.Redis") -> None:
    """Redis closes the connection of a client that sends, or is sent, a MiB at once."""
    own.flushall()
    own.config_set("client-query-buffer-limit", 1 << 20)
    own.config_set("client-output-buffer-limit", f"normal {1 << 20} 0 0")
    client = QueueClient(server.url)
    try:
        requests = RedisRequestQueue(client, 1 << 30)
        body = b"[" + b"1," * (4 << 20) + b"1]"
        world = World(requests)  # type: ignore[arg-type]  # only submits
        await requests.submit(world.new_request(Submission(body)), parks=False)
        attempt = await RedisAttemptQueue(client, 600, 1 << 30).start(DEP, "a")
        assert attempt is not None
        assert attempt.model_input == body
    finally:
        await client.close()
        own.config_set("client-query-buffer-limit", 1 << 30)
        own.config_set("client-output-buffer-limit", "normal 0 0 0")
