"""Queries on `workspaces` and `prefixes`: the tenants."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import insert, or_, select, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import prefixes, workspaces
from control.records.policy import WorkspaceRecord
from policy.snapshot import RowKind, SigningSecrets, WorkspaceRow


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


async def update_signing_secrets(tx: WriteTx, record: WorkspaceRecord) -> None:
    """Write the signing secrets of a workspace that this transaction has locked."""
    names = ("signing_secret", "previous_signing_secret", "previous_signing_until_ms")
    values = {name: getattr(record, name) for name in names}
    await tx.conn.execute(update(workspaces).where(workspaces.c.id == record.id).values(**values))
    _publish(tx, record)


async def lock_workspace(tx: WriteTx, workspace_id: str) -> WorkspaceRecord:
    query = select(workspaces).where(workspaces.c.id == workspace_id)
    return WorkspaceRecord(*(await tx.conn.execute(query.with_for_update(key_share=True))).one())


async def lock_signing_workspaces(tx: WriteTx) -> list[WorkspaceRecord]:
    """All workspaces that have a signing secret."""
    query = select(workspaces).where(workspaces.c.signing_secret.is_not(None)).order_by(workspaces.c.id)
    return [WorkspaceRecord(*row) for row in await tx.conn.execute(query.with_for_update(key_share=True))]


async def get_workspace(conn: Connection, workspace_id: str) -> WorkspaceRecord:
    return WorkspaceRecord(*(await conn.execute(select(workspaces).where(workspaces.c.id == workspace_id))).one())


async def workspaces_called(conn: Connection, texts: Collection[str]) -> list[WorkspaceRecord]:
    """The workspaces whose id or name is one of these."""
    called = or_(one_of(workspaces.c.id, texts), one_of(workspaces.c.name, texts))
    return [WorkspaceRecord(*row) for row in await conn.execute(select(workspaces).where(called))]


async def find_workspace(conn: Connection, name: str) -> WorkspaceRecord | None:
    row = (await conn.execute(select(workspaces).where(workspaces.c.name == name))).one_or_none()
    return WorkspaceRecord(*row) if row else None


async def all_workspaces(conn: Connection) -> list[WorkspaceRecord]:
    return [WorkspaceRecord(*row) for row in await conn.execute(select(workspaces).order_by(workspaces.c.name))]


def _publish(tx: WriteTx, record: WorkspaceRecord) -> None:
    row = WorkspaceRow(
        record.id, record.billing, record.tier, record.onboarded, record.async_max_body_bytes, _signing_secrets(record)
    )
    tx.publish(RowKind.WORKSPACE, record.id, row.to_wire())


def _signing_secrets(record: WorkspaceRecord) -> SigningSecrets | None:
    if record.signing_secret is None:
        return None
    return SigningSecrets(record.signing_secret, record.previous_signing_secret, record.previous_signing_until_ms)
