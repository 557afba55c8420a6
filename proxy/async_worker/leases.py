"""Renews this process's leases on attempts and deliveries, and reports those that are lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from time import monotonic
from typing import Generic, TypeVar

from proxy.async_requests.queues import HELD_S, RENEW_INTERVAL_S, QueueUnavailableError

Held = TypeVar("Held")
RETRY_S = 0.25
"""Time between two attempts to renew while the queue does not answer."""
log = logging.getLogger(__name__)


class Leases(Generic[Held]):
    """Leases of this process, each with a callback for its loss. `renew` returns the leases that are lost."""

    def __init__(
        self,
        renew: Callable[[Collection[Held]], Awaitable[Collection[Held]]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._renew = renew
        self._clock = clock
        self._entries: dict[Held, tuple[float, Callable[[], object]]] = {}

    def hold(self, one: Held, held_since: float, on_lost: Callable[[], object]) -> None:
        """Renew the lease of `one` from now on. `held_since`: by the clock, before the queue was asked."""
        self._entries[one] = (held_since, on_lost)

    def release(self, one: Held) -> None:
        self._entries.pop(one, None)

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            renewed = await self.renew()
            await asyncio.sleep(RENEW_INTERVAL_S if renewed else RETRY_S)

    async def renew(self) -> bool:
        """Renew all once. Calls `on_lost` for each lease that is lost. Returns False if the queue did not answer."""
        began = self._clock()
        if not (leases := list(self._entries)):
            return True
        try:
            async with asyncio.timeout(RENEW_INTERVAL_S):
                losses = await self._renew(leases)
        except (QueueUnavailableError, TimeoutError):
            self._give_up([one for one in leases if self._is_overdue(one)])
            return False
        for one in leases:
            if one in self._entries:
                self._entries[one] = (began, self._entries[one][1])
        self._give_up(losses)
        return True

    def _is_overdue(self, one: Held) -> bool:
        return one in self._entries and self._clock() - self._entries[one][0] >= HELD_S

    def _give_up(self, losses: Collection[Held]) -> None:
        for one in losses:
            if (entry := self._entries.pop(one, None)) is not None:
                entry[1]()
