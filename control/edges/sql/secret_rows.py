"""Queries on `secrets`, on the ids of the keys that seal them, and on whatever else is sealed.

Ciphertext goes in and out; no value ever does. Every write of a secret publishes the row.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, insert, literal, select, union_all, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import endpoints, sealing_keys, secrets, webhooks, workspaces
from control.records.policy import SecretRecord
from policy.snapshot import RowKind, SecretRow


async def lock_secret(tx: WriteTx, workspace_id: str, name: str) -> SecretRecord | None:
    query = select(secrets).where(secrets.c.workspace_id == workspace_id, secrets.c.name == name)
    row = (await tx.conn.execute(query.with_for_update())).one_or_none()
    return SecretRecord(*row) if row else None


async def lock_all_secrets(tx: WriteTx) -> list[SecretRecord]:
    query = select(secrets).order_by(secrets.c.id).with_for_update()
    return [SecretRecord(*row) for row in await tx.conn.execute(query)]


async def lock_secret_of_id(tx: WriteTx, workspace_id: str, secret_id: str) -> SecretRecord | None:
    """The secret, locked against changes and deletion until the transaction ends."""
    query = select(secrets).where(secrets.c.id == secret_id, secrets.c.workspace_id == workspace_id)
    row = (await tx.conn.execute(query.with_for_update(read=True))).one_or_none()
    return SecretRecord(*row) if row else None


async def is_named_by_endpoint(conn: Connection, secret_id: str) -> bool:
    query = select(endpoints.c.id).where(endpoints.c.secret_id == secret_id).limit(1)
    return (await conn.execute(query)).first() is not None


async def lock_existing(tx: WriteTx, workspace_id: str, names: Iterable[str]) -> set[str]:
    """Return the names that secrets of the workspace have. Nobody deletes these until the transaction ends."""
    conditions = (secrets.c.workspace_id == workspace_id, one_of(secrets.c.name, names))
    query = select(secrets.c.name).where(*conditions).order_by(secrets.c.id)
    return set((await tx.conn.execute(query.with_for_update(read=True, key_share=True))).scalars())


async def find_named(conn: Connection, workspace_id: str, names: Iterable[str]) -> list[SecretRecord]:
    """The secrets that have these names."""
    query = select(secrets).where(secrets.c.workspace_id == workspace_id, one_of(secrets.c.name, names))
    return [SecretRecord(*row) for row in await conn.execute(query)]


async def list_secrets(conn: Connection, workspace_id: str, after: str | None, limit: int) -> Sequence[SecretRecord]:
    """Return at most `limit` secrets behind the id `after`, with empty ciphertexts: a page's may be 100 MB."""
    columns = [literal("") if column is secrets.c.ciphertext else column for column in secrets.c]
    query = select(*columns).where(secrets.c.workspace_id == workspace_id).order_by(secrets.c.id).limit(limit)
    if after is not None:
        query = query.where(secrets.c.id > after)
    return [SecretRecord(*row) for row in await conn.execute(query)]


async def newest(conn: Connection, limit: int) -> Sequence[SecretRecord]:
    """The most recently written secrets of all workspaces."""
    query = select(secrets).order_by(secrets.c.updated_at_ms.desc()).limit(limit)
    return [SecretRecord(*row) for row in await conn.execute(query)]


async def insert_secret(tx: WriteTx, record: SecretRecord) -> None:
    values = {name: getattr(record, name) for name in SecretRecord.__dataclass_fields__}
    await tx.conn.execute(insert(secrets).values(**values))
    _publish(tx, record)


async def update_secret(tx: WriteTx, record: SecretRecord) -> None:
    """Write the ciphertext, the owner and the time of the change."""
    names = ("ciphertext", "updated_at_ms", "managed_by", "managed_at_ms")
    values = {name: getattr(record, name) for name in names}
    await tx.conn.execute(update(secrets).where(secrets.c.id == record.id).values(**values))
    _publish(tx, record)


async def delete_secret(tx: WriteTx, workspace_id: str, name: str) -> str | None:
    """Delete a secret; returns its id, or None if there was no such secret."""
    statement = delete(secrets).where(secrets.c.workspace_id == workspace_id, secrets.c.name == name)
    id: str | None = (await tx.conn.execute(statement.returning(secrets.c.id))).scalar_one_or_none()
    if id is not None:
        tx.publish(RowKind.SECRET, id, None)
    return id


async def sealed_values(conn: Connection, now_ms: int) -> list[tuple[str, str]]:
    """Everything that is kept sealed, each with the id that it is sealed with: secrets, and what signs messages.

    Codes of training sessions, which end within the hour, and signing secrets that no longer sign are left out.
    """
    signs_still = workspaces.c.previous_signing_until_ms > now_ms
    columns = (
        select(secrets.c.id, secrets.c.ciphertext),
        select(webhooks.c.id, webhooks.c.secret),
        select(webhooks.c.id, webhooks.c.previous_secret).where(webhooks.c.previous_secret.is_not(None)),
        select(workspaces.c.id, workspaces.c.signing_secret).where(workspaces.c.signing_secret.is_not(None)),
        select(workspaces.c.id, workspaces.c.previous_signing_secret).where(
            workspaces.c.previous_signing_secret.is_not(None), signs_still
        ),
    )
    return [(id, sealed) for id, sealed in await conn.execute(union_all(*columns))]


async def noted_key_ids(conn: Connection) -> tuple[str, ...]:
    """The ids of the keys that control has, the first of which seals; () before it noted any."""
    text: str | None = (await conn.execute(select(sealing_keys.c.key_ids))).scalar()
    return tuple(text.split(",")) if text else ()


async def note_key_ids(tx: WriteTx, key_ids: Sequence[str]) -> None:
    await tx.conn.execute(delete(sealing_keys))
    await tx.conn.execute(insert(sealing_keys).values(id=1, key_ids=",".join(key_ids)))


def _publish(tx: WriteTx, record: SecretRecord) -> None:
    tx.publish(RowKind.SECRET, record.id, SecretRow(record.id, record.workspace_id, record.ciphertext).to_wire())
