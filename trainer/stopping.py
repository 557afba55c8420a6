"""Work of an attempt that its stop cuts short."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


class StoppedError(Exception):
    """The attempt was stopped before its nodes were started."""


async def unless_stopped(stop: asyncio.Event, work: Awaitable[Result]) -> Result:
    """Return the result of `work`; cancel it and raise StoppedError if `stop` is set meanwhile."""
    task = asyncio.ensure_future(work)
    wait = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, wait), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise StoppedError
        return task.result()
    finally:
        wait.cancel()
        task.cancel()
