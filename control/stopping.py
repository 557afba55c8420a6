"""Stopping in the middle of a start: a signal must not have to wait for what the start waits for."""

import asyncio
from collections.abc import Coroutine
from typing import Any


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
