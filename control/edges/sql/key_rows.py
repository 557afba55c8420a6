"""Queries on `api_keys`: workspace keys and federated keys alike. Digests go in; only prefixes come out.

Every write publishes the row.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, tuple_, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import api_keys, groups, revoked_buckets, workspaces
from control.records.policy import KeyRecord, PresentedKey
from policy.credentials import KeyKind
from policy.keys.roles import optional_role
from policy.keys.settings import NO_SETTINGS
from policy.snapshot import KeyRow, RowKind

BUCKET_KEPT_MS = 100 * 86_400_000
"""The time for which a revoked key's bucket is known: two months are counted, and events may come late."""
_RECORD = [api_keys.c[name] for name in KeyRecord.__dataclass_fields__]
PRESENTED = (
    api_keys.c.prefix,
    api_keys.c.kind,
    api_keys.c.workspace_id,
    api_keys.c.role,
    workspaces.c.onboarded,
    workspaces.c.name.label("workspace_name"),
)
"""The columns that `presented_key` reads."""


async def find_by_digest(conn: Connection, digest: str, now_ms: int) -> PresentedKey | None:
    """The holder of a key. One that is expired or disabled is unknown."""
    query = (
        select(*PRESENTED)
        .join(workspaces, workspaces.c.id == api_keys.c.workspace_id)
        .where(api_keys.c.digest == digest, *is_usable(now_ms))
    )
    row = (await conn.execute(query)).one_or_none()
    return presented_key(row) if row else None


def is_usable(now_ms: int) -> tuple[ColumnElement[bool], ...]:
    """The conditions of a key that is neither expired nor disabled."""
    expiry = api_keys.c.expires_at_ms
    return api_keys.c.disabled.is_(False), or_(expiry.is_(None), expiry > now_ms)


def presented_key(row: Any) -> PresentedKey:
    """The holder of the key in a row of `PRESENTED`."""
    kind = KeyKind(row.kind)
    role = optional_role(row.role)
    return PresentedKey(row.prefix, kind, row.workspace_id, row.onboarded, row.workspace_name, role)


async def insert_key(tx: WriteTx, key: KeyRecord, digest: str) -> None:
    values = {name: getattr(key, name) for name in KeyRecord.__dataclass_fields__}
    await tx.conn.execute(insert(api_keys).values(digest=digest, **values))
    tx.publish(RowKind.KEY, digest, _published(key, digest).to_wire())


async def get_key(conn: Connection, workspace_id: str, group_id: str | None, prefix: str) -> KeyRecord | None:
    query = select(*_RECORD).where(api_keys.c.prefix == prefix, *_scope(workspace_id, group_id))
    row = (await conn.execute(query)).one_or_none()
    return _record(row) if row else None


async def lock_key(tx: WriteTx, workspace_id: str, group_id: str, prefix: str) -> KeyRecord | None:
    """A group's key, locked against changes until the transaction ends. None if there is none."""
    query = select(*_RECORD).where(api_keys.c.prefix == prefix, *_scope(workspace_id, group_id))
    row = (await tx.conn.execute(query.with_for_update())).one_or_none()
    return _record(row) if row else None


async def update_key(tx: WriteTx, key: KeyRecord) -> None:
    """Write the name and the settings of a key that is locked, and what rotation says of it."""
    names = ("name", "expires_at_ms", "disabled", "settings", "bucket", "replaced_by", "spend_root_id")
    values = {name: getattr(key, name) for name in names}
    statement = update(api_keys).where(api_keys.c.prefix == key.prefix).values(**values)
    digest: str = (await tx.conn.execute(statement.returning(api_keys.c.digest))).scalar_one()
    tx.publish(RowKind.KEY, digest, _published(key, digest).to_wire())


async def key_with_spend_limits(conn: Connection, root_id: str, but_prefix: str = "") -> KeyRecord | None:
    """A key of a tree that has spend limits of its own; None if there is none besides `but_prefix`."""
    others = (api_keys.c.spend_root_id == root_id, api_keys.c.prefix != but_prefix)
    row = (await conn.execute(select(*_RECORD).where(*others).order_by(api_keys.c.prefix).limit(1))).one_or_none()
    return _record(row) if row else None


