"""What a crash of the real Redis costs: nothing that was acknowledged, as long as the processes that wrote it live.

Redis is killed with SIGKILL under load. The kernel keeps what Redis has written, so the loss of the last writes is
simulated: Redis starts again from a copy of its append-only file that is up to two seconds old.
"""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import (
    Attempt,
    AttemptRef,
    Delivery,
    DeploymentRef,
    NewRequest,
    RequestState,
    RetryRules,
    Submission,
    Succeeded,
)
from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue.attempt_queue import RedisAttemptQueue
from proxy.edges.redis.async_queue.client import QueueClient
from proxy.edges.redis.async_queue.delivery_queue import RedisDeliveryQueue
from proxy.edges.redis.async_queue.request_queue import RedisRequestQueue
from runtime.redis.script import Argument
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
WS, DEP = "ws1", DeploymentRef("ws1", "mdl1", "dep1")
FINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.WEBHOOK_FAILED)


class Files:
    """The append-only files of a server: one, or a folder of them since Redis 7."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._copy = server.folder / "copy"

    def copy(self) -> None:
        """As they are now."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        for path in self._found():
            if path.is_dir():
                shutil.copytree(path, self._copy / path.name)
            else:
                shutil.copy(path, self._copy / path.name)

    def restore(self) -> None:
        for path in self._found():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self._copy.iterdir():
            path.rename(self._server.folder / path.name)

    def _found(self) -> list[Path]:
        return list(self._server.folder.glob("appendonly*"))


@dataclass
class Process:
    """A process with its own connection to the queue."""

    name: str
    client: QueueClient

    def __post_init__(self) -> None:
        self.requests = RedisRequestQueue(self.client, 10_000_000)
        self.attempts = RedisAttemptQueue(self.client, 600, 10_000_000)
        self.deliveries = RedisDeliveryQueue(self.client)


@asynccontextmanager
async def process(server: RedisServer, name: str) -> AsyncIterator[Process]:
    client = QueueClient(server.url)
    try:
        yield Process(name, client)
    finally:
        await client.close()


@pytest.fixture(params=REDIS_BINARIES[:1])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(DURABLE, request.param) as found:
        yield found


def new_request(id: str, hook: str | None = "https://hooks.example/") -> NewRequest:
    return NewRequest(id, DEP, "/predict", Submission(b'"' + id.encode() + b'"', hook, retries=RetryRules(5, 0, 0)))


async def lose_since_copy(server: RedisServer) -> None:
    """Kill Redis and start it again with what it had when the files were copied."""
    server.kill()
    Files(server).restore()
    await asyncio.to_thread(server.start)


async def eventually(work, deadline_s: float = 60.0):  # type: ignore[no-untyped-def]
    """The first result of `work` that is true, or that is not an outage."""
    async with asyncio.timeout(deadline_s):
        while True:
            try:
                if found := await work():
                    return found
            except QueueUnavailableError:
                pass
            await asyncio.sleep(0.05)


async def state_after(caller: Process, id: str, statuses: tuple[Status, ...] = FINAL) -> RequestState:
    async def find() -> RequestState | None:
        state = await caller.requests.state(WS, id)
        return state if state is not None and state.status in statuses else None

    found: RequestState = await eventually(find)
    return found


async def flushed(server: RedisServer) -> None:
    """Until what Redis has acknowledged is in its file. It writes before it replies, unless a slow disk makes it wait
    for its last sync."""
    async with Redis.from_url(server.url) as redis:
        while (await redis.info("persistence"))["aof_buffer_length"]:
            await asyncio.sleep(0.01)
    Files(server).copy()


async def test_lost_submission_is_submitted_again(server: RedisServer) -> None:
    async with process(server, "caller") as caller:
        await flushed(server)
        for id in ("r0", "r1", "r2", "r3"):
            await caller.requests.submit(new_request(id), parks=False)
        await caller.requests.cancel(WS, "r1")
        await lose_since_copy(server)
        assert (await state_after(caller, "r3", (Status.QUEUED,))).status is Status.QUEUED
        assert (await state_after(caller, "r1")).status is Status.CANCELED
        assert await caller.attempts.workspaces() == [WS]
        assert await caller.attempts.start(DEP, "a") is None, "others may still have something to repeat"
        assert (await eventually(lambda: caller.attempts.start(DEP, "a"))).ref.request_id == "r0"


async def test_lost_submission_of_a_large_input_is_submitted_again(server: RedisServer) -> None:
    body = b'"' + b"0123456789" * 100_000 + b'"'
    async with process(server, "caller") as caller, process(server, "worker") as worker:
        await flushed(server)
        await caller.requests.submit(NewRequest("r1", DEP, "/predict", Submission(body)), parks=False)
        await lose_since_copy(server)
        attempt = await eventually(lambda: worker.attempts.start(DEP, "a"))
        assert attempt.model_input == body


