"""Runs blocking calls outside the event loop, each in a daemon thread of its own.

A call that hangs (a store that does not answer) delays neither other calls nor the end of the process, as it would in
the event loop's own few threads.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def in_daemon_thread(
    work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """The result of `work`, or what it raised. If the caller is cancelled, the thread goes on until `work` returns."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()
    start_daemon_thread(partial(_resolve, future, partial(work, *args, **kwargs)))
    try:
        return await asyncio.wrap_future(future)
    finally:
        del future  # see `_resolve`


def _resolve(future: Future[Result], work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    finally:
        # The error refers to the frames that it left. If they referred to the future, which refers to the error, all
        # that the work made would stay until a full garbage collection.
        del future


def start_daemon_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
