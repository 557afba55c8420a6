"""Runs blocking calls outside the event loop, each in a daemon thread of its own.

A call that hangs (a store that does not answer) delays neither other calls nor the end of the process, as it would in
the event loop's own few threads.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def in_daemon_thread(
    work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """The result of `work`, or what it raised. If the caller is cancelled, the thread goes on until `work` returns."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    start_daemon_thread(run)
    return await asyncio.wrap_future(future)


def start_daemon_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
