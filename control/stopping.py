"""Stopping: in the middle of a start that waits, and for tasks that wait for something else than we do."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_AGAIN_S = 0.1


async def done_unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work` unless `stop` is set first, which cancels it; whether it was done. Raises what `work` raises."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
        return False
    working.result()
    return True


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. Again and again: redis-py may swallow a cancellation that meets an answer."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
