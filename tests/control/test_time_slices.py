"""Time slices: each turn of the event loop runs one slice, however many long computations are in progress."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from control import time_slices
from control.time_slices import SLICE_S, WorkspaceTurns, collect_when_idle, each, pause
from tests.waiting import PATIENCE_S, eventually

STEP_S = SLICE_S / 4


class Clock:
    """Advances only with the steps of a computation."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.steps = 0

    def step(self, _item: Any = None) -> None:
        self.now_s += STEP_S
        self.steps += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time_slices, "perf_counter", lambda: clock.now_s)
    return clock


async def most_steps_of_a_turn(clock: Clock, *work: asyncio.Task[Any]) -> int:
    most = 0
    while not all(task.done() for task in work):
        before = clock.steps
        await asyncio.sleep(0)
        most = max(most, clock.steps - before)
    return most


@pytest.mark.parametrize("computations", [1, 3, 40])
async def test_a_turn_of_the_loop_has_one_slice_for_all_computations(clock: Clock, computations: int) -> None:
    tasks = [asyncio.create_task(each(range(50), clock.step)) for _ in range(computations)]
    most = await most_steps_of_a_turn(clock, *tasks)
    assert clock.steps == 50 * computations
    assert most <= 5


async def test_consecutive_computations_share_a_slice(clock: Clock) -> None:
    async def several() -> None:
        for _ in range(30):
            await each(range(2), clock.step)

    assert await most_steps_of_a_turn(clock, asyncio.create_task(several())) <= 5


async def test_computations_take_turns(clock: Clock) -> None:
    done: list[str] = []

    async def compute(name: str, steps: int) -> None:
        await each(range(steps), clock.step)
        done.append(name)

    await asyncio.gather(compute("long", 400), compute("longer", 800), compute("short", 40))
    assert done == ["short", "long", "longer"]


async def test_a_cancelled_task_in_the_queue_delays_no_other(clock: Clock) -> None:
    tasks = [asyncio.create_task(each(range(50), clock.step)) for _ in range(5)]
    for _ in range(3):
        await asyncio.sleep(0)
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
    for task in tasks[1:4]:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [False, True, True, True, False]
    assert faults == []


async def test_work_within_a_slice_does_not_wait(clock: Clock) -> None:
    turned: list[None] = []
    asyncio.get_running_loop().call_soon(turned.append, None)
    await pause()
    await pause()
    assert turned == []


@pytest.fixture
def full_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Records full garbage collections, of which one is always due."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append(info["generation"])

    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 100))
    monkeypatch.setattr(time_slices, "_CHECK_EVERY_S", 0.001)
    gc.freeze()  # what pytest holds takes seconds to collect on a busy machine
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.unfreeze()


async def test_full_collections_wait_until_no_request_is_processed(full_collections: list[int]) -> None:
    turns = WorkspaceTurns()
    task = asyncio.create_task(collect_when_idle(turns))
    async with turns.of("ws"):
        await asyncio.sleep(0.05)
        assert full_collections == []
    await eventually(lambda: full_collections)
    task.cancel()


async def test_a_full_collection_runs_late_if_requests_never_pause(
    full_collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slices, "_COLLECT_AFTER_S", 0.01)
    turns = WorkspaceTurns()
    async with turns.of("ws"), asyncio.timeout(PATIENCE_S):
        task = asyncio.create_task(collect_when_idle(turns))
        while not full_collections:
            await asyncio.sleep(0.001)
    task.cancel()
