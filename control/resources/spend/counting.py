"""Counts what trees with spend limits or balances have spent, from committed events: a job of each control process.

Each turn counts the events after those that are counted, through a time before which no event comes any more. What is
counted, and how far, changes in one script per tree; the progress is recorded behind that. So a crash anywhere, or
several processes at once, count no event twice, and leave none out.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from control.edges.sql.spend.counted_trees import (
    counted_ms,
    events_of_trees,
    price_stamps,
    record_counted,
    trees_with_limits,
)
from control.edges.sql.store import Connection, Store, UncancelledWork, WriteTx, now_ms
from control.errors import DatabaseUnavailableError, UsageUnavailableError
from control.records.events import EventWindow
from control.records.spend import SpendTree, TreeBuild, TreeCount, TreeEvent
from control.resources.billing_events import EventReader
from control.resources.spend.event_spend import costs_of, spent_events
from control.resources.spend.ledger_checks import LedgerChecks
from control.resources.spend.machines import SilentMachines
from control.resources.spend.overruns import Overruns
from control.resources.spend.rebuilds import TreeRebuilds
from control.resources.spend.sweep import counted_keys, sweep_tree
from control.resources.spend.tree_hashes import TreeHashes
from control.resources.spend.tree_sums import spent_by_field
from runtime.log_lines import OutageLog, cause_of

log = logging.getLogger(__name__)

TURN_S = 1.0
SWEEP_S = 60.0
EVENTS_AT_ONCE = 2000
SPAN_MS = 60_000
"""The longest time whose events are read at once, so that the database sorts few."""
LONGEST_WALK_MS = 3_600_000
"""The longest time whose events are counted one by one. After a longer pause all trees are built anew."""
RECORD_MS = 10_000
"""The time without events after which the progress is recorded. With events it is recorded at once."""
IDLE_TURNS = 10
"""A tree without events is told so in one of so many turns."""
IDLE_MS = 20_000
"""The longest time by which such a tree may be behind what is recorded."""
SET_BACK_MS = 120_000
"""The lead of what is counted over what is recorded that only a restored database has: a crash leaves half of it."""
BUILDS_S = 2.0
"""The time after which a turn begins no further tree to build: those that are built are to be counted."""
PRICES_READ_S = 5.0
"""The time after which it is noticed that a price was changed for time that is counted. Then trees are built anew."""
FAILED_BUILD_S = 60.0
"""The pause before a tree is built again after a bug."""
MACHINES_KNOWN_S = 120.0
"""The time from the job's start after which machines that are there have told of their incarnations."""
_FAR_MS = 1 << 62
_CONSEQUENCE = (
    "What groups spend is not counted: SOFT spend limits see what was counted before; HARD ones and balances keep what"
    " calls have reserved. It goes on by itself."
)


