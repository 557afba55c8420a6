"""Work that cannot be cut runs beside the event loop, and the work that yields it gets its result."""

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest

from proxy.time_slices import Slices, Uncut, at_once


def work(uncut: Uncut) -> Generator[Uncut | None, Any, str]:
    yield None
    found: str = yield uncut
    return f"found {found}"


def thread_name() -> str:
    return threading.current_thread().name


async def test_uncut_work_runs_in_a_thread_and_the_loop_goes_on() -> None:
    slices, going_on = Slices(), threading.Event()
    asyncio.get_running_loop().call_later(0.01, going_on.set)
    assert await slices.beside(lambda: going_on.wait(timeout=10))


async def test_sliced_work_gets_the_result_of_what_it_yields() -> None:
    assert await Slices().run(work(thread_name), 1) == "found uncut-work_0"
    assert at_once(work(lambda: "me")) == "found me"


async def test_error_of_uncut_work_is_raised() -> None:
    def fail() -> str:
        raise LookupError("x")

    with pytest.raises(LookupError):
        await Slices().run(work(fail), 1)
    with pytest.raises(LookupError):
        await Slices().beside(fail)
