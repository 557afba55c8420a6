"""Queries on `secrets`. Ciphertext goes in and out; no value ever does."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import secrets


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """One stored credential, sealed."""

    id: str
    workspace_id: str
    name: str
    ciphertext: str
    created_at_ms: int
    updated_at_ms: int


async def lock_secret(tx: WriteTx, workspace_id: str, name: str) -> SecretRecord | None:
    query = select(secrets).where(secrets.c.workspace_id == workspace_id, secrets.c.name == name)
    row = (await tx.conn.execute(query.with_for_update())).one_or_none()
    return SecretRecord(*row) if row else None


async def lock_all(tx: WriteTx) -> list[SecretRecord]:
    query = select(secrets).order_by(secrets.c.id).with_for_update()
    return [SecretRecord(*row) for row in await tx.conn.execute(query)]


async def secret_exists(conn: Connection, workspace_id: str, secret_id: str) -> bool:
    query = select(secrets.c.id).where(secrets.c.id == secret_id, secrets.c.workspace_id == workspace_id)
    return (await conn.execute(query)).one_or_none() is not None


async def list_secrets(conn: Connection, workspace_id: str, after: str | None, limit: int) -> Sequence[SecretRecord]:
    query = select(secrets).where(secrets.c.workspace_id == workspace_id).order_by(secrets.c.id).limit(limit)
    if after is not None:
        query = query.where(secrets.c.id > after)
    return [SecretRecord(*row) for row in await conn.execute(query)]


async def newest(conn: Connection, limit: int) -> Sequence[SecretRecord]:
    """Of all workspaces, the ones that were written last."""
    query = select(secrets).order_by(secrets.c.updated_at_ms.desc()).limit(limit)
    return [SecretRecord(*row) for row in await conn.execute(query)]


async def insert_secret(tx: WriteTx, record: SecretRecord) -> None:
    values = {name: getattr(record, name) for name in SecretRecord.__dataclass_fields__}
    await tx.conn.execute(insert(secrets).values(**values))


async def set_ciphertext(tx: WriteTx, secret_id: str, ciphertext: str, updated_at_ms: int | None = None) -> None:
    values: dict[str, object] = {"ciphertext": ciphertext}
    if updated_at_ms is not None:
        values["updated_at_ms"] = updated_at_ms
    await tx.conn.execute(update(secrets).where(secrets.c.id == secret_id).values(**values))


async def delete_secret(tx: WriteTx, workspace_id: str, name: str) -> str | None:
    """The id of the secret that was deleted; None when there was none."""
    gone = delete(secrets).where(secrets.c.workspace_id == workspace_id, secrets.c.name == name)
    return (await tx.conn.execute(gone.returning(secrets.c.id))).scalar_one_or_none()
