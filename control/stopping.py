"""Stops a start that is still waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def done_unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`; cancel it if `stop` is set first. Returns whether it completed. Raises what `work` raises."""
    working = asyncio.create_task(work)
    stop_wait = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
    stop_wait.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
        return False
    working.result()
    return True
