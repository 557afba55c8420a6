"""How tests wait for what they get no event for: look again, up to a deadline."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 30.0


async def eventually(
    look: Callable[[], Awaitable[Any] | Any],
    what: str | Callable[[], str] = "",
    within_s: float = PATIENCE_S,
    every_s: float = 0.005,
) -> Any:
    """Return what `look` returns, once that is true. AssertionError with `what` if it is not within `within_s`."""
    give_up_at = time.monotonic() + within_s
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < give_up_at, f"never happened: {what() if callable(what) else what}"
        await asyncio.sleep(every_s)
