"""An event loop that skips the time in which nothing would happen. Waits of any length pass at once, and exactly.

For tests whose parts live in this process and take the time from the loop: time that is skipped passes for nobody else.
A module that sets `SKIPS_IDLE_TIME = True` runs on it.
"""

import asyncio
import selectors
from typing import Any


class _SkippingSelector(selectors.DefaultSelector):
    """Moves the clock on where others wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        if timeout is None:
            return super().select()
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """The loop's time in seconds, from 0."""
        return self._skipping.now_s
