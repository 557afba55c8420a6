"""Brings what the workers' journals hold to control, and recovers what dead workers left.

It runs in the supervisor. An event counts as delivered when control has committed it; until then its journal stays.
Sending twice is harmless (control ignores a known key), losing is not: on doubt it sends again. A living worker settles
for itself, and its journal stays until it says that it has; what a dead one left is settled from its journal.

See docs/reference/events-and-webhooks.md#from-call-to-database.
"""

import asyncio
import contextlib
import logging
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from policy.limits.settlement import Settlement
from proxy.accounting.recovery import Ledger, events_of, settlements_of
from proxy.edges.journal.supervisor.delivery import Delivery, IngestClient, IngestUnavailableError, in_thread
from proxy.edges.journal.supervisor.disk_reserve import DiskReserve
from proxy.edges.journal.supervisor.journal_reader import JournalReader, ReadPosition
from proxy.edges.journal.supervisor.shipped_events import DIRECTORY_NAME, ShippedEvents, ShippedOptions
from proxy.exchange import CountersUnavailableError

Settled = Callable[[str], Awaitable[int]]
"""Up to which number all settlements of a living incarnation are in Redis, as it says itself; 0 when it does not."""
log = logging.getLogger(__name__)

RESERVE_NAME = "ballast"
RESERVE_BYTES = 1024 * 1024
REPLAY_CHUNK = 2_000
_LONGEST_HOLD_MS = 2 * 86_400_000
"""A counter's key lives three days without use; older settlements might find their marker gone, and count twice."""


class SettlementReplayer(Protocol):
    """The counters, as far as the settlements of a dead worker need them."""

    def replay(self, incarnation: str, settlements: list[Settlement]) -> Awaitable[object]:
        """Returns when Redis has them, however long that takes; or raises `CountersUnavailableError`."""
        ...


@dataclass(frozen=True, slots=True)
class ShipperOptions:
    batch_events: int = 1000
    batch_bytes: int = 1_000_000
    poll_interval_s: float = 0.5
    first_delay_s: float = 0.1
    longest_delay_s: float = 15.0
    look_back_interval_s: float = 60.0
    """After so long without a word from control it is asked whether it still has what it committed."""
    shipped: ShippedOptions = field(default_factory=ShippedOptions)


class _Retry:
    """When to try again: exponential, jittered over its whole range, so that proxies do not return in step."""

    def __init__(self, options: ShipperOptions) -> None:
        self._options = options
        self.failures = 0
        self._not_before = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._not_before

    def failed(self) -> None:
        ceiling = min(self._options.longest_delay_s, self._options.first_delay_s * 2 ** min(self.failures, 16))
        self.failures += 1
        self._not_before = time.monotonic() + ceiling * random.uniform(0.5, 1.0)  # noqa: S311 (spread, not secrecy)

    def succeeded(self) -> bool:
        """Whether there had been a failure."""
        had, self.failures, self._not_before = self.failures > 0, 0, 0.0
        return had


