"""Compares what is drawn from balances in the hash of a tree with the ledger, and has the tree built where they differ.

They should not. But a window ends and a balance does not, so whatever made them differ would stay.

See docs/reference/money.md#how-spend-is-counted.
"""

import logging
import time

from control.edges.sql.spend.balance_sums import balances_of_tree, drawn_through
from control.edges.sql.store import Store
from control.errors import SpendNotCountedError
from control.records.spend import SpendTree
from control.resources.spend.tree_hashes import TreeHashes
from policy.prices import amount_of, amount_text

log = logging.getLogger(__name__)

CHECK_S = 600.0
"""The time between two looks at a tree: its whole ledger is added up."""
BALANCES_AT_ONCE = 4000


class LedgerChecks:
    """The looks of one control process."""

    def __init__(self, store: Store, hashes: TreeHashes) -> None:
        self._store = store
        self._hashes = hashes
        self._looked_s: dict[str, float] = {}

    async def mend(self, tree: SpendTree) -> bool:
        """Have a tree built whose hash and ledger differ, if it is time to look. Returns whether it is to be built."""
        if time.monotonic() - self._looked_s.get(tree.root_id, float("-inf")) < CHECK_S:
            return False
        async with self._store.read() as conn:
            ids = [*await balances_of_tree(conn, tree.root_id)]
        differs = False
        try:
            for start in range(0, len(ids), BALANCES_AT_ONCE):
                differs = await self._differs(tree, ids[start : start + BALANCES_AT_ONCE]) or differs
        except SpendNotCountedError:  # it is being built
            return False
        self._looked_s[tree.root_id] = time.monotonic()
        if differs:
            await self._hashes.count_anew(tree)
        return differs

    async def _differs(self, tree: SpendTree, group_ids: list[str]) -> bool:
        reading = await self._hashes.drawn_of(tree, group_ids)
        async with self._store.read() as conn:  # later, so that it has all events that are counted
            present = await balances_of_tree(conn, tree.root_id)
            ledger = await drawn_through(conn, tree, reading.counted_ms)
        wrong = [id for id in group_ids if id in present and reading.drawn[id] != ledger.get(id, 0)]
        for id in wrong:
            log.warning(
                "The counters say that %s %s are drawn from the balance of group %s, and the ledger says %s. They are"
                " built from the ledger now. Please report this, unless a control process of an older version ran"
                " beside this one, the database was set back, or somebody changed the ledger.",
                *(amount_text(amount_of(reading.drawn[id])), tree.currency, id),
                amount_text(amount_of(ledger.get(id, 0))),
            )
        return bool(wrong)
