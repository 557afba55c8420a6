"""Queries on `workspaces` and `prefixes`: the tenants."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import prefixes, workspaces
from control.resources.records import WorkspaceRecord
from policy.snapshot import RowKind, WorkspaceRow


async def owned_prefixes(conn: Connection, workspace_id: str) -> list[str]:
    query = select(prefixes.c.prefix).where(prefixes.c.workspace_id == workspace_id)
    return sorted((await conn.execute(query)).scalars())


async def insert_workspace(tx: WriteTx, record: WorkspaceRecord, owned: Sequence[str]) -> None:
    values = {name: getattr(record, name) for name in WorkspaceRecord.__dataclass_fields__}
    await tx.conn.execute(insert(workspaces).values(**values))
    for prefix in owned:
        await tx.conn.execute(insert(prefixes).values(prefix=prefix, workspace_id=record.id))
    _publish(tx, record)


async def update_workspace(tx: WriteTx, name: str, changes: dict[str, Any]) -> WorkspaceRecord | None:
    statement = update(workspaces).where(workspaces.c.name == name).values(**changes).returning(*workspaces.c)
    row = (await tx.conn.execute(statement)).one_or_none()
    if row is None:
        return None
    record = WorkspaceRecord(*row)
    _publish(tx, record)
    return record


async def find_workspace(conn: Connection, name: str) -> WorkspaceRecord | None:
    row = (await conn.execute(select(workspaces).where(workspaces.c.name == name))).one_or_none()
    return WorkspaceRecord(*row) if row else None


async def all_workspaces(conn: Connection) -> list[WorkspaceRecord]:
    return [WorkspaceRecord(*row) for row in await conn.execute(select(workspaces).order_by(workspaces.c.name))]


def _publish(tx: WriteTx, record: WorkspaceRecord) -> None:
    row = WorkspaceRow(record.id, record.billing, record.tier, record.onboarded)
    tx.publish(RowKind.WORKSPACE, record.id, row.to_wire())
