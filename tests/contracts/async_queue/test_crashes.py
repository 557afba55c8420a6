"""A crash of the real Redis loses nothing that was acknowledged, as long as the processes that wrote it live.

Redis is killed with SIGKILL under load. The kernel keeps what Redis has written, so the loss of the last writes is
simulated: Redis starts again from a copy of its append-only file that is up to two seconds old.
"""

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from proxy.async_requests.requests import (
    AttemptRef,
    NewRequest,
    RequestAttempt,
    Submission,
    Succeeded,
)
from proxy.async_requests.states import Status
from proxy.edges.redis.async_queue import scripts
from runtime.redis.script import Argument
from tests.contracts.async_queue.queue_load import (
    Ledger,
    Load,
    Process,
    check,
    eventually,
    new_request,
    process,
    state_after,
)
from tests.contracts.async_queue.queue_world import DEP, WS
from tests.redis_server import REDIS_BINARIES, RedisServer, private_redis

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some workers die here, and no supervisor gives back what they held."""
    monkeypatch.setattr(scripts, "LEASE_S", 7.0)


class Files:
    """The append-only files of a server: one, or a folder of them since Redis 7."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._copy = server.folder / "copy"

    def copy(self) -> None:
        """Copy the files as they are now."""
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


@pytest.fixture(params=REDIS_BINARIES[:1])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with private_redis(DURABLE, request.param) as instance:
        yield instance


async def lose_since_copy(server: RedisServer) -> None:
    """Kill Redis and start it again with what it had when the files were copied."""
    server.kill()
    Files(server).restore()
    await asyncio.to_thread(server.start)


async def flushed(server: RedisServer) -> None:
    """Wait until Redis' file has what it acknowledged. It writes before it replies, unless a slow disk makes it wait
    for its last sync."""
    async with Redis.from_url(server.url) as redis:
        while (await redis.info("persistence"))["aof_buffer_length"]:
            await asyncio.sleep(0.01)
    Files(server).copy()


async def test_lost_submission_is_submitted_again(server: RedisServer) -> None:
    async with process(server.url, "caller") as caller:
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
    async with process(server.url, "caller") as caller, process(server.url, "worker") as worker:
        await flushed(server)
        await caller.requests.submit(NewRequest("r1", DEP, "/predict", Submission(body)), parks=False)
        await lose_since_copy(server)
        attempt = await eventually(lambda: worker.attempts.start(DEP, "a"))
        assert attempt.model_input == body


async def test_lost_end_of_an_attempt_is_repeated_with_its_answer(server: RedisServer) -> None:
    async with process(server.url, "caller") as caller, process(server.url, "worker") as worker:
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
    async with process(server.url, "caller") as caller, process(server.url, "worker") as worker:
        await caller.requests.submit(new_request("r1"), parks=False)
        attempt = await worker.attempts.start(DEP, "a")
        assert attempt is not None
        await worker.attempts.store(attempt.ref, 0, b"one")
        assert await worker.attempts.finish(attempt.ref, Succeeded(3, 1))
        async with Redis.from_url(server.url) as redis:
            await redis.flushall()
        repeats = worker.client.repeats
        repetitions = list[str]()
        run = worker.client.commands.run

        async def run_and_submit(name: str, key: str, *arguments: Argument) -> Any:
            reply = await run(name, key, *arguments)
            if not repetitions:
                await caller.requests.submit(new_request("r1"), parks=False)
            repetitions.append(name)
            return reply

        worker.client.commands.run = run_and_submit  # type: ignore[method-assign]
        unknown = await repeats._send(list(repeats._remembered))
        assert [write.script for write in unknown] == ["store", "finish"]
        assert await repeats._send(unknown) == []
        delivery = await worker.deliveries.next_delivery(WS, "b")
        assert delivery is not None
        assert (delivery.status, await worker.deliveries.chunk(delivery, 0)) == (Status.SUCCEEDED, b"one")


async def test_end_is_repeated_though_its_request_was_lost_too(server: RedisServer) -> None:
    """The worker's end waits for the caller's submission, whichever process connects first."""
    async with process(server.url, "caller") as caller, process(server.url, "worker") as worker:
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
    async with process(server.url, "worker") as worker:
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
    async with process(server.url, "worker") as worker:
        await worker.requests.submit(new_request("r1", hook=None), parks=False)
        await flushed(server)
        attempt = await worker.attempts.start(DEP, "a")
        assert attempt is not None
        await lose_since_copy(server)
        assert await eventually(lambda: one_more(worker, attempt)) == []
        await asyncio.sleep(2)
        assert await worker.attempts.start(DEP, "b") is None
        assert await worker.attempts.finish(attempt.ref, Succeeded())


async def one_more(worker: Process, attempt: RequestAttempt) -> object:
    lost_refs = list(await worker.attempts.renew([attempt.ref]))
    return lost_refs or NOTHING


class _Nothing(list[AttemptRef]):
    """An empty list that is true."""

    def __bool__(self) -> bool:
        return True


NOTHING = _Nothing()


# --- under load ---


async def crash_under_load(server: RedisServer, crashes: int, loses: bool) -> Ledger:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    ledger = Ledger()
    load = Load(random_, ledger)
    async with (
        process(server.url, "c1") as one,
        process(server.url, "c2") as two,
        process(server.url, "w1") as first,
        process(server.url, "w2") as second,
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
