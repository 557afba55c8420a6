"""Deletes old records: events after 92 days by default, their hourly sums and the audit trail after 400 days, delivered
messages after a week, dead ones with the events, traffic by the length of its steps, the list of requests after a week
or by its size, sessions of the console and answers for repeats once they ended. Events that are in no sum yet are kept.

Deletes in small transactions, oldest first, so that ingest is not blocked. On PostgreSQL, events go by whole days.
"""

from dataclasses import dataclass
from functools import partial

from control.edges.sql import webhook_rows
from control.edges.sql.alerts.rows import forget_alerts
from control.edges.sql.audit.rows import delete_audit_events
from control.edges.sql.billing.hourly_progress import delete_sums_before, oldest_not_added
from control.edges.sql.console.session_rows import delete_expired
from control.edges.sql.events.clock import database_ms
from control.edges.sql.events.rows import delete_events_before
from control.edges.sql.events.upkeep import drop_days
from control.edges.sql.group_rows import forget_deleted_groups
from control.edges.sql.idempotency.rows import delete_expired_answers
from control.edges.sql.store import Store, WriteTx, in_batches
from control.edges.sql.traffic.requests import delete_requests
from control.edges.sql.traffic.rows import delete_steps, forget_senders
from control.edges.sql.workspace_rows import all_workspaces
from control.records.traffic import KEPT
from control.records.webhooks import DEAD, DELIVERED

DAY_MS = 86_400_000
DELIVERED_DAYS = 7
SENDER_DAYS = 31
"""The longest silence of a proxy after which its last batch of traffic is still taken once."""
ALERT_DAYS = 62
"""The time after which no window of an alert is looked at any more: longer than a month, and the next one's start."""
ROWS_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class RetentionDays:
    """The days for which records are kept. `most_requests`: the rows that the list of requests may have."""

    events: float
    sums: float
    audit: float
    requests: float = 7.0
    most_requests: int = 1_000_000


async def delete_old_records(store: Store, days: RetentionDays) -> int:
    """Delete records older than their retention. Returns the number of rows that were deleted one by one."""
    async with store.read() as conn:
        now_ms = await database_ms(conn)
        events_ms = now_ms - int(days.events * DAY_MS)
        workspace_ids = [record.id for record in await all_workspaces(conn)]
        not_added = await oldest_not_added(conn, events_ms)
    delivered_ms = now_ms - DELIVERED_DAYS * DAY_MS
    sums_ms = now_ms - int(days.sums * DAY_MS)
    audited_ms = now_ms - int(days.audit * DAY_MS)
    await drop_days(store, min(not_added.values(), default=events_ms))
    deleted = 0
    for id in workspace_ids:
        before_ms = not_added.get(id, events_ms)
        deleted += await in_batches(store, partial(_delete_events, workspace_id=id, before_ms=before_ms))
        deleted += await in_batches(store, partial(_delete_sums, workspace_id=id, before_ms=sums_ms))
        deleted += await in_batches(store, partial(_delete_audited, workspace_id=id, before_ms=audited_ms))
        for steps in KEPT:
            before_ms = now_ms - steps.kept_s * 1000
            deleted += await in_batches(store, partial(delete_steps, workspace_id=id, steps=steps, before_ms=before_ms))
    deleted += await in_batches(store, partial(_delete_requests, days=days, now_ms=now_ms))
    for status, before_ms in ((DELIVERED, max(delivered_ms, events_ms)), (DEAD, events_ms)):
        deleted += await in_batches(store, partial(_delete_deliveries, status=status, before_ms=before_ms))
    deleted += await in_batches(store, partial(delete_expired, before_ms=now_ms, limit=ROWS_AT_ONCE))
    deleted += await in_batches(store, partial(delete_expired_answers, before_ms=now_ms, limit=ROWS_AT_ONCE))
    deleted += await store.transact(partial(forget_senders, before_ms=now_ms - SENDER_DAYS * DAY_MS))
    deleted += await store.transact(partial(forget_deleted_groups, before_ms=min(events_ms, sums_ms)))
    deleted += await in_batches(
        store, partial(forget_alerts, before_ms=now_ms - ALERT_DAYS * DAY_MS, limit=ROWS_AT_ONCE)
    )
    return deleted + await store.transact(webhook_rows.forget_orphans)


async def _delete_events(tx: WriteTx, workspace_id: str, before_ms: int) -> int:
    return await delete_events_before(tx, workspace_id, before_ms, ROWS_AT_ONCE)


async def _delete_sums(tx: WriteTx, workspace_id: str, before_ms: int) -> int:
    return await delete_sums_before(tx, workspace_id, before_ms, ROWS_AT_ONCE)


async def _delete_audited(tx: WriteTx, workspace_id: str, before_ms: int) -> int:
    return await delete_audit_events(tx, workspace_id, before_ms, ROWS_AT_ONCE)


async def _delete_requests(tx: WriteTx, days: RetentionDays, now_ms: int) -> int:
    return await delete_requests(tx, now_ms - int(days.requests * DAY_MS), days.most_requests, ROWS_AT_ONCE)


async def _delete_deliveries(tx: WriteTx, status: str, before_ms: int) -> int:
    return await webhook_rows.forget_deliveries(tx, status, before_ms, ROWS_AT_ONCE)