async def test_lost_end_of_an_attempt_is_repeated_with_its_answer(server: RedisServer) -> None:
    async with process(server, "caller") as caller, process(server, "worker") as worker:
        await caller.requests.submit(new_request("r1"), parks=False)
        await flushed(server)
        attempt = await worker.attempts.start(DEP, "a")
        assert attempt is not None
        await worker.attempts.store(attempt.ref, 0, b"one")
        await worker.attempts.store(attempt.ref, 1, b"two")
        assert await worker.attempts.finish(attempt.ref, Succeeded(6, 2))
        await lose_since_copy(server)
        delivery = await eventually(lambda: worker.deliveries.next_delivery(WS, "b"))
        assert (delivery.status, delivery.answer) == (Status.SUCCEEDED, Succeeded(6, 2))
        assert [await worker.deliveries.chunk(delivery, number) for number in range(2)] == [b"one", b"two"]
        assert await worker.deliveries.delivered(delivery)


async def test_end_waits_for_its_answer_when_the_request_becomes_known_between_them(server: RedisServer) -> None:
    """The caller submits it again after the worker has tried in vain to repeat the answer, and before its end."""
    async with process(server, "caller") as caller, process(server, "worker") as worker:
        await caller.requests.submit(new_request("r1"), parks=False)
        attempt = await worker.attempts.start(DEP, "a")
        assert attempt is not None
        await worker.attempts.store(attempt.ref, 0, b"one")
        assert await worker.attempts.finish(attempt.ref, Succeeded(3, 1))
        async with Redis.from_url(server.url) as redis:
            await redis.flushall()
        repeats, sent = worker.client.repeats, list[str]()
        run = worker.client.commands.run

        async def run_and_submit(name: str, key: str, *arguments: Argument) -> Any:
            reply = await run(name, key, *arguments)
            if not sent:
                await caller.requests.submit(new_request("r1"), parks=False)
            sent.append(name)
            return reply

        worker.client.commands.run = run_and_submit  # type: ignore[method-assign]
        unknown = await repeats._send(list(repeats._remembered))
        assert [write.script for write in unknown] == ["store", "finish"]
        assert await repeats._send(unknown) == []
        delivery = await worker.deliveries.next_delivery(WS, "b")
        assert delivery is not None
        assert (delivery.status, await worker.deliveries.chunk(delivery, 0)) == (Status.SUCCEEDED, b"one")


async def test_end_is_repeated_though_its_request_was_lost_too(server: RedisServer) -> None:
    """Whichever process connects first: the worker's end waits for the caller's submission."""
    async with process(server, "caller") as caller, process(server, "worker") as worker:
        await caller.requests.submit(new_request("r0"), parks=False)
        await flushed(server)
        await caller.requests.submit(new_request("r1", hook=None), parks=False)
        for id in ("r0", "r1"):
            attempt = await worker.attempts.start(DEP, "a")
            assert attempt is not None
            assert attempt.ref.request_id == id
            assert await worker.attempts.finish(attempt.ref, Succeeded())
        assert (await caller.requests.state(WS, "r1")).status is Status.SUCCEEDED  # type: ignore[union-attr]
        await lose_since_copy(server)
        assert (await state_after(caller, "r1")).status is Status.SUCCEEDED
        assert await eventually(lambda: worker.deliveries.next_delivery(WS, "a"))


async def test_lost_delivery_is_not_repeated_to_the_webhook(server: RedisServer) -> None:
    async with process(server, "worker") as worker:
        await worker.requests.submit(new_request("r1"), parks=False)
        await flushed(server)
        attempt = await worker.attempts.start(DEP, "a")
        assert attempt is not None
        assert await worker.attempts.finish(attempt.ref, Succeeded())
        delivery = await worker.deliveries.next_delivery(WS, "a")
        assert delivery is not None
        assert await worker.deliveries.delivered(delivery)
        await lose_since_copy(server)
        assert (await state_after(worker, "r1")).status is Status.SUCCEEDED


async def test_attempt_goes_on_when_only_its_start_was_lost(server: RedisServer) -> None:
    async with process(server, "worker") as worker:
        await worker.requests.submit(new_request("r1", hook=None), parks=False)
        await flushed(server)
        attempt = await worker.attempts.start(DEP, "a")
        assert attempt is not None
        await lose_since_copy(server)
        assert await eventually(lambda: one_more(worker, attempt)) == []
        await asyncio.sleep(2)
        assert await worker.attempts.start(DEP, "b") is None
        assert await worker.attempts.finish(attempt.ref, Succeeded())


async def one_more(worker: Process, attempt: Attempt) -> object:
    found = list(await worker.attempts.renew([attempt.ref]))
    return found or NOTHING


class _Nothing(list[AttemptRef]):
    """An empty list that is true."""

    def __bool__(self) -> bool:
        return True


NOTHING = _Nothing()


# --- under load ---


@dataclass
class Ledger:
    """What the processes were told."""

    accepted: set[str] = field(default_factory=set)
    canceled: set[str] = field(default_factory=set)
    finals: dict[str, set[Status]] = field(default_factory=dict)
    delivered: Counter[str] = field(default_factory=Counter)
    wrong_answers: list[str] = field(default_factory=list)

    def saw(self, state: RequestState | None) -> None:
        if state is not None and state.status in FINAL:
            self.finals.setdefault(state.request_id, set()).add(state.status)


