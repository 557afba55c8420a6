"""Stopping: a waiting start is cancelled at once, and a task that swallows a cancellation still ends."""

import asyncio

import pytest

from control.stopping import cancelled, done_unless


async def test_a_task_that_swallows_a_cancellation_still_ends() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await cancelled(task)
    assert task.cancelled()
    assert swallowed == 2


async def test_a_stop_cancels_a_start_that_is_still_waiting() -> None:
    stop = asyncio.Event()
    waiting = asyncio.create_task(done_unless(stop, _for_ever()))
    await asyncio.sleep(0)
    stop.set()
    assert await waiting is False


async def test_an_error_of_the_start_is_raised() -> None:
    with pytest.raises(LookupError):
        await done_unless(asyncio.Event(), _failing())


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _failing() -> None:
    raise LookupError