class SpendCounting:
    """The job of one control process. `note` is called with the workspace and the group of events that are counted, and
    with the group whose balance they draw from.

    `count_overrun` is called with the reason where more is spent than a HARD limit or a balance allows.
    """

    def __init__(
        self,
        store: Store,
        reader: EventReader,
        hashes: TreeHashes,
        note: Callable[[Iterable[tuple[str, str]]], None],
        count_overrun: Callable[[str], None],
    ) -> None:
        self._store = store
        self._reader = reader
        self._hashes = hashes
        self._note = note
        self._outage = OutageLog(log)
        self._transactions = UncancelledWork()
        self._rebuilds = TreeRebuilds(store, hashes, self._transactions)
        self._silent_machines = SilentMachines()
        self._overruns = Overruns(store, hashes, count_overrun)
        self._ledger_checks = LedgerChecks(store, hashes)
        self._servers: Mapping[str, str] = {}
        """The epoch of each Redis server in the last turn."""
        self._started_s = time.monotonic()
        self._sweep_s = self._started_s + SWEEP_S
        self._to_sweep: list[SpendTree] = []
        self._sweep_portion = 0
        self._through_ms: int | None = None
        """The time through which this process counted in its last turn; None while there is no tree to count."""
        self._recorded_ms = 0
        """The time through which events are recorded as counted, as far as this process knows. It never goes back."""
        self._counted: dict[str, int] = {}
        """The time through which a tree is known to be counted, by its root. Since then it had no event."""
        self._turns = 0
        self._stamps: dict[str, str] = {}
        self._read_stamps_s = float("-inf")
        self._failed_builds: dict[str, float] = {}
        """The time at which building a tree failed by a bug, by root."""

    @property
    def lag_s(self) -> float:
        """The seconds between now and the last event that may be counted; 0 without spend limits and balances."""
        return 0.0 if self._through_ms is None else max(0, now_ms() - self._through_ms) / 1e3

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.sleep(TURN_S)
                await self.try_count()
        finally:
            await self._transactions.finish()

    async def try_count(self) -> None:
        """Take a turn. Failures are logged."""
        try:
            await self.count_all()
        except DatabaseUnavailableError as error:
            self._outage.begins(f"Database is unreachable ({error.reason}). {_CONSEQUENCE} Check the database.")
        except UsageUnavailableError as error:
            cause = cause_of(error.__cause__ or error)
            self._outage.begins(f"Redis does not answer ({cause}). {_CONSEQUENCE} Check the Redis server and network.")
        except Exception:  # a bug must not end all counting
            log.exception("Counting what groups spend failed; it goes on in %.0f s. Please report this bug.", TURN_S)
        else:
            self._outage.ends("What groups spend is counted again: database and Redis answer.")

    async def count_all(self) -> None:
        """Count all events that are final, and sweep what is due."""
        while await self.count_some():
            pass
        if not self._to_sweep and time.monotonic() >= self._sweep_s:
            self._sweep_s = time.monotonic() + SWEEP_S
            await self.begin_sweep()
        await self.sweep_some(self._sweep_portion)

    async def count_some(self) -> bool:
        """Count the next events, some at a time. Returns whether there may be more."""
        async with self._store.read() as conn:
            trees = await self._trees(conn)
            await self._rebuilds.read(conn)
        await self._rebuilds.drop(trees)
        if not trees:
            self._through_ms = None
            self._counted.clear()
            return False
        roots = {tree.root_id for tree in trees}
        # Events of a tree are not followed while it has no limit and no balance. If it gets one again, it is built.
        self._counted = {root_id: at_ms for root_id, at_ms in self._counted.items() if root_id in roots}
        final = await self._transactions.run(self._reader.fixed(EventWindow("", 0, _FAR_MS)))
        final_ms = final.end_ms - 1
        async with self._store.read() as conn:
            recorded_ms = await counted_ms(conn)
            after_ms = self._after_ms(recorded_ms, final_ms)
            until_ms = min(final_ms, after_ms + SPAN_MS)
            batch = await events_of_trees(conn, trees, after_ms, until_ms, EVENTS_AT_ONCE)
            costs = await costs_of(conn, batch.events)
        await self._notice_set_back(trees, recorded_ms)
        spent = await spent_events(trees, batch, costs)
        servers = await self._hashes.server_epochs()
        is_other = servers != self._servers  # one started or was promoted: its trees are built at once
        due = [
            tree for place, tree in enumerate(trees) if is_other or tree.root_id in spent or self._is_due(tree, place)
        ]
        epochs = await self._count(
            [
                TreeCount(
                    tree=tree,
                    after_ms=min(after_ms, self._counted.get(tree.root_id, after_ms)),
                    through_ms=batch.through_ms,
                    events=spent.get(tree.root_id, ()),
                )
                for tree in due
            ]
        )
        self._servers = servers
        if batch.through_ms == final_ms:
            counted = [tree for tree in due if tree.root_id in self._counted]
            await self._rebuilds.complete(counted, epochs, batch.through_ms)
        self._note(_groups_of(batch.events))
        if spent or batch.through_ms >= recorded_ms + RECORD_MS:
            await self._record(batch.through_ms)
        self._through_ms = batch.through_ms
        self._turns += 1
        return batch.through_ms < final_ms

    def _after_ms(self, recorded_ms: int, final_ms: int) -> int:
        """The time after which this turn reads events: there this process stopped, so that it reads each one.

        Another process may have recorded more. It need not have counted all trees that this one knows.
        """
        near_ms = final_ms - LONGEST_WALK_MS
        after_ms = recorded_ms
        if self._through_ms is not None and self._through_ms >= near_ms:
            after_ms = min(recorded_ms, self._through_ms)
            if near_ms <= after_ms <= final_ms:
                return after_ms
        # A first start, or a long pause: what was missed is not walked but built.
        self._counted.clear()
        if not near_ms <= after_ms <= final_ms:
            after_ms = final_ms
        return after_ms - IDLE_MS  # some trees may have been idle when this was recorded

    def _is_due(self, tree: SpendTree, place: int) -> bool:
        """Return whether a tree without events is to be told that there were none."""
        is_told = tree.root_id in self._counted and self._rebuilds.is_settled(tree)
        return not is_told or (place + self._turns) % IDLE_TURNS == 0

    async def _notice_set_back(self, trees: Sequence[SpendTree], recorded_ms: int) -> None:
        """Have all trees built if more is counted than the database can know of: it was restored, or failed over to a
        server that lacks the last commits.

        Events that it lacks come again, with later timestamps, or never.
        """
        latest_ms = self._through_ms
        if latest_ms is None:
            latest_ms = await self._hashes.latest_counted_ms(trees)
        is_set_back = recorded_ms < self._recorded_ms or latest_ms > recorded_ms + SET_BACK_MS
        self._recorded_ms = recorded_ms
        if is_set_back:
            await self._hashes.forget(trees)
            self._counted.clear()
            self._overruns.note_restore()
            log.warning(
                "The database was set back by some %.0f s, as by a restored backup or a fail-over. What groups spend"
                " is counted anew from what it has. Post the credits that it lacks again; nothing else is to be done.",
                (latest_ms - recorded_ms) / 1e3,
            )

    async def _trees(self, conn: Connection) -> list[SpendTree]:
        if time.monotonic() - self._read_stamps_s >= PRICES_READ_S:
            self._stamps = await price_stamps(conn)
            self._read_stamps_s = time.monotonic()
        return await trees_with_limits(conn, self._stamps)

    async def _count(self, counts: Sequence[TreeCount]) -> Mapping[str, str]:
        """Count in each tree, or build it. Returns the epochs by root."""
        epochs = await self._hashes.epochs([count.tree for count in counts])
        to_build, incomplete = await self._hashes.count(counts, epochs)
        self._counted |= {one.tree.root_id: one.through_ms for one in counts if one.tree.root_id not in to_build}
        for root_id in to_build:
            self._counted.pop(root_id, None)
        await self._build_some(counts, to_build, epochs)
        trees = [count.tree for count in counts]
        await self._rebuilds.begin(
            complete=[tree for tree in trees if tree.root_id not in to_build | incomplete],
            incomplete=[tree for tree in trees if tree.root_id in to_build | incomplete],
            epochs=epochs,
        )
        return epochs

    async def _build_some(
        self, counts: Sequence[TreeCount], to_build: Collection[str], epochs: Mapping[str, str]
    ) -> None:
        """Build what is to be built, for a while. What is left is built in the next turns."""
        began_s = time.monotonic()
        for count in counts:
            root_id = count.tree.root_id
            if root_id not in to_build or began_s - self._failed_builds.get(root_id, float("-inf")) < FAILED_BUILD_S:
                continue
            if time.monotonic() - began_s >= BUILDS_S:
                return
            await self._build(count.tree, epochs[root_id], count.through_ms)

    async def _build(self, tree: SpendTree, epoch: str, through_ms: int) -> None:
        """Build a tree. A bug must not keep the others from being counted."""
        try:
            spent = await spent_by_field(self._store, tree, through_ms)
            reserves = await self._hashes.reserves(tree)
            keys = await counted_keys(self._store, [*reserves.reservations], through_ms)
            if await self._hashes.build(tree, epoch, TreeBuild(through_ms, spent, keys, reserves.spent_fields)):
                log.info("Counted what tree %s has spent from its events, hourly sums and draws.", tree.root_id)
        except (DatabaseUnavailableError, UsageUnavailableError):
            raise
        except Exception:
            self._failed_builds[tree.root_id] = time.monotonic()
            log.exception(
                "What tree %s has spent could not be read: its SOFT spend limits do not bind; calls that HARD ones or a"
                " balance bind are answered 503. It is tried again in %.0f s. Please report this bug.",
                *(tree.root_id, FAILED_BUILD_S),
            )
        else:
            self._failed_builds.pop(tree.root_id, None)

    async def _record(self, through_ms: int) -> None:
        async def work(tx: WriteTx) -> None:
            await record_counted(tx, through_ms)

        await self._transactions.run(self._store.transact(work))
        self._recorded_ms = max(self._recorded_ms, through_ms)

    @property
    def _are_machines_known(self) -> bool:
        return time.monotonic() - self._started_s >= MACHINES_KNOWN_S

    async def begin_sweep(self) -> None:
        """Have all trees swept, evenly over the turns until the next sweep; warn of machines that are silent."""
        if self._are_machines_known:
            await self._silent_machines.warn(self._store)
        async with self._store.read() as conn:
            self._to_sweep = await self._trees(conn)
        self._sweep_portion = math.ceil(len(self._to_sweep) * TURN_S / SWEEP_S)

    async def sweep_some(self, most: int) -> None:
        """Sweep the next trees, at most `most`."""
        for _ in range(min(most, len(self._to_sweep))):
            tree = self._to_sweep.pop()
            count = await sweep_tree(self._store, self._hashes, tree, are_machines_known=self._are_machines_known)
            if count:
                log.info("Tree %s: ended %d reservations of calls that are counted or dead.", tree.root_id, count)
            if tree.is_hard:
                await self._overruns.look(tree)
                if await self._ledger_checks.mend(tree):
                    self._counted.pop(tree.root_id, None)


def _groups_of(events: Sequence[TreeEvent]) -> set[tuple[str, str]]:
    """The workspaces and groups of calls, and the groups whose balance they draw from."""
    balances = {(event.workspace_id, event.balance_group) for event in events if event.balance_group is not None}
    return {(event.workspace_id, event.group_id) for event in events} | balances
