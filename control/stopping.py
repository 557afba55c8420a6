"""Stops a start that is still waiting, and background tasks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_AGAIN_S = 0.1


async def done_unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`; cancel it if `stop` is set first. Returns whether it completed. Raises what `work` raises."""
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
    """Cancel a task, repeatedly, until it ends: redis-py may swallow a cancellation while it reads a reply."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)
