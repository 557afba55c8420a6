"""The scanner sweeps after hints, lost hints and due times, and when the queue is unreachable for a while."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import time

import pytest

from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Work
from proxy.async_worker import scanner as module
from proxy.async_worker.scanner import Scanner
from tests.fakes.async_queue import FakeAsyncQueue
from tests.waiting import eventually

SKIPS_IDLE_TIME = True


class ScriptedQueue(FakeAsyncQueue):
    """`names` have work; `work` says which. Sweeps are recorded."""

    def __init__(self) -> None:
        super().__init__(lambda: int(time() * 1000))
        self.names = ["w1"]
        self.work: dict[str, Work] = {}
        self.swept: list[str] = []
        self.listings = 0
        self.hinted: asyncio.Queue[str] = asyncio.Queue()

    async def queue_hints(self) -> AsyncIterator[str]:
        while True:
            yield await self.hinted.get()

    async def workspaces(self) -> Sequence[str]:
        self.listings += 1
        if self.unavailable:
            raise QueueUnavailableError
        return self.names

    async def sweep(self, workspace_id: str) -> Work:
        self.swept.append(workspace_id)
        if self.unavailable:
            raise QueueUnavailableError
        return self.work.pop(workspace_id, Work({}, 0, 0))


@asynccontextmanager
async def scanning(queue: ScriptedQueue) -> AsyncIterator[list[tuple[str, Work]]]:
    sweeps: list[tuple[str, Work]] = []
    task = asyncio.create_task(Scanner(queue, lambda name, work: sweeps.append((name, work))).run())
    try:
        yield sweeps
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> ScriptedQueue:
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 1000.0)
    return ScriptedQueue()


async def test_hint_has_its_workspace_swept_and_no_other(queue: ScriptedQueue) -> None:
    async with scanning(queue):
        await eventually(lambda: queue.swept == ["w1"])
        for _ in range(10):
            queue.hinted.put_nowait("w2")
        await eventually(lambda: "w2" in queue.swept)
        await asyncio.sleep(0.05)
    assert queue.swept == ["w1", "w2"], "hints that arrive together share a sweep"
    assert queue.listings == 1


async def test_everything_is_swept_without_hints(queue: ScriptedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.03)
    queue.names = [f"w{number}" for number in range(20)]
    async with scanning(queue) as sweeps:
        await eventually(lambda: queue.listings >= 3)
        queue.names = []
        await eventually(lambda: sweeps[-1][1] is module.NOTHING, "workspaces that have nothing left are told of")
    assert set(queue.swept) == {f"w{number}" for number in range(20)}


async def test_new_subscription_may_have_missed_hints(queue: ScriptedQueue) -> None:
    async with scanning(queue):
        await eventually(lambda: queue.listings == 1)
        queue.hinted.put_nowait("")
        await eventually(lambda: queue.listings == 2)


async def test_what_is_due_before_the_next_scan_is_swept_then(queue: ScriptedQueue) -> None:
    queue.work["w1"] = Work({}, 0, 0, next_due_in_ms=100)
    async with scanning(queue):
        await eventually(lambda: queue.swept == ["w1", "w1"])
        await asyncio.sleep(0.1)
    assert queue.swept == ["w1", "w1"]


async def test_sweep_that_stopped_at_its_bound_goes_on(queue: ScriptedQueue) -> None:
    queue.work["w1"] = Work({}, 0, 0, more=True)
    async with scanning(queue):
        await eventually(lambda: queue.swept == ["w1", "w1"])


async def test_queue_that_is_away_is_asked_with_pauses_and_nothing_is_forgotten(queue: ScriptedQueue) -> None:
    async with scanning(queue) as sweeps:
        await eventually(lambda: sweeps)
        queue.unavailable = True
        queue.hinted.put_nowait("w2")
        await eventually(lambda: "w2" in queue.swept)
        await asyncio.sleep(0.4)
        assert queue.swept.count("w2") <= 3
        queue.unavailable = False
        await eventually(lambda: sweeps[-1][0] == "w2")
