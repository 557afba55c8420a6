"""Queries on `audit_events`: pages, newest first, and what retention deletes. `store.py` writes the rows."""

from collections.abc import Sequence

from sqlalchemy import delete, select, tuple_

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import audit_events
from control.records.audit import AuditEvent, AuditFilter

_COLUMNS = [audit_events.c[name] for name in AuditEvent.__dataclass_fields__]


async def list_audit_events(
    conn: Connection, selection: AuditFilter, before: tuple[int, str] | None, limit: int
) -> Sequence[AuditEvent]:
    """Return at most `limit` entries behind `before` (timestamp_ms, id), newest first."""
    table = audit_events.c
    order = (table.timestamp_ms, table.id)
    query = select(*_COLUMNS).where(table.workspace_id == selection.workspace_id)
    if selection.actor is not None:
        query = query.where(table.actor == selection.actor)
    if selection.start_ms is not None:
        query = query.where(table.timestamp_ms >= selection.start_ms)
    if selection.end_ms is not None:
        query = query.where(table.timestamp_ms < selection.end_ms)
    if before is not None:
        query = query.where(tuple_(*order) < before)
    query = query.order_by(table.timestamp_ms.desc(), table.id.desc()).limit(limit)
    return [AuditEvent(*row) for row in await conn.execute(query)]


async def delete_audit_events(tx: WriteTx, workspace_id: str, before_ms: int, limit: int) -> int:
    """Delete at most `limit` entries older than `before_ms`; returns how many."""
    table = audit_events.c
    old = select(table.id).where(table.workspace_id == workspace_id, table.timestamp_ms < before_ms)
    old = old.order_by(table.timestamp_ms).limit(limit)
    return (await tx.conn.execute(delete(audit_events).where(table.id.in_(old)))).rowcount
