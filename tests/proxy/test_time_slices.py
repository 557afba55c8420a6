"""Work in slices: what cannot be cut runs beside the event loop meanwhile, and each workspace has a share."""

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest

from proxy.time_slices import LONG_BYTES, Slices, Uncut, at_once
from runtime.shares.places import MAX_WAITING, NoPlaceError

W1 = "w1"
W2 = "w2"


def work(uncut: Uncut) -> Generator[Uncut | None, Any, str]:
    yield None
    value: str = yield uncut
    return f"found {value}"


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def noted(name: str, order: list[str], steps: int = 1) -> Generator[None, None, None]:
    for _ in range(steps):
        yield
    order.append(name)


async def test_sliced_work_gets_the_result_of_what_it_yields() -> None:
    assert await Slices().run(W1, work(is_main_thread), 1) == "found False"
    assert at_once(work(lambda: "me")) == "found me"


async def test_error_of_uncut_work_is_raised() -> None:
    def fail() -> str:
        raise LookupError("x")

    slices = Slices()
    for _ in range(2):  # and it keeps no turn
        with pytest.raises(LookupError):
            await slices.run(W1, work(fail), 1)
        with pytest.raises(LookupError):
            await slices.beside(W1, fail)


@pytest.mark.parametrize("size_bytes", [1, LONG_BYTES + 1])
async def test_sliced_work_of_a_workspace_waits_for_one_of_another(size_bytes: int) -> None:
    slices = Slices()
    order = list[str]()
    many = [slices.run(W1, noted(f"w1 {n}", order, steps=20), size_bytes) for n in range(50)]
    await asyncio.gather(*many, slices.run(W2, noted("w2", order), size_bytes))
    assert order[:3] == ["w1 0", "w2", "w1 1"]


async def test_sliced_work_goes_on_while_uncut_work_of_another_runs_beside() -> None:
    slices = Slices()
    going_on = threading.Event()
    order = list[str]()
    sliced = asyncio.create_task(slices.run(W1, work(lambda: going_on.wait(timeout=60)), 1))
    await slices.run(W2, noted("w2", order), 1)
    assert order
    assert not sliced.done()
    going_on.set()
    assert await sliced == "found True"


async def test_only_work_on_answers_may_wait_beyond_the_bound() -> None:
    slices = Slices()
    order = list[str]()
    many = [asyncio.create_task(slices.run(W1, noted("w1", order), 1)) for _ in range(MAX_WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(NoPlaceError):
        await slices.run(W1, noted("too many", order), 1)
    await slices.run(W1, noted("paid", order), 1, is_paid=True)
    await asyncio.gather(*many)
    assert order == ["w1"] * len(many) + ["paid"]