async def later_buckets(conn: Connection, prefixes: Collection[str]) -> dict[str, str]:
    """The prefix of the first key of a rotation, by that of each of these keys that is a later one, revoked or not."""
    buckets: dict[str, str] = {}
    if prefixes:
        for table in (api_keys, revoked_buckets):
            query = select(table.c.prefix, table.c.bucket).where(
                table.c.bucket.is_not(None), one_of(table.c.prefix, prefixes)
            )
            buckets |= dict(map(tuple, await conn.execute(query)))
    return buckets


async def is_bucket_used(conn: Connection, group_id: str, bucket: str) -> bool:
    """Return whether a key of the group has these counters. All keys of a rotation are of one group."""
    own = func.coalesce(api_keys.c.bucket, api_keys.c.prefix) == bucket
    query = select(api_keys.c.prefix).where(api_keys.c.group_id == group_id, own).limit(1)
    return (await conn.execute(query)).one_or_none() is not None


async def buckets_below(conn: Connection, inside: ColumnElement[bool], limit: int) -> set[str]:
    """The buckets of keys with settings of groups that the condition selects, at most about `limit`."""
    bucket = func.coalesce(api_keys.c.bucket, api_keys.c.prefix)
    query = select(bucket).join(groups, groups.c.id == api_keys.c.group_id)
    rows = await conn.execute(query.where(inside, api_keys.c.settings.is_not(None)).limit(limit))
    return set(rows.scalars())


async def keys_with_spend_limits(conn: Connection, root_id: str) -> Sequence[KeyRecord]:
    """All keys of a tree that have spend limits of their own."""
    return [_record(row) for row in await conn.execute(select(*_RECORD).where(api_keys.c.spend_root_id == root_id))]


async def list_keys(
    conn: Connection, workspace_id: str, group_id: str | None, after: tuple[int, str] | None, limit: int
) -> Sequence[KeyRecord]:
    """Return at most `limit` keys after `after` (created_at_ms, prefix), oldest first."""
    order = (api_keys.c.created_at_ms, api_keys.c.prefix)
    query = select(*_RECORD).where(*_scope(workspace_id, group_id)).order_by(*order).limit(limit)
    if after is not None:
        query = query.where(tuple_(*order) > after)
    return [_record(row) for row in await conn.execute(query)]


async def delete_key(tx: WriteTx, workspace_id: str, group_id: str | None, prefix: str) -> str | None:
    """The digest of the key that was deleted; None when there was none."""
    statement = delete(api_keys).where(api_keys.c.prefix == prefix, *_scope(workspace_id, group_id))
    row = (await tx.conn.execute(statement.returning(api_keys.c.digest, api_keys.c.bucket))).one_or_none()
    if row is None:
        return None
    tx.publish(RowKind.KEY, row.digest, None)
    if row.bucket is not None:
        await _remember_bucket(tx, prefix, row.bucket)
    digest: str = row.digest
    return digest


async def _remember_bucket(tx: WriteTx, prefix: str, bucket: str) -> None:
    """Keep what a revoked key's events count for, as long as a window that may have them is counted."""
    old = revoked_buckets.c.revoked_at_ms < tx.now_ms - BUCKET_KEPT_MS
    await tx.conn.execute(delete(revoked_buckets).where(old))
    values = {"prefix": prefix, "bucket": bucket, "revoked_at_ms": tx.now_ms}
    await tx.conn.execute(insert(revoked_buckets).values(**values))


def _scope(workspace_id: str, group_id: str | None) -> list[ColumnElement[bool]]:
    owned = api_keys.c.group_id.is_(None) if group_id is None else api_keys.c.group_id == group_id
    return [api_keys.c.workspace_id == workspace_id, owned]


def _published(key: KeyRecord, digest: str) -> KeyRow:
    settings = None if key.key_settings == NO_SETTINGS else key.key_settings
    role = optional_role(key.role)
    kind = KeyKind(key.kind)
    return KeyRow(digest, key.prefix, kind, key.workspace_id, key.group_id, settings, key.bucket, role)


def _record(row: Any) -> KeyRecord:
    return KeyRecord(*row)
