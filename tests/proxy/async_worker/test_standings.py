"""Workers report to the queue whether requests are parked."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.async_requests.requests import DeploymentRef
from proxy.async_worker import standings as module
from proxy.async_worker.standings import Standings
from tests.fakes.async_queue import FakeAsyncQueue
from tests.proxy.async_worker.rig import D1, D2
from tests.waiting import eventually

SKIPS_IDLE_TIME = True


class RecordingQueue(FakeAsyncQueue):
    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.reports: list[tuple[DeploymentRef, bool]] = []

    async def report_standing(self, deployment: DeploymentRef, ready: bool) -> None:
        await super().report_standing(deployment, ready)
        self.reports.append((deployment, ready))


class World:
    def __init__(self) -> None:
        self.queue = RecordingQueue()
        self.now = 0.0
        self.asking: list[DeploymentRef] = []
        self.standings = Standings(self.queue, lambda: self.asking, lambda: self.now)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    world = World()
    task = asyncio.create_task(world.standings.run())
    yield world
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_changes_are_told_and_repetitions_are_not(world: World) -> None:
    for ready in (False, False, True, True, True):
        world.standings.tell(D1, ready)
        await asyncio.sleep(0.001)
    world.standings.tell(D2, False)
    await eventually(lambda: len(world.queue.reports) == 3)
    assert world.queue.reports == [(D1, False), (D1, True), (D2, False)]


async def test_mark_is_kept_up_for_those_that_ask(world: World) -> None:
    world.asking = [D1]
    world.standings.tell(D1, False)
    world.standings.tell(D2, False)
    await eventually(lambda: world.queue.reports.count((D1, False)) >= 3)
    assert world.queue.reports.count((D2, False)) == 1


async def test_queue_that_is_away_is_told_later(world: World) -> None:
    world.queue.unavailable = True
    world.asking = [D1]
    world.standings.tell(D1, True)
    await asyncio.sleep(0.05)
    world.queue.unavailable = False
    await eventually(lambda: world.queue.reports)