class Shipper:
    """One loop over all journals in the directory. One batch is under way at a time, whoever it comes from."""

    def __init__(
        self, directory: Path, ingest: IngestClient, counters: SettlementReplayer, options: ShipperOptions | None = None
    ) -> None:
        self._directory = directory
        self._counters = counters
        self._options = options or ShipperOptions()
        self._shipped = ShippedEvents(directory / DIRECTORY_NAME, self._options.shipped)
        largest = (self._options.batch_events, self._options.batch_bytes)
        self._delivery = Delivery(directory, ingest, self._shipped, largest)
        self._readers: dict[str, JournalReader] = {}
        self._settled: set[str] = set()
        self._orphaned: set[str] = set()
        self._batch: list[bytes] = []
        self._replays: dict[str, asyncio.Task[None]] = {}
        """Under way, each of all that a dead worker left."""
        self._posting, self._replaying, self._saving_position, self._settled_poll = (
            _Retry(self._options) for _ in range(4)
        )
        self._reserve = DiskReserve(directory / RESERVE_NAME, RESERVE_BYTES)
        self._live: Callable[[], Collection[str]] = tuple
        self._worker_settled: Settled = _unknown
        self._wake = asyncio.Event()
        self._round_done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.pending = 0
        """Events that the last look found in the journals, not yet known to be committed. Between two looks it stays: 0
        means that a look found none, never that they are just being read or that their post has just ended."""
        self._damage: set[tuple[str, int, int]] = set()

    @property
    def rejected(self) -> int:
        return self._delivery.rejected

    @property
    def resent(self) -> int:
        """Events that were sent again after a restore of control's database, since start."""
        return self._delivery.resent

    @property
    def retained_bytes(self) -> int:
        """What the events take that are kept for such a restore."""
        return self._shipped.bytes

    @property
    def damaged(self) -> int:
        """In how many places of the journals something stood that is no record."""
        return len(self._damage)

    def start(self, live_incarnations: Callable[[], Collection[str]], settled: Settled) -> None:
        """`live_incarnations`: of the workers that are known to run; all others are looked at closely."""
        self._live, self._worker_settled = live_incarnations, settled
        self._task = asyncio.create_task(self._run_forever(), name="shipper")

    def worker_died(self, incarnation: str) -> None:
        """Recover it now rather than at the next look."""
        log.info("recovering the journal of %s", incarnation)
        self._wake.set()

    def doubt_control(self) -> None:
        """Control's database may have been restored: ask whether it still has what it committed."""
        self._delivery.doubt()
        self._wake.set()

    async def drain(self, timeout_s: float) -> bool:
        """Ship all there is, the workers having stopped; whether that was done in time. The shipper ends."""
        self._live = tuple
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._until_empty()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for replay in self._replays.values():
            replay.cancel()
        if self._replays:
            await asyncio.wait(self._replays.values())
        empty = not self._batch and not self._readers
        self._forget()
        await in_thread(self._shipped.close)
        return empty

    async def _until_empty(self) -> None:
        for _ in range(2):  # what was written before now is seen by the second round at the latest
            self._round_done.clear()
            self._wake.set()
            await self._round_done.wait()
        while self._batch or self._readers:
            self._round_done.clear()
            await self._round_done.wait()

    async def _run_forever(self) -> None:
        await in_thread(self._reserve.hold)
        await self._delivery.open()
        while True:
            try:
                busy = await self._round()
            except Exception:  # whatever it is, the journals still hold everything: begin again from the disk
                log.exception("the shipper stumbled")
                self._forget()
                busy = False
                await asyncio.sleep(self._options.longest_delay_s / 10)
            self._round_done.set()
            if not busy:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.poll_interval_s):
                        await self._wake.wait()
                self._wake.clear()

    def _forget(self) -> None:
        for reader in self._readers.values():
            reader.release()
        self._readers, self._batch = {}, []
        self._settled, self._orphaned = set(), set()

    async def _round(self) -> bool:
        """Look and read, settle, post, tidy. Whether there is more to send than this batch.

        What only trickles in is left to gather for an interval: a batch costs control as much as a hundred events.
        """
        await in_thread(self._look)
        await self._settle()
        posted = bool(self._batch) and self._posting.due and await self._post_batch()
        resending = self._posting.due and await self._look_back()
        if not self._batch:
            await self._tidy()
        return resending or (posted and not all(reader.all_read for reader in self._readers.values()))

    def _look(self) -> None:
        """All that a round does on the disk: each hop to a thread costs as much as reading some hundred records."""
        self._discover()
        self._shipped.make_room()
        if not self._batch:
            self._batch = self._next_batch()
        self.pending = len(self._batch) + sum(reader.unread_closes for reader in self._readers.values())

    def _discover(self) -> None:
        """New journals, and which have lost their writer. A name with a dot is one in the making or in removal."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith(".done-"):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.name not in self._readers and not entry.name.startswith(".") and entry.is_dir():
                    self._readers[entry.name] = JournalReader(self._directory / entry.name)
        live = self._live()
        for reader in self._readers.values():
            if reader.incarnation not in live and not reader.dead and reader.check_dead():
                log.info("journal %s: its worker is gone", reader.incarnation)
            if self._batch or not reader.all_read:  # else there is nothing to count that is not read at once
                reader.count_unread_closes()

    async def _settle(self) -> None:
        """A dead worker's holds are put right at once, whether or not control can be reached.

        Beside the loop, because that lasts until Redis is back; one replay per incarnation: sent twice at the same
        time, a settlement could count twice.
        """
        await self._reap_replays()
        for name, reader in self._readers.items():
            if reader.dead and name not in self._settled and name not in self._replays and self._replaying.due:
                self._replays[name] = asyncio.create_task(self._replay_all_of(reader))

    async def _reap_replays(self) -> None:
        for name, task in list(self._replays.items()):
            if not task.done():
                continue
            del self._replays[name]
            if isinstance(task.exception(), CountersUnavailableError):
                self._replaying.failed()
                continue
            task.result()
            self._replaying.succeeded()
            self._settled.add(name)

    async def _replay_all_of(self, reader: JournalReader) -> None:
        """Of a dead worker: what ended and, above all its numbers, what did not."""
        orphans = (await self._replay_ended(reader)).orphans()
        if orphans:
            log.warning("journal %s: %d calls died with their worker", reader.incarnation, len(orphans))
        await self._replay(reader.incarnation, settlements_of(orphans))

    async def _replay_ended(self, reader: JournalReader) -> Ledger:
        again = reader.again()
        try:
            while not again.finished:
                ended = await in_thread(again.read, REPLAY_CHUNK)
                await self._replay(reader.incarnation, settlements_of(ended))
        finally:
            again.release()
        return again.ledger

    async def _replay(self, incarnation: str, settlements: Sequence[Settlement]) -> None:
        oldest_ms = time.time_ns() // 1_000_000 - _LONGEST_HOLD_MS
        fresh = [settlement for settlement in settlements if settlement.reservation.admitted_at_ms > oldest_ms]
        for start in range(0, len(fresh), REPLAY_CHUNK):
            await self._counters.replay(incarnation, fresh[start : start + REPLAY_CHUNK])

    def _next_batch(self) -> list[bytes]:
        """From each journal in turn, so that none starves another."""
        batch: list[bytes] = []
        share = max(1, self._options.batch_events // max(1, len(self._readers)))
        for name, reader in self._readers.items():
            batch += events_of(reader.read(share))
            self._damage.update((name, *place) for place in reader.damage)
            if reader.finished and name not in self._orphaned:
                batch += events_of(reader.ledger.orphans())
                self._orphaned.add(name)
        return batch

    async def _post_batch(self) -> bool:
        if not await self._taken(self._delivery.post(self._batch)):
            return False
        self._batch = []
        return True

    async def _look_back(self) -> bool:
        """Have sent again what a restored database lacks; whether there is more of it."""
        looked = await self._taken(self._delivery.look_back(self._options.look_back_interval_s))
        return looked and self._shipped.resending

    async def _taken(self, delivering: Awaitable[None]) -> bool:
        """Whether control takes events."""
        try:
            await delivering
        except IngestUnavailableError as error:
            if not self._posting.failures:
                log.warning("control does not take events, they wait in the journal: %s", error)
            self._posting.failed()
            return False
        if self._posting.succeeded():
            log.warning("control takes events again")
        return True

    async def _tidy(self) -> None:
        """Everything that was read is committed: note how far, let go of what is done with."""
        for name, reader in list(self._readers.items()):
            if name in self._orphaned and name in self._settled:
                del self._readers[name]
                self._orphaned.discard(name)
                self._settled.discard(name)
                await in_thread(reader.remove)
            elif reader.may_save_position and self._saving_position.due:
                position = reader.position()
                if name in self._settled or (not reader.dead and await self._is_settled(name, position)):
                    await self._note(reader, position)

    async def _is_settled(self, incarnation: str, position: ReadPosition) -> bool:
        """Whether all settlements before the position are in Redis. Until then the journal must keep them."""
        if not self._settled_poll.due:
            return False
        if await self._worker_settled(incarnation) < position.last_number:
            self._settled_poll.failed()
            return False
        self._settled_poll.succeeded()
        return True

    async def _note(self, reader: JournalReader, position: ReadPosition) -> None:
        """Where the disk does not take it, the segments stay a while longer; events go on meanwhile."""
        try:
            await in_thread(self._reserve.use, lambda: reader.save_position(position))
        except OSError as error:
            if not self._saving_position.failures:
                log.error("journal %s: its place cannot be noted: %s", reader.incarnation, error.strerror)
            self._saving_position.failed()
        else:
            self._saving_position.succeeded()


async def _unknown(incarnation: str) -> int:
    return 0
