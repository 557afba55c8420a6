"""A write that the queue acknowledges is on a replica, if there is one; one that is not may still take effect."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Failed, RequestAttempt, Succeeded
from proxy.async_requests.states import Status
from tests.contracts.async_queue.queue_load import Process, new_request, process
from tests.contracts.async_queue.queue_world import DEP, ERROR, WS
from tests.redis_server import RedisServer
from tests.redis_topologies import running_pair


@dataclass
class Pair:
    """A process, and the replica of its Redis."""

    process: Process
    replica: RedisServer

    async def begin(self) -> RequestAttempt:
        await self.process.requests.submit(new_request("r1"), parks=False)
        attempt = await self.process.attempts.start(DEP, "a")
        assert attempt is not None
        return attempt


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with running_pair() as (primary, replica):
        async with process(primary.url, "one") as client_process:
            yield Pair(client_process, replica)


async def test_submission_without_a_replica_s_word_is_refused_and_may_be_queued(pair: Pair) -> None:
    requests = pair.process.requests
    pair.replica.pause()
    for _ in range(2):  # the second finds it there, and nobody has it still
        with pytest.raises(QueueUnavailableError, match="Unconfirmed"):
            await requests.submit(new_request("r1"), parks=False)
    pair.replica.resume()
    await requests.submit(new_request("r1"), parks=False)
    state = await requests.state(WS, "r1")
    assert state is not None
    assert state.status is Status.QUEUED


async def test_cancellation_without_a_replica_s_word_is_refused(pair: Pair) -> None:
    requests = pair.process.requests
    await requests.submit(new_request("r1"), parks=False)
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(QueueUnavailableError, match="Unconfirmed"):
            await requests.cancel(WS, "r1")
    pair.replica.resume()
    cancellation = await requests.cancel(WS, "r1")
    assert cancellation is not None
    assert cancellation.status is Status.CANCELED


@pytest.mark.parametrize("outcome", [Succeeded(3, 1), Failed(ERROR)], ids=["success", "failure"])
async def test_answer_and_end_are_recorded_once_a_replica_has_them(pair: Pair, outcome: Succeeded | Failed) -> None:
    attempts = pair.process.attempts
    attempt = await pair.begin()
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(QueueUnavailableError, match="Unconfirmed"):
            await attempts.store(attempt.ref, 0, b"one")
    pair.replica.resume()
    assert await attempts.store(attempt.ref, 0, b"one")
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(QueueUnavailableError, match="Unconfirmed"):
            await attempts.finish(attempt.ref, outcome)
    pair.replica.resume()
    assert await attempts.finish(attempt.ref, outcome)
    assert await pair.process.deliveries.next_delivery(WS, "a")


async def test_what_waits_or_runs_is_looked_up_and_renewed_without_a_replica_s_word(pair: Pair) -> None:
    attempt = await pair.begin()
    pair.replica.pause()
    assert await pair.process.attempts.renew([attempt.ref]) == []
    assert await pair.process.requests.state(WS, "r1")
    pair.replica.resume()