class Load:
    """Callers, workers and deliverers, until `stop`."""

    def __init__(self, random_: random.Random, ledger: Ledger) -> None:
        self.random = random_
        self.ledger = ledger
        self.accepting = True
        self.running = True

    async def call(self, caller: Process) -> None:
        number = 0
        while self.accepting:
            number += 1
            id = f"{caller.name}-{number}"
            try:
                await caller.requests.submit(new_request(id, self.random.choice(["https://h.example/", None])), False)
                self.ledger.accepted.add(id)
                if self.random.random() < 0.1:
                    canceled = await caller.requests.cancel(WS, id)
                    if canceled is not None and canceled.canceled:
                        self.ledger.canceled.add(id)
                if self.ledger.accepted:
                    asked = self.random.choice(sorted(self.ledger.accepted))
                    self.ledger.saw(await caller.requests.state(WS, asked))
            except QueueUnavailableError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(self.random.uniform(0, 0.02))

    async def work(self, worker: Process) -> None:
        while self.running:
            try:
                await worker.attempts.sweep(WS)
                attempt = await worker.attempts.start(DEP, worker.name)
                if attempt is not None:
                    await self.attempt(worker, attempt)
                    continue
            except QueueUnavailableError:
                pass
            await asyncio.sleep(0.05)

    async def attempt(self, worker: Process, attempt: Attempt) -> None:
        if self.random.random() < 0.02:
            return  # as if the worker had died
        for number, chunk in enumerate((b"answer to ", attempt.model_input)):
            await self.insist(lambda number=number, chunk=chunk: worker.attempts.store(attempt.ref, number, chunk))
        size = 10 + len(attempt.model_input)
        await self.insist(lambda: worker.attempts.finish(attempt.ref, Succeeded(size, 2)))

    async def insist(self, write) -> object:  # type: ignore[no-untyped-def]
        """As a worker does that holds an attempt."""
        for _ in range(200):
            try:
                return await write()
            except QueueUnavailableError:
                await asyncio.sleep(0.05)
        raise AssertionError("Redis does not come back")

    async def deliver(self, worker: Process) -> None:
        while self.running:
            try:
                delivery = await worker.deliveries.next_delivery(WS, worker.name)
                if delivery is not None:
                    await self.tell(worker, delivery)
                    continue
            except QueueUnavailableError:
                pass
            await asyncio.sleep(0.05)

    async def tell(self, worker: Process, delivery: Delivery) -> None:
        if delivery.status is Status.SUCCEEDED:
            chunks = [await self.insist(lambda n=n: worker.deliveries.chunk(delivery, n)) for n in range(2)]
            if None not in chunks and chunks != [b"answer to ", b'"' + delivery.request_id.encode() + b'"']:
                self.ledger.wrong_answers.append(delivery.request_id)
            if None in chunks:
                current = await self.insist(lambda: worker.deliveries.renew_deliveries([delivery]))
                if not current:
                    self.ledger.wrong_answers.append(f"{delivery.request_id} is incomplete")
        self.ledger.delivered[delivery.request_id] += 1
        await self.insist(lambda: worker.deliveries.delivered(delivery))


async def crash_under_load(server: RedisServer, crashes: int, loses: bool) -> Ledger:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_, ledger = random.Random(seed), Ledger()
    load = Load(random_, ledger)
    async with (
        process(server, "c1") as one,
        process(server, "c2") as two,
        process(server, "w1") as first,
        process(server, "w2") as second,
        asyncio.TaskGroup() as group,
    ):
        callers = [group.create_task(load.call(caller)) for caller in (one, two)]
        for worker in (first, second):
            group.create_task(load.work(worker))
            group.create_task(load.deliver(worker))
        for _ in range(crashes):
            await asyncio.sleep(random_.uniform(1, 3))
            if loses:
                Files(server).copy()
                await asyncio.sleep(random_.uniform(0.1, 1.9))
                await lose_since_copy(server)
            else:
                server.kill()
                await asyncio.to_thread(server.start)
        await asyncio.sleep(4)
        load.accepting = False
        await asyncio.gather(*callers)
        for id in sorted(ledger.accepted):
            ledger.saw(await state_after(one, id))
        load.running = False
    return ledger


def check(ledger: Ledger) -> None:
    assert len(ledger.accepted) > 50
    assert not {id: seen for id, seen in ledger.finals.items() if len(seen) > 1}, "two final states"
    assert ledger.accepted <= set(ledger.finals)
    assert all(ledger.finals[id] == {Status.CANCELED} for id in ledger.canceled)
    assert not ledger.wrong_answers


@pytest.mark.parametrize(
    "loses", [pytest.param(False, id="killed", marks=pytest.mark.soak), pytest.param(True, id="loses its last writes")]
)
async def test_nothing_accepted_is_lost_when_redis_crashes_under_load(server: RedisServer, loses: bool) -> None:
    check(await crash_under_load(server, 2, loses))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loses", [False, True], ids=["killed", "loses its last writes"])
async def test_nothing_accepted_is_lost_in_long_runs(server: RedisServer, loses: bool) -> None:
    check(await crash_under_load(server, 60, loses))
