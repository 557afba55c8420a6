"""Confirms to control that no reservation of this machine is missing in trees that Redis has lost, or may have lost.

Control names such trees. Each worker puts the reservations of its calls again. Then all that was journaled until then
is committed: so each call that took from the tree before is there again, or its event is known to control.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from runtime.backoff import pause_s
from runtime.log_lines import PacedLog

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
_WARNING_S = 60.0
log = logging.getLogger(__name__)

Committed = Callable[[Mapping[str, tuple[int, int]]], Awaitable[None]]
"""See `Shipper.committed`."""


class ProxyWorker(Protocol):
    """A place for a worker process of this machine, as far as spend limits need it: `WorkerSlot`.

    `health` has `rebuilt`, by hash key the state of each tree in which all its reservations are, and `journal_place`,
    the end of its journal at that time; None if it has lost the end of a call.
    """

    @property
    def incarnation(self) -> str: ...
    @property
    def health(self) -> Mapping[str, Any]: ...
    async def flush(self) -> bool: ...
    def send(self, message: dict[str, Any]) -> None: ...


class SpendRebuilds:
    """Call `tell` with each answer of control, and `started` for each worker. `run` does the rest."""

    def __init__(
        self, workers: Callable[[], Sequence[ProxyWorker]], committed: Committed, on_done: Callable[[], None]
    ) -> None:
        """`on_done`: called when `confirmed` has something new."""
        self._workers = workers
        self._committed = committed
        self._on_done = on_done
        self.confirmed: dict[str, str] = {}
        """The state of each tree that can be confirmed, by hash key, until control has taken it."""
        self._states: Mapping[str, str] = {}
        self._messages: dict[str, dict[str, Any]] = {}
        """The last message to each living worker that control knows, by incarnation."""
        self._wake = asyncio.Event()
        self._warnings = PacedLog(log, _WARNING_S)

    def tell(self, incarnations: Collection[str], states: Mapping[str, str], reported: Mapping[str, str]) -> None:
        """Tell the workers of these incarnations what waits, now that control has taken a report that names them.

        Others may not reserve yet: control ends the reservations of incarnations that no machine names. `states`: by
        hash key, the state of each tree that waits for this machine. `reported`: what the report has confirmed.
        Workers hear of it once more: a reply of an earlier server may still be on its way to them.
        """
        for key, state in reported.items():
            if self.confirmed.get(key) == state:
                del self.confirmed[key]
        self._states = states
        message = {"is": "spend", "waiting": {**reported, **states}}
        living = [worker for worker in self._workers() if worker.incarnation in incarnations]
        for worker in living:
            if self._messages.get(worker.incarnation) != message:
                worker.send(message)
        self._messages = {worker.incarnation: message for worker in living}
        self._wake.set()

    def started(self, incarnation: str) -> None:
        """Have a worker told, once control knows it: what was sent to it before its channel was open is lost."""
        self._messages.pop(incarnation, None)

    async def run(self) -> None:
        looks = 0
        while True:
            self._wake.clear()
            if not self._unconfirmed():
                looks = 0
                await self._wake.wait()
                continue
            await asyncio.gather(*(worker.flush() for worker in self._workers()))
            rebuilt, places = self._rebuilt()
            if rebuilt:
                looks = 0
                await self._committed(places)
                self.confirmed |= {key: state for key, state in rebuilt.items() if self._states.get(key) == state}
                self._on_done()
            else:
                looks += 1
                await asyncio.sleep(pause_s(looks, FIRST_PAUSE_S, LONGEST_PAUSE_S))

    def _unconfirmed(self) -> dict[str, str]:
        return {key: state for key, state in self._states.items() if self.confirmed.get(key) != state}

    def _rebuilt(self) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
        """The trees that all living workers have rebuilt, and where their journals ended then.

        A worker that has died has no say: its journal is committed whole. One that starts has, as it may be late to
        hear that the server is another one.
        """
        rebuilt = self._unconfirmed()
        places: dict[str, tuple[int, int]] = {}
        for worker in self._workers():
            if not worker.incarnation:
                continue
            own: Mapping[str, str] = worker.health.get("rebuilt", {})
            rebuilt = {key: state for key, state in rebuilt.items() if own.get(key) == state}
            if not rebuilt:
                return {}, {}
            place = worker.health["journal_place"]
            if place is None:
                self._warnings.warning(
                    "A worker cannot confirm to control what it has reserved of spend limits, because the disk refused"
                    f" the end of a call (incarnation {worker.incarnation}). Until it ends, calls that HARD limits bind"
                    " are answered 503 on all machines. See to the disk of TOLLGATE_JOURNAL_DIR, then restart this"
                    " proxy: the call is billed from its journal."
                )
                return {}, {}
            segment, offset = place
            places[worker.incarnation] = (segment, offset)
        return rebuilt, places
