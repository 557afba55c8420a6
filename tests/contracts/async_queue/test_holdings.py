"""A start whose reply was lost is given back at once, and uses up neither an attempt nor a try."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Failed, NewRequest, RetryRules, Submission
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.commands import QueueOptions
from tests.contracts.async_queue.queue_load import Process
from tests.contracts.async_queue.queue_world import DEP, ERROR, HOOK, WS
from tests.redis_relay import Relay, relay_to
from tests.redis_server import private_redis


class Place:
    """A process whose replies can be held back, and another one."""

    def __init__(self, relay: Relay, process: Process, other: Process) -> None:
        self.relay = relay
        self.process = process
        self.other = other

    async def submit(self, *ids: str) -> None:
        for id in ids:
            request = NewRequest(id, DEP, "/predict", Submission(b"{}", HOOK, retries=RetryRules(1)))
            await self.other.requests.submit(request, parks=False)

    async def lose_reply(self, question: "asyncio.Task[object]") -> None:
        """Let Redis answer, and lose its reply."""
        self.relay.replies.clear()
        with suppress(QueueUnavailableError):
            await question
        self.relay.cut()
        self.relay.replies.set()

    async def settled(self) -> None:
        """Sweep until the process succeeds."""
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.process.attempts.sweep(WS)
                except QueueUnavailableError:
                    await asyncio.sleep(0.05)
                else:
                    if self.process.client.holdings.may_begin(WS):
                        return


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    with private_redis() as server:
        async with relay_to(server.socket_path) as relay:
            client = QueueClient(relay.url, QueueOptions(timeout_s=0.3))
            other = QueueClient(server.url)
            yield Place(relay, Process("one", client), Process("two", other))
            await client.close()
            await other.close()


async def test_attempt_whose_start_was_not_heard_of_begins_elsewhere_with_the_same_number(place: Place) -> None:
    await place.submit("r1", "r2")
    attempt = await place.process.attempts.start(DEP, "one")
    assert attempt is not None
    await place.lose_reply(asyncio.ensure_future(place.process.attempts.start(DEP, "one")))
    assert await place.other.attempts.start(DEP, "two") is None, "it has begun in Redis"
    await place.settled()
    other_attempt = await place.other.attempts.start(DEP, "two")
    assert other_attempt is not None
    assert (other_attempt.ref.request_id, other_attempt.ref.attempt) == ("r2", 1)
    assert await place.process.attempts.renew([attempt.ref]) == []


async def test_delivery_that_was_not_heard_of_is_made_elsewhere_as_the_same_try(place: Place) -> None:
    await place.submit("r1")
    attempt = await place.other.attempts.start(DEP, "two")
    assert attempt is not None
    assert await place.other.attempts.finish(attempt.ref, Failed(ERROR))
    await place.settled()  # it has connected
    assert await place.process.deliveries.next_delivery("ws2", "one") is None  # Redis knows the script
    await place.lose_reply(asyncio.ensure_future(place.process.deliveries.next_delivery(WS, "one")))
    assert await place.other.deliveries.next_delivery(WS, "two") is None
    await place.settled()
    delivery = await place.other.deliveries.next_delivery(WS, "two")
    assert delivery is not None
    assert delivery.attempt == 1
