"""Callers, workers and deliverers of the queue, and a ledger of what they were told."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import (
    Delivery,
    NewRequest,
    RequestAttempt,
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
from proxy.stages.async_requests import TRY_S
from tests.contracts.async_queue.queue_world import DEP, WS

Written = TypeVar("Written")
FINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELED, Status.WEBHOOK_FAILED)


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
async def process(url: str, name: str) -> AsyncIterator[Process]:
    client = QueueClient(url)
    try:
        yield Process(name, client)
    finally:
        await client.close()


def new_request(id: str, hook: str | None = "https://hooks.example/") -> NewRequest:
    return NewRequest(id, DEP, "/predict", Submission(b'"' + id.encode() + b'"', hook, retries=RetryRules(5, 0, 0)))


async def eventually(work, deadline_s: float = 60.0):  # type: ignore[no-untyped-def]
    """The first result of `work` that is true, or that is not an outage."""
    async with asyncio.timeout(deadline_s):
        while True:
            try:
                if result := await work():
                    return result
            except QueueUnavailableError:
                pass
            await asyncio.sleep(0.05)


async def state_after(caller: Process, id: str, statuses: tuple[Status, ...] = FINAL) -> RequestState:
    async def find() -> RequestState | None:
        state = await caller.requests.state(WS, id)
        return state if state is not None and state.status in statuses else None

    end_state: RequestState = await eventually(find)
    return end_state


@dataclass
class Ledger:
    """The answers that the processes got."""

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

    def __init__(self, random_: random.Random, ledger: Ledger, abandons: float = 0.02) -> None:
        """`abandons`: the share of attempts that are not ended, as if the worker had died."""
        self.random = random_
        self.ledger = ledger
        self.abandons = abandons
        self.numbers = itertools.count()
        self.accepting = True
        self.running = True

    async def call(self, caller: Process) -> None:
        while self.accepting:
            id = f"{caller.name}-{next(self.numbers)}"
            try:
                await self.submit(caller, new_request(id, self.random.choice(["https://h.example/", None])))
                self.ledger.accepted.add(id)
                if self.random.random() < 0.1:
                    canceled = await caller.requests.cancel(WS, id)
                    if canceled is not None and canceled.canceled:
                        self.ledger.canceled.add(id)
                if self.ledger.accepted:
                    request_id = self.random.choice(sorted(self.ledger.accepted))
                    self.ledger.saw(await caller.requests.state(WS, request_id))
            except QueueUnavailableError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(self.random.uniform(0, 0.02))

    async def submit(self, caller: Process, request: NewRequest) -> None:
        """Submit, and once more after a failure, as a proxy does."""
        try:
            await self.submit_once(caller, request)
        except QueueUnavailableError:
            await self.submit_once(caller, request)

    async def submit_once(self, caller: Process, request: NewRequest) -> None:
        try:
            async with asyncio.timeout(TRY_S):
                await caller.requests.submit(request, parks=False)
        except TimeoutError:
            raise QueueUnavailableError from None

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

    async def attempt(self, worker: Process, attempt: RequestAttempt) -> None:
        if self.random.random() < self.abandons:
            return
        for number, chunk in enumerate((b"answer to ", attempt.model_input)):
            await self.insist(partial(worker.attempts.store, attempt.ref, number, chunk))
        size = 10 + len(attempt.model_input)
        await self.insist(lambda: worker.attempts.finish(attempt.ref, Succeeded(size, 2)))

    async def insist(self, write: Callable[[], Awaitable[Written]]) -> Written:
        """Do what a worker does that holds an attempt."""
        async with asyncio.timeout(100):
            while True:
                try:
                    return await write()
                except QueueUnavailableError:
                    await asyncio.sleep(0.05)

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
            chunks = [await self.insist(partial(worker.deliveries.chunk, delivery, n)) for n in range(2)]
            if None not in chunks and chunks != [b"answer to ", b'"' + delivery.request_id.encode() + b'"']:
                self.ledger.wrong_answers.append(delivery.request_id)
            if None in chunks:
                current = await self.insist(lambda: worker.deliveries.renew_deliveries([delivery]))
                if not current:
                    self.ledger.wrong_answers.append(f"{delivery.request_id} is incomplete")
        self.ledger.delivered[delivery.request_id] += 1
        await self.insist(lambda: worker.deliveries.delivered(delivery))


def check(ledger: Ledger) -> None:
    assert len(ledger.accepted) > 50
    assert not {id: states for id, states in ledger.finals.items() if len(states) > 1}, "two final states"
    assert ledger.accepted <= set(ledger.finals)
    assert all(ledger.finals[id] == {Status.CANCELED} for id in ledger.canceled)
    assert not ledger.wrong_answers
