"""Long computations run beside the event loop, one at a time, and workspaces take turns."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from control.long_work import FEW, beside
from tests.waiting import PATIENCE_S


class Gate:
    """Work that waits until it is let go, and notes the order in which pieces of work ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            assert self._open.wait(PATIENCE_S)
            self.ran.append(name)
            return name

        return run


async def test_the_loop_turns_while_a_long_computation_runs() -> None:
    gate = Gate()
    task = asyncio.create_task(beside("ws", FEW + 1, gate.work("long")))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    gate.open()
    assert await task == "long"


async def test_short_work_waits_for_no_other() -> None:
    gate = Gate()
    long = asyncio.create_task(beside("ws", FEW + 1, gate.work("long")))
    await asyncio.sleep(0)
    assert await beside("ws", FEW, lambda: "short") == "short"
    gate.open()
    await long


async def test_workspaces_take_turns_beside_the_loop() -> None:
    gate = Gate()
    names = ["a1", "a2", "a3", "b1", "b2"]
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(beside(name[0], FEW + 1, gate.work(name))))
        await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*tasks)
    assert gate.ran == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_cancelled_computation_delays_no_other() -> None:
    gate = Gate()
    tasks = [asyncio.create_task(beside("ws", FEW + 1, gate.work(str(number)))) for number in range(4)]
    await asyncio.sleep(0)
    for task in tasks[:3]:
        task.cancel()
    gate.open()
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[3] == "3"
    assert all(isinstance(one, asyncio.CancelledError) for one in results[:3])


@pytest.mark.parametrize("items", [1, FEW + 1])
async def test_what_work_raises_reaches_its_caller(items: int) -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await beside("ws", items, fail)


async def test_failed_work_keeps_nothing_until_a_garbage_collection() -> None:
    references: list[weakref.ref[Gate]] = []

    def fail() -> None:
        large = Gate()
        references.append(weakref.ref(large))
        raise ValueError

    gc.disable()
    try:
        with suppress(ValueError):
            await beside("ws", FEW + 1, fail)
        await asyncio.sleep(0)
        assert references[0]() is None
    finally:
        gc.enable()
