"""Deletes the metadata of events' requests, oldest events first. How far it is deleted changes in the same transaction.

Only webhook messages show metadata (`control/resources/billing/unsent_metadata.py` says which may still be sent).
"""

from sqlalchemy import select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from control.edges.sql.events.partitions import partitions_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import event_metadata_progress
from control.records.events import EventWindow


async def deleted_until(conn: Connection, workspace_id: str) -> int:
    """The time before which the workspace's events have no metadata that may be deleted."""
    column = event_metadata_progress.c.until_ms
    query = select(column).where(event_metadata_progress.c.workspace_id == workspace_id)
    return (await conn.execute(query)).scalar_one_or_none() or 0


async def delete_metadata(tx: WriteTx, window: EventWindow) -> int:
    """Delete the metadata of the window's events; returns of how many. 0 if another process has moved on meanwhile."""
    if not await _move_on(tx, window):
        return 0
    deleted = 0
    for table in await _tables(tx.conn, window):
        statement = (
            f"UPDATE {table} SET request_metadata = NULL WHERE workspace_id = :workspace"  # noqa: S608 (ours)
            " AND timestamp_ms >= :start AND timestamp_ms < :end AND request_metadata IS NOT NULL"
        )
        values = {"workspace": window.workspace_id, "start": window.start_ms, "end": window.end_ms}
        deleted += (await tx.conn.execute(text(statement), values)).rowcount
    return deleted


async def _move_on(tx: WriteTx, window: EventWindow) -> bool:
    """Set the progress to the window's end. False if it is not at the window's start."""
    progress = event_metadata_progress
    dialect = sqlite if tx.conn.dialect.name == "sqlite" else postgresql
    first = {"workspace_id": window.workspace_id, "until_ms": 0}
    await tx.conn.execute(dialect.insert(progress).values(first).on_conflict_do_nothing())
    present = (progress.c.workspace_id == window.workspace_id, progress.c.until_ms == window.start_ms)
    return (await tx.conn.execute(update(progress).where(*present).values(until_ms=window.end_ms))).rowcount == 1


async def _tables(conn: Connection, window: EventWindow) -> list[str]:
    """`events` on SQLite; on PostgreSQL the partitions that may have events of the window."""
    partitions = await partitions_of(conn)
    needed = [one.name for one in partitions if one.overlaps(window.start_ms, window.end_ms)]
    return needed if partitions else ["events"]
