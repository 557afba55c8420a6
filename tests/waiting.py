"""Polls for conditions that raise no event, up to a deadline."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0
DAY_S = 86_400


def stay_within_one_day(behind_s: float = 0.0) -> None:
    """Wait where midnight UTC comes within a minute, by the clock or by one that is so far behind it."""
    left_s = DAY_S - (time.time() - behind_s) % DAY_S
    if left_s < 60 + behind_s:
        time.sleep(left_s + 1)


async def eventually(
    look: Callable[[], Awaitable[Any] | Any],
    what: str | Callable[[], str] = "",
    within_s: float = PATIENCE_S,
    every_s: float = 0.005,
) -> Any:
    """Poll `look` and return its first true result. Raises AssertionError with `what` after `within_s`."""
    give_up_at = time.monotonic() + within_s
    while True:
        result = look()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < give_up_at, f"never happened: {what() if callable(what) else what}"
        await asyncio.sleep(every_s)


async def until_still(look: Callable[[], Any], turns: int = 50) -> None:
    """Wait until `look` returns the same for `turns` turns of the event loop: a stalled machine takes none."""
    state = look()
    turns_left = turns
    while turns_left:
        await asyncio.sleep(0.005)
        next_state = look()
        turns_left = turns_left - 1 if next_state == state else turns
        state = next_state
