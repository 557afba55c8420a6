"""The audit trail: reading it, and how long it is kept. Whatever changes a resource writes it (`WriteTx.audit`).

See docs/reference/management-api.md#audit-trail.
"""

from collections.abc import Sequence

from control.edges.sql.audit import rows
from control.edges.sql.store import Store
from control.records.audit import AuditEvent, AuditFilter


async def read_audit_events(
    store: Store, selection: AuditFilter, before: tuple[int, str] | None, limit: int
) -> Sequence[AuditEvent]:
    """Return at most `limit` changes, newest first, behind `before` (timestamp_ms, id)."""
    async with store.read() as conn:
        return await rows.list_audit_events(conn, selection, before, limit)
