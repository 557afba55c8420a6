"""Tries again what failed for now, with growing, spread delays."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from commands.errors import AwayError, ManagementError
from commands.records.receiver import ReceiverAwayError

T = TypeVar("T")
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 60.0
_SPREAD = 0.5


class GaveUpError(ManagementError):
    """It failed for longer than `--retry-for`. What was delivered is recorded; the next run goes on from there."""


class Retries:
    """`retry_for_s`: how long to go on trying; None for ever. `say` gets a line about each failure."""

    def __init__(self, retry_for_s: float | None, say: Callable[[str], None], first_delay_s: float = FIRST_DELAY_S):
        self._retry_for_s = retry_for_s
        self._say = say
        self._first_delay_s = first_delay_s

    async def until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is called again after AwayError and ReceiverAwayError. Raises GaveUpError."""
        began_s = time.monotonic()
        ceiling_s = self._first_delay_s
        while True:
            try:
                return await work()
            except (AwayError, ReceiverAwayError) as error:
                asked_s = error.retry_after_s if isinstance(error, ReceiverAwayError) else 0.0
                delay_s = max(asked_s, ceiling_s * random.uniform(_SPREAD, 1.0))  # noqa: S311 (spread, not secrecy)
                if self._retry_for_s is not None and time.monotonic() - began_s + delay_s > self._retry_for_s:
                    raise GaveUpError(f"{error}. Gave up after {self._retry_for_s:g} s (--retry-for)") from None
                self._say(f"{error}. Trying again in {delay_s:.1f} s")
                await asyncio.sleep(delay_s)
                ceiling_s = min(LONGEST_DELAY_S, ceiling_s * 2)
