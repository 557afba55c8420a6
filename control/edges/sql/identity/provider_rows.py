"""Queries on `identity_providers`. A process that is about to fetch keys claims the provider first."""

from typing import Any

from sqlalchemy import case, delete, insert, select, update

from control.edges.sql.identity.tables import identity_providers
from control.edges.sql.store import Connection, WriteTx
from control.records.identity.providers import IdentityProviderRecord
from policy.snapshot import RowKind

_TABLE = identity_providers
_COLUMNS = tuple(_TABLE.c[name] for name in IdentityProviderRecord.__dataclass_fields__)


async def find_provider(conn: Connection, workspace_id: str) -> IdentityProviderRecord | None:
    row = (await conn.execute(_of(workspace_id))).one_or_none()
    return IdentityProviderRecord(*row) if row else None


async def find_by_id(conn: Connection, id: str) -> IdentityProviderRecord | None:
    row = (await conn.execute(select(*_COLUMNS).where(_TABLE.c.id == id))).one_or_none()
    return IdentityProviderRecord(*row) if row else None


async def lock_provider(tx: WriteTx, workspace_id: str) -> IdentityProviderRecord | None:
    row = (await tx.conn.execute(_of(workspace_id).with_for_update())).one_or_none()
    return IdentityProviderRecord(*row) if row else None


async def put_provider(tx: WriteTx, record: IdentityProviderRecord) -> None:
    """Insert or replace the workspace's provider. The caller has locked the workspace."""
    values = {name: getattr(record, name) for name in IdentityProviderRecord.__dataclass_fields__}
    own = _TABLE.c.workspace_id == record.workspace_id
    if (await tx.conn.execute(update(_TABLE).where(own).values(**values))).rowcount == 0:
        await tx.conn.execute(insert(_TABLE).values(**values))


async def delete_provider(tx: WriteTx, workspace_id: str) -> None:
    await tx.conn.execute(delete(_TABLE).where(_TABLE.c.workspace_id == workspace_id))


async def claim_provider(tx: WriteTx, id: str, before_ms: int) -> IdentityProviderRecord | None:
    """Begin an attempt, unless one began after `before_ms`. None: then, or if there is no such provider."""
    statement = update(_TABLE).where(_TABLE.c.id == id, _TABLE.c.attempted_at_ms <= before_ms)
    row = (await tx.conn.execute(statement.values(attempted_at_ms=tx.now_ms).returning(*_COLUMNS))).one_or_none()
    return IdentityProviderRecord(*row) if row else None


async def due_ids(conn: Connection, before_ms: int, failed_before_ms: int, limit: int) -> list[str]:
    """The providers whose last attempt began before `before_ms`, or failed and began before `failed_before_ms`."""
    bound = case((_TABLE.c.last_error.is_(None), before_ms), else_=failed_before_ms)
    # The first comparison finds them by the index.
    is_due = (_TABLE.c.attempted_at_ms < max(before_ms, failed_before_ms), _TABLE.c.attempted_at_ms < bound)
    query = select(_TABLE.c.id).where(*is_due).order_by(_TABLE.c.attempted_at_ms).limit(limit)
    return list((await conn.execute(query)).scalars())


def publish_provider(tx: WriteTx, record: IdentityProviderRecord) -> None:
    tx.publish(RowKind.IDENTITY_PROVIDER, record.id, record.row.to_wire())


def withdraw_provider(tx: WriteTx, id: str) -> None:
    tx.publish(RowKind.IDENTITY_PROVIDER, id, None)


def _of(workspace_id: str) -> Any:
    return select(*_COLUMNS).where(_TABLE.c.workspace_id == workspace_id)
