"""Trees with a HARD limit or a balance whose hash may lack reservations: they wait until machines put theirs again.

Where Redis has lost a tree's hash, or another server has it, control names the wait in the hash (`h`) and in the
database. Each machine puts its reservations again, has its journals committed, and confirms. Then control puts those of
committed events that are not counted yet, and calls are admitted again.

See docs/reference/money.md#how-spend-is-counted.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from control.edges.sql.spend.counted_trees import events_of_trees
from control.edges.sql.spend.machines import all_machines
from control.edges.sql.spend.rebuilds import end_wait, forget_dropped, hard_trees, put_states
from control.edges.sql.store import Connection, Store, UncancelledWork, WriteTx
from control.records.spend import AFTER_RESTORE, COMPLETE, DROPPED, SpendTree, SpentEvent, waiting_among
from control.resources.spend.event_spend import costs_of, spent_events
from control.resources.spend.machines import is_waiting_for
from control.resources.spend.tree_hashes import TreeHashes
from runtime.log_lines import PacedLog

log = logging.getLogger(__name__)

MACHINES_TOLD_S = 6.0
"""The time in which each machine tells of itself again to a database that was set back: each does every two seconds."""
EVENTS_AT_ONCE = 2000
LONG_WAIT_S = 10.0
WARNING_S = 30.0
_FAR_MS = 1 << 62


class TreeRebuilds:
    """The waits of all trees, as one control process takes part in them. Any number of processes may."""

    def __init__(self, store: Store, hashes: TreeHashes, transactions: UncancelledWork) -> None:
        self._store = store
        self._hashes = hashes
        self._transactions = transactions
        self._states: Mapping[str, str] = {}
        self._since_s: dict[str, float] = {}
        """The time since which this process sees a tree wait, by its root."""
        self._started_s = time.monotonic()
        self._warnings = PacedLog(log, WARNING_S)

    async def read(self, conn: Connection) -> None:
        """Read the states of the trees."""
        self._states = await hard_trees(conn)

    def is_settled(self, tree: SpendTree) -> bool:
        """Return whether a tree neither waits nor is to begin to, as one with its first HARD limit or balance is."""
        return not tree.is_hard or self._states.get(tree.root_id) == COMPLETE

    async def drop(self, trees: Sequence[SpendTree]) -> None:
        """Have nothing count as whole in trees without a HARD limit or balance: their calls are not followed any more.

        It is written down first. So if Redis is away, it is done before a new HARD limit of the tree counts.
        """
        hard = {tree.root_id for tree in trees if tree.is_hard}
        others = {root_id: state for root_id, state in self._states.items() if root_id not in hard}
        await self._put({root_id: DROPPED for root_id, state in others.items() if state != DROPPED})
        dropped = [root_id for root_id, state in self._states.items() if state == DROPPED]
        if not dropped:
            return
        await self._hashes.drop_complete(dropped)

        async def work(tx: WriteTx) -> None:
            await forget_dropped(tx, dropped)

        await self._transactions.run(self._store.transact(work))
        self._states = {root_id: state for root_id, state in self._states.items() if root_id not in dropped}

    async def begin(
        self, complete: Iterable[SpendTree], incomplete: Iterable[SpendTree], epochs: Mapping[str, str]
    ) -> None:
        """Write down which HARD trees wait, and for what. `complete`: trees that miss no reservations.

        `incomplete`: those that may. `epochs`: the text of `e` by root.
        """
        states = {tree.root_id: COMPLETE for tree in complete if tree.is_hard}
        states |= await self._hashes.begin_rebuilds([tree for tree in incomplete if tree.is_hard], epochs)
        await self._put({id: state for id, state in states.items() if self._states.get(id) != state})
        present_s = time.monotonic()
        self._since_s = {id: self._since_s.get(id, present_s) for id in waiting_among(self._states)}

    async def complete(self, trees: Sequence[SpendTree], epochs: Mapping[str, str], through_ms: int) -> None:
        """End the wait of each tree for which no machine is waited for any more.

        `trees`: those that are counted through `through_ms`, a time before which no event comes any more.
        """
        waits = waiting_among(self._states)
        present = [tree for tree in trees if tree.root_id in waits]
        if not present:
            return
        async with self._store.read() as conn:
            machines = [one for one in await all_machines(conn) if one.incarnations]
        ready: list[SpendTree] = []
        missing: set[str] = set()
        for tree in present:
            waited_for = {one.name for one in machines if is_waiting_for(one, tree.root_id, waits[tree.root_id])}
            if not waited_for and self._are_machines_known(tree.root_id):
                ready.append(tree)
            if time.monotonic() - self._since_s[tree.root_id] >= LONG_WAIT_S:
                missing |= waited_for
        if ready:
            await self._complete(ready, epochs, through_ms)
        if missing:
            self._warnings.warning(
                f"Machines of the proxy have not told that their reservations are in Redis again:"
                f" {', '.join(sorted(missing))}. Until then calls that HARD spend limits or balances bind are answered"
                " 503. Start these machines again, or mend their way to control and Redis; upgrade those that run a"
                " version of before HARD limits, which never tell. If one never comes back: `tollgate spend release"
                " --machine NAME`."
            )

    def _are_machines_known(self, root_id: str) -> bool:
        """Return whether machines have told of themselves since the database may have been set back."""
        known_s = self._started_s
        if self._states[root_id].endswith(AFTER_RESTORE):
            known_s = max(known_s, self._since_s[root_id])
        return time.monotonic() - known_s >= MACHINES_TOLD_S

    async def _complete(self, trees: Sequence[SpendTree], epochs: Mapping[str, str], through_ms: int) -> None:
        # Machines confirmed before these events are read. So a call whose event is committed later has a reservation.
        events = await self._events_after(trees, through_ms)
        complete: dict[str, str] = {}
        for tree in trees:
            id, state = tree.root_id, self._states[tree.root_id]
            if await self._hashes.complete(tree, epochs[id], state, events[id]):
                complete[id] = state
                log.info("All reservations of tree %s are in Redis: its HARD limits and balances admit calls.", id)

        async def work(tx: WriteTx) -> None:
            for id, state in complete.items():
                await end_wait(tx, id, state)

        await self._transactions.run(self._store.transact(work))

    async def _events_after(self, trees: Sequence[SpendTree], through_ms: int) -> Mapping[str, Sequence[SpentEvent]]:
        """The trees' committed events and withdrawals after this time, which are not counted yet, by root."""
        spent: dict[str, list[SpentEvent]] = defaultdict(list)
        while through_ms < _FAR_MS:
            async with self._store.read() as conn:
                batch = await events_of_trees(conn, trees, through_ms, _FAR_MS, EVENTS_AT_ONCE)
                costs = await costs_of(conn, batch.events)
            for root_id, events in (await spent_events(trees, batch, costs)).items():
                spent[root_id] += events
            through_ms = batch.through_ms
        return spent

    async def _put(self, states: Mapping[str, str]) -> None:
        if not states:
            return

        async def work(tx: WriteTx) -> None:
            await put_states(tx, states)

        await self._transactions.run(self._store.transact(work))
        self._states = {**self._states, **states}
