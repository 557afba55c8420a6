"""Ships the events of the workers' journals to control, and recovers the journals of dead workers.

Runs in the supervisor. A journal stays on disk until control has committed its events and Redis has its settlements.
When in doubt an event is sent again: control ignores a known key. A living worker settles its own calls; those of a
dead worker are settled from its journal.

See docs/reference/events-and-webhooks.md#from-call-to-database.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from policy.limits.settlement import Settlement
from proxy.accounting.recovery import Ledger, join_events, settlements_of
from proxy.edges.journal.segments import remove_strays
from proxy.edges.journal.supervisor.commit_wait import CommitWait
from proxy.edges.journal.supervisor.delivery import Delivery, IngestClient, IngestUnavailableError, in_thread
from proxy.edges.journal.supervisor.disk_reserve import DiskReserve
from proxy.edges.journal.supervisor.journal_reader import JournalReader, ReadPosition
from proxy.edges.journal.supervisor.shipped_events import DIRECTORY_NAME, ShippedEvents, ShippedOptions
from proxy.errors import CountersUnavailableError
from runtime.background import is_set_within
from runtime.backoff import pause_s
from runtime.log_lines import START_S, OutageLog, cause_of

SettledThrough = Callable[[str], Awaitable[int]]
"""Asks a living incarnation up to which number all its settlements are in Redis. 0 when it does not answer."""
log = logging.getLogger(__name__)

STRAY_AFTER_S = 86_400.0
"""A journal may be on a disk that is not mounted at the moment. After this long it counts as gone."""
RESERVE_NAME = "ballast"
RESERVE_BYTES = 1024 * 1024
REPLAY_CHUNK = 2_000
_MAX_SETTLEMENT_AGE_MS = 2 * 86_400_000
"""The greatest age of a settlement that is replayed. A counter's key expires after three days without use, and with it
the marker without which a settlement would count twice."""


class SettlementReplayer(Protocol):
    """The counters, as far as a replay of a dead worker's settlements needs them."""

    def replay(self, incarnation: str, settlements: list[Settlement]) -> Awaitable[object]:
        """Return when Redis has them, however long that takes, or raise `CountersUnavailableError`."""
        ...


@dataclass(frozen=True, slots=True)
class ShipperOptions:
    batch_events: int = 4000
    batch_bytes: int = 1_500_000
    """The most events, and about the most bytes of events, in one request."""
    round_events: int = 8000
    """The most events that a round reads. If journals hold more, the rest is counted first, which is half of the work
    of reading it. Eight thousand take about 8 MB."""
    poll_interval_s: float = 0.5
    idle_interval_s: float = 5.0
    """The longest time between two rounds while nothing is left to do. `calls_ended` ends it: workers tell of calls
    within 0.1 s, so such a round finds only what nobody has told of."""
    first_delay_s: float = 0.1
    longest_delay_s: float = 15.0
    look_back_interval_s: float = 60.0
    """Time without an answer from control after which it is asked whether it still has what it committed."""
    memory_root: Path | None = None
    """The directory in memory to which workers write their journals first."""
    shipped: ShippedOptions = field(default_factory=ShippedOptions)


class _Retry:
    """The time of the next try, and the failures so far."""

    def __init__(self, options: ShipperOptions) -> None:
        self._options = options
        self.failures = 0
        self._not_before = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._not_before

    def failed(self) -> None:
        self.failures += 1
        wait_s = pause_s(self.failures, self._options.first_delay_s, self._options.longest_delay_s)
        self._not_before = time.monotonic() + wait_s

    def succeeded(self) -> None:
        self.failures = 0
        self._not_before = 0.0


