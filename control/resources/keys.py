"""API keys: shown once in plaintext, stored as a digest, published to the proxies, revoked for good.

See docs/reference/management-api.md#api-keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql import key_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.group_rows import find_group
from control.edges.sql.store import Connection, Store, WriteTx, now_ms
from control.errors import GroupNotFoundError, InvalidFieldError, KeyNotFoundError, KeyTakenError
from control.records.audit import Change
from control.records.ids import new_key
from control.records.policy import KeyRecord, PresentedKey
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_key
from policy.credentials import KeyKind, digest_of, prefix_of, registered_prefix, unregistrable


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The owner of keys: a workspace (`group_id` None), or one of its groups, under which they are minted."""

    workspace_id: str
    group_id: str | None = None


async def add_key(tx: WriteTx, owner: KeyOwner, kind: KeyKind, name: str | None) -> tuple[str, KeyRecord]:
    """Make and save a key. The plaintext is returned here, and exists nowhere afterwards."""
    key = new_key()
    record = KeyRecord(prefix_of(key), kind.value, owner.workspace_id, owner.group_id, name, tx.now_ms)
    await key_rows.insert_key(tx, record, digest_of(key))
    tx.audit(owner.workspace_id, Change("key.mint", path_of(record), None, shown_key(record)))
    return key, record


async def mint_key(store: Store, owner: KeyOwner, kind: KeyKind, name: str | None) -> tuple[str, KeyRecord]:
    """The plaintext, and the key as it is stored."""

    async def work(tx: WriteTx) -> tuple[str, KeyRecord]:
        await _check_owner(tx.conn, owner)
        return await add_key(tx, owner, kind, name)

    try:
        return await store.transact(work)
    except DanglingError:  # another request deleted the group
        raise GroupNotFoundError from None


async def register_key(store: Store, owner: KeyOwner, key: str, name: str | None) -> KeyRecord:
    """Save a key that its owner brings, under a group. Digests are unique, so that a call has one group.

    Raises `KeyTakenError`, whoever has registered it: who holds a key may learn by a call, too, that it is one.
    """
    reason = unregistrable(key)
    if reason:
        raise InvalidFieldError("key", f"key: {reason}")
    if name is not None and key in name:
        raise InvalidFieldError("name", "name: must not hold the key; it is shown in lists and in the audit trail")

    async def work(tx: WriteTx) -> KeyRecord:
        await _check_owner(tx.conn, owner)
        prefix = registered_prefix(key)
        record = KeyRecord(prefix, KeyKind.FEDERATED.value, owner.workspace_id, owner.group_id, name, tx.now_ms)
        await key_rows.insert_key(tx, record, digest_of(key))
        tx.audit(owner.workspace_id, Change("key.register", path_of(record), None, shown_key(record)))
        return record

    try:
        return await store.transact(work)
    except TakenError:
        raise KeyTakenError from None
    except DanglingError:
        raise GroupNotFoundError from None


async def revoke_key(store: Store, owner: KeyOwner, prefix: str) -> None:
    async def work(tx: WriteTx) -> None:
        await _check_owner(tx.conn, owner)
        record = await key_rows.get_key(tx.conn, owner.workspace_id, owner.group_id, prefix)
        digest = await key_rows.delete_key(tx, owner.workspace_id, owner.group_id, prefix)
        if record is None or digest is None:
            raise KeyNotFoundError
        tx.audit(owner.workspace_id, Change("key.revoke", path_of(record), shown_key(record), None))

    await store.transact(work)


async def read_key(store: Store, owner: KeyOwner, prefix: str) -> KeyRecord:
    async with store.read() as conn:
        await _check_owner(conn, owner)
        record = await key_rows.get_key(conn, owner.workspace_id, owner.group_id, prefix)
    if record is None:
        raise KeyNotFoundError
    return record


async def read_keys(store: Store, owner: KeyOwner, after: tuple[int, str] | None, limit: int) -> Sequence[KeyRecord]:
    """Return at most `limit` keys, oldest first, behind `after` (created_at_ms, prefix)."""
    async with store.read() as conn:
        await _check_owner(conn, owner)
        return await key_rows.list_keys(conn, owner.workspace_id, owner.group_id, after, limit)


async def find_presented_keys(store: Store, keys: Sequence[str]) -> list[PresentedKey]:
    """Return the holders of the keys that a request presents; unknown keys are left out."""
    async with store.read() as conn:
        holders = [await key_rows.find_by_digest(conn, digest_of(key), now_ms()) for key in keys]
    return [holder for holder in holders if holder is not None]


async def _check_owner(conn: Connection, owner: KeyOwner) -> None:
    """Refuse a group that is not one of the workspace's."""
    if owner.group_id is not None and await find_group(conn, owner.workspace_id, owner.group_id) is None:
        raise GroupNotFoundError
