"""Prices what calls draw from prepaid balances: once, in the transaction that stores their events.

See docs/reference/money.md#balances.
"""

import logging
from collections.abc import Mapping, Sequence

from control.edges.sql.billing.price_rows import prices_between
from control.edges.sql.events.ingest import NewEvent
from control.edges.sql.spend.balance_rows import keep_groups
from control.edges.sql.store import WriteTx
from control.long_work import OPERATOR, beside
from control.resources.billing.event_costs import EventCosts
from policy.spend.balances import Balance
from runtime.log_lines import PacedLog

log = logging.getLogger(__name__)

MAX_DRAW = 10**15 * 10**22
"""The most units that an event draws. Only figures that no provider has come to more; they must not stop all ingest."""
WARNING_S = 60.0
_COSTS_PER_ITEM = 2
"""The number of events whose costs take as long as an item of long work."""


class EventDraws:
    """Prices what events draw. The same event may be priced more than once; only one that is stored draws."""

    def __init__(self) -> None:
        self._unpriced = PacedLog(log, WARNING_S)

    async def price(self, tx: WriteTx, rows: Sequence[NewEvent]) -> Sequence[NewEvent]:
        """These events with `draw`, units as digits, where their balance group is on their path and exists.

        A group without a balance counts what its calls draw, too: a restored database may have lost its first credit.
        """
        drawing = [row for row in rows if row.balance_group is not None and _is_on_path(row)]
        balances = await keep_groups(tx, {row.balance_group for row in drawing if row.balance_group is not None})
        drawing = [row for row in drawing if row.balance_group in balances]
        if not drawing:
            return rows
        costs = await _costs(tx, drawing)
        keys = {row.idempotency_key for row in drawing}

        def priced() -> Sequence[NewEvent]:
            return [self._priced(row, balances, costs) if row.idempotency_key in keys else row for row in rows]

        return await beside(OPERATOR, len(drawing) // _COSTS_PER_ITEM, priced)

    def _priced(
        self, row: NewEvent, balances: Mapping[str, Balance | None], costs: Mapping[str, EventCosts]
    ) -> NewEvent:
        assert row.balance_group is not None
        balance = balances[row.balance_group]
        cost = costs[row.workspace_id].units_of(row)
        if cost is None or (balance is not None and cost[0] != balance.currency):
            currency = "any currency" if balance is None else balance.currency
            self._unpriced.warning(
                f"A call through {row.model_slug} has no price in {currency}, so it draws nothing from the balance of"
                f" group {row.balance_group}. If it should have, correct the balance by a credit below 0; set a price"
                " for calls to come."
            )
            return row._replace(draw="0")
        return row._replace(draw=str(min(cost[1], MAX_DRAW)))


def _is_on_path(row: NewEvent) -> bool:
    return f"/{row.balance_group}/" in f"/{row.group_path}"


async def _costs(tx: WriteTx, rows: Sequence[NewEvent]) -> Mapping[str, EventCosts]:
    """The costs of these events, by workspace: by the prices of now."""
    slugs: dict[str, set[str]] = {}
    for row in rows:
        slugs.setdefault(row.workspace_id, set()).add(row.model_slug)
    times = [row.timestamp_ms for row in rows]
    span = (min(times), max(times))
    return {id: EventCosts(await prices_between(tx.conn, id, of_one, *span)) for id, of_one in slugs.items()}