class Shipper:
    """One loop over all journals in the directory. Sends one batch at a time, whichever journals it comes from."""

    def __init__(
        self, directory: Path, ingest: IngestClient, counters: SettlementReplayer, options: ShipperOptions | None = None
    ) -> None:
        self._directory = directory
        self._counters = counters
        self._options = options or ShipperOptions()
        self._shipped = ShippedEvents(directory / DIRECTORY_NAME, self._options.shipped)
        max_request = (self._options.batch_events, self._options.batch_bytes)
        self._delivery = Delivery(directory, ingest, self._shipped, max_request)
        self._readers: dict[str, JournalReader] = {}
        self._settled: set[str] = set()
        self._orphaned: set[str] = set()
        self._unsent: list[bytes] = []
        self._replays: dict[str, asyncio.Task[None]] = {}
        """The replays under way, by dead incarnation."""
        self._posting, self._replaying, self._saving_position, self._settled_poll = (
            _Retry(self._options) for _ in range(4)
        )
        self._outage = OutageLog(log, START_S)
        self._reserve = DiskReserve(directory / RESERVE_NAME, RESERVE_BYTES)
        self._live_incarnations: Callable[[], Collection[str]] = tuple
        self._worker_settled: SettledThrough = _unknown
        self.on_removed: Callable[[], None] = _nothing
        """Called when a journal was removed because all of it is committed."""
        self._waits: list[CommitWait] = []
        self._wake = asyncio.Event()
        self._have_calls_ended = False
        """True if calls have ended since the last round began."""
        self._is_idle = False
        self._round_done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.pending = 0
        """Events in the journals that were not known to be committed in the last round. Changes only at the start of
        a round: 0 means that a round found none, never that events are just being read or posted."""
        self._damage: set[tuple[str, int, int]] = set()

    @property
    def rejected(self) -> int:
        return self._delivery.rejected

    @property
    def resent(self) -> int:
        """Events sent again after a restore of control's database, since start."""
        return self._delivery.resent

    @property
    def retained_bytes(self) -> int:
        """The size of the events that are kept for such a restore."""
        return self._shipped.bytes

    @property
    def damaged(self) -> int:
        """The number of damaged places in the journals since start."""
        return len(self._damage)

    def start(self, live_incarnations: Callable[[], Collection[str]], settled: SettledThrough) -> None:
        """Start the loop. Journals of other incarnations than `live_incarnations` are checked for a dead worker."""
        self._live_incarnations = live_incarnations
        self._worker_settled = settled
        self._task = asyncio.create_task(self._run_forever(), name="shipper")

    def calls_ended(self) -> None:
        """Note that a worker has journaled the ends of calls. The next round finds them, at once if none was due."""
        self._have_calls_ended = True
        if self._is_idle:
            self._wake.set()

    def worker_died(self, incarnation: str) -> None:
        """Recover its journal now rather than in the next round."""
        log.info("Recovering the journal of dead worker %s.", incarnation)
        self._wake.set()

    def check_control(self) -> None:
        """Ask control now whether it still has what it committed: its database may have been restored."""
        self._delivery.check_control()
        self._wake.set()

    async def committed(self, places: Mapping[str, tuple[int, int]]) -> None:
        """Return once control has committed the events of the journals that are here now, however long that takes.

        `places`: by incarnation, the end of what a worker had written. Its journal must be committed through there, and
        those of dead workers whole. Journals of living workers without a place are passed over.
        """
        wait = CommitWait(places)
        self._waits.append(wait)
        self._wake.set()
        try:
            await wait.over.wait()
        finally:
            self._waits.remove(wait)

    async def drain(self, timeout_s: float) -> bool:
        """Ship everything, after the workers have stopped, and end the loop. Return whether all was shipped in time."""
        self._live_incarnations = tuple
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
        empty = not self._unsent and not self._readers
        self._drop_readers()
        await in_thread(self._shipped.close)
        return empty

    async def _until_empty(self) -> None:
        for _ in range(2):  # the second round sees everything that was written before now
            self._round_done.clear()
            self._wake.set()
            await self._round_done.wait()
        while self._unsent or self._readers:
            self._round_done.clear()
            await self._round_done.wait()

    async def _run_forever(self) -> None:
        if self._options.memory_root is not None:
            await in_thread(remove_strays, STRAY_AFTER_S, self._options.memory_root)
        await in_thread(self._reserve.allocate)
        await self._delivery.open()
        while True:
            try:
                busy = await self._round()
            except Exception:  # the journals still hold everything: start again from the disk
                log.exception(
                    "Event shipper failed; it starts again from the journals on disk. No event is lost. Please report"
                    " this bug."
                )
                self._drop_readers()
                busy = False
                await asyncio.sleep(self._options.longest_delay_s / 10)
            self._round_done.set()
            if not busy:
                await self._until_next_round()

    async def _until_next_round(self) -> None:
        """Wait for an interval, so that single events are sent together, then until there may be something to do."""
        if not await is_set_within(self._wake, self._options.poll_interval_s) and not self._may_find_something():
            self._is_idle = True
            await is_set_within(self._wake, self._options.idle_interval_s)
            self._is_idle = False
        self._wake.clear()

    def _may_find_something(self) -> bool:
        """Return whether a round may have something to do, unless calls end before it."""
        if self._have_calls_ended or self._unsent or self._waits or self._replays or self._posting.failures:
            return True
        live = self._live_incarnations()
        readers = self._readers.values()
        return self._shipped.resending or any(
            one.incarnation not in live or one.may_save_position or not one.all_read for one in readers
        )

    def _drop_readers(self) -> None:
        for reader in self._readers.values():
            reader.release()
        self._readers = {}
        self._unsent = []
        self._settled = set()
        self._orphaned = set()

    async def _round(self) -> bool:
        """Read, settle, post, delete. Return whether there is more to send at once.

        Single events wait for the next interval: a batch costs control as much as a hundred events.
        """
        self._have_calls_ended = False
        waits = tuple(self._waits)  # what is on disk now, this round finds
        await in_thread(self._read_journals)
        await self._start_replays()
        posted = bool(self._unsent) and self._posting.due and await self._post_batch()
        resending = self._posting.due and await self._look_back()
        if not self._unsent:
            if not self._shipped.resending:
                for wait in waits:
                    wait.look(self._readers, self._live_incarnations(), self._orphaned)
            await self._save_or_remove()
        return resending or (posted and not all(reader.all_read for reader in self._readers.values()))

    def _read_journals(self) -> None:
        """Do all disk reads of a round in one thread call: each call costs as much as reading some hundred records."""
        self._find_journals()
        self._shipped.make_room()
        if not self._unsent:
            self._unsent = self._next_batch()
        self.pending = len(self._unsent) + sum(reader.unread_closes for reader in self._readers.values())

    def _find_journals(self) -> None:
        """Find new journals and those whose worker died. A name with a dot is being created or removed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith(".done-"):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.name not in self._readers and not entry.name.startswith(".") and entry.is_dir():
                    self._readers[entry.name] = JournalReader(self._directory / entry.name)
        live = self._live_incarnations()
        for reader in self._readers.values():
            if reader.incarnation not in live and not reader.dead and reader.check_dead():
                log.info("Journal %s: its worker has died; recovering its calls.", reader.incarnation)
            if self._unsent or not reader.all_read:  # otherwise this round reads everything
                reader.count_unread_closes()

    async def _start_replays(self) -> None:
        """Replay the settlements of dead workers, whether or not control can be reached.

        Runs beside the loop, because a replay lasts until Redis is back. One replay per incarnation: two at once could
        count a settlement twice.
        """
        await self._collect_replays()
        for name, reader in self._readers.items():
            if reader.dead and name not in self._settled and name not in self._replays and self._replaying.due:
                replay = self._replays[name] = asyncio.create_task(self._replay_all_of(reader))
                replay.add_done_callback(lambda _: self._wake.set())

    async def _collect_replays(self) -> None:
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
        """Replay the calls that ended, then the orphans, whose numbers are above all others."""
        orphans = (await self._replay_ended(reader)).orphans()
        if orphans:
            log.warning(
                "Journal %s: %d calls died with their worker; they are billed for what was delivered.",
                reader.incarnation,
                len(orphans),
            )
        await self._replay(reader.incarnation, settlements_of(orphans))

    async def _replay_ended(self, reader: JournalReader) -> Ledger:
        replayed = reader.from_saved_position()
        try:
            while not replayed.finished:
                ended = await in_thread(replayed.read, REPLAY_CHUNK)
                await self._replay(reader.incarnation, settlements_of(ended))
        finally:
            replayed.release()
        return replayed.ledger

    async def _replay(self, incarnation: str, settlements: Sequence[Settlement]) -> None:
        oldest_ms = time.time_ns() // 1_000_000 - _MAX_SETTLEMENT_AGE_MS
        fresh = [settlement for settlement in settlements if settlement.reservation.admitted_at_ms > oldest_ms]
        for start in range(0, len(fresh), REPLAY_CHUNK):
            await self._counters.replay(incarnation, fresh[start : start + REPLAY_CHUNK])

    def _next_batch(self) -> list[bytes]:
        """Take an equal share from each journal, so that none starves another."""
        batch: list[bytes] = []
        share = max(1, self._options.round_events // max(1, len(self._readers)))
        for name, reader in self._readers.items():
            batch += join_events(reader.read(share))
            self._damage.update((name, *place) for place in reader.damage)
            if reader.finished and name not in self._orphaned:
                batch += join_events(reader.ledger.orphans())
                self._orphaned.add(name)
        return batch

    async def _post_batch(self) -> bool:
        return await self._delivered(self._delivery.post(self._unsent))

    async def _look_back(self) -> bool:
        """Send one batch of a resend, if one is due. Return whether more of it is left."""
        looked = await self._delivered(self._delivery.look_back(self._options.look_back_interval_s))
        return looked and self._shipped.resending

    async def _delivered(self, delivering: Awaitable[None]) -> bool:
        """Await a delivery. Return whether control took it."""
        try:
            await delivering
        except IngestUnavailableError as error:
            self._outage.begins(
                self._outage.cause
                or f"Event shipping paused: control does not take events ({cause_of(error)}). Events wait in the"
                " journal. Check that control is reachable and that TOLLGATE_INTERNAL_TOKEN is the same there."
            )
            self._posting.failed()
            return False
        self._posting.succeeded()
        self._outage.ends("Event shipping resumed: control takes events again.")
        return True

    async def _save_or_remove(self) -> None:
        """Save positions and remove finished journals, now that everything that was read is committed."""
        for name, reader in list(self._readers.items()):
            if name in self._orphaned and name in self._settled:
                del self._readers[name]
                self._orphaned.discard(name)
                self._settled.discard(name)
                await in_thread(reader.remove)
                self.on_removed()
            elif reader.may_save_position and self._saving_position.due:
                position = reader.position()
                if name in self._settled or (not reader.dead and await self._is_settled(name, position)):
                    await self._save_position(reader, position)

    async def _is_settled(self, incarnation: str, position: ReadPosition) -> bool:
        """Return whether all settlements before the position are in Redis. Until then the journal must keep them."""
        if not self._settled_poll.due:
            return False
        if await self._worker_settled(incarnation) < position.last_number:
            self._settled_poll.failed()
            return False
        self._settled_poll.succeeded()
        return True

    async def _save_position(self, reader: JournalReader, position: ReadPosition) -> None:
        """Save the position. If the disk refuses, the segments stay longer and events are still shipped."""
        try:
            await in_thread(self._reserve.write_using, lambda: reader.save_position(position))
        except OSError as error:
            if not self._saving_position.failures:
                log.error(
                    "Journal %s: its position cannot be saved (%s); its segments stay on disk until that succeeds. Free"
                    " space on the disk of TOLLGATE_JOURNAL_DIR.",
                    reader.incarnation,
                    error.strerror,
                )
            self._saving_position.failed()
        else:
            self._saving_position.succeeded()


def _nothing() -> None:
    """Tell nobody of a removed journal."""


async def _unknown(incarnation: str) -> int:
    return 0
