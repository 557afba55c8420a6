"""Runs what a process does in the background, for as long as the process serves. A bug in one part stops no other."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from runtime.exhaustion import is_exhausted, shortage_of

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
PAUSE_S = 1.0
_AGAIN_S = 1.0
"""The pause before another cancellation: longer than a task needs to clean up, which that would cut short."""
log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running(*parts: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run these until the block ends. One that ends or fails is started again."""
    tasks = [asyncio.create_task(_restart_on_failure(part)) for part in parts]
    try:
        yield
    finally:
        await asyncio.gather(*map(cancelled, tasks))


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task, repeatedly, until it ends: a library may swallow a cancellation, as redis-py does on Python 3.11
    by `asyncio.wait_for`."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_S)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most so long. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def in_thread(work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Run disk work in a thread. A cancelled call still waits for the thread, which may be using an open file."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise


async def repeat_in_thread(work: Callable[[], None], interval_s: float) -> None:
    """Run disk work now, and then every `interval_s` for ever, in a thread that the event loop does not have to wake.

    Raises an error of the work. A cancelled call still waits for the work under way, which may be using an open file.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            work()
            over.wait(interval_s)

    thread = ThreadPoolExecutor(1, thread_name_prefix="repeat")
    job = asyncio.wrap_future(thread.submit(repeat))
    thread.shutdown(wait=False)  # no other work follows
    try:
        await asyncio.shield(job)
    finally:
        over.set()
        await asyncio.wait([job])


async def _restart_on_failure(part: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await part()
        except Exception as error:
            if is_exhausted(error):
                log.error("%s A background part of this process starts again in %g s.", shortage_of(error), PAUSE_S)
            else:
                log.exception(
                    "A background part of this process failed; restarting it in %g s. Please report this bug.", PAUSE_S
                )
        await asyncio.sleep(PAUSE_S)
