"""Stopping: a start that still waits is cancelled at once."""

import asyncio

import pytest

from control.stopping import done_unless


async def test_a_stop_cancels_a_start_that_is_still_waiting() -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(done_unless(stop, _for_ever()))
    await asyncio.sleep(0)
    stop.set()
    assert await task is False


async def test_an_error_of_the_start_is_raised() -> None:
    with pytest.raises(LookupError):
        await done_unless(asyncio.Event(), _failing())


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _failing() -> None:
    raise LookupError
