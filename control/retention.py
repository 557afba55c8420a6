"""How long the books are kept: events 92 days by default, delivered messages a week, dead ones as long as events.

Deleted in small transactions, oldest first, so that no ingest waits for it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from control.edges.sql import webhook_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.events.rows import delete_events_before
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.webhook_rows import DEAD, DELIVERED
from control.edges.sql.workspace_rows import all_workspaces

DAY_MS = 86_400_000
DELIVERED_DAYS = 7
ROWS_AT_ONCE = 2_000


async def forget_old(store: Store, event_days: float) -> int:
    """Delete what is older than its time; how many rows went."""
    async with store.read() as conn:
        now_ms = await database_ms(conn)
        workspace_ids = [record.id for record in await all_workspaces(conn)]
    events_ms, delivered_ms = now_ms - int(event_days * DAY_MS), now_ms - DELIVERED_DAYS * DAY_MS
    gone = 0
    for id in workspace_ids:
        gone += await _in_parts(store, partial(_delete_events, workspace_id=id, before_ms=events_ms))
    for status, before_ms in ((DELIVERED, max(delivered_ms, events_ms)), (DEAD, events_ms)):
        gone += await _in_parts(store, partial(_delete_deliveries, status=status, before_ms=before_ms))
    return gone + await store.transact(webhook_rows.forget_orphans)


async def _delete_events(tx: WriteTx, workspace_id: str, before_ms: int) -> int:
    return await delete_events_before(tx, workspace_id, before_ms, ROWS_AT_ONCE)


async def _delete_deliveries(tx: WriteTx, status: str, before_ms: int) -> int:
    return await webhook_rows.forget_deliveries(tx, status, before_ms, ROWS_AT_ONCE)


async def _in_parts(store: Store, delete: Callable[[WriteTx], Awaitable[int]]) -> int:
    total = 0
    while (gone := await store.transact(delete)) > 0:
        total += gone
    return total
