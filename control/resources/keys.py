"""API keys: shown once in plaintext, stored as a digest, published to the proxies, revoked for good.

See docs/reference/management-api.md#api-keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql import key_rows
from control.edges.sql.group_rows import find_group
from control.edges.sql.store import Connection, Store, WriteTx, now_ms
from control.errors import GroupNotFoundError, InvalidFieldError, KeyNotFoundError, RoleTooHighError
from control.records.audit import Change
from control.records.ids import new_key
from control.records.policy import KeyRecord, PresentedKey
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_key
from control.resources.policy_feed import check_roles_known_to_proxies
from policy.credentials import KeyKind, digest_of, prefix_of
from policy.keys.permissions import EVERYTHING, Permissions, permissions_of
from policy.keys.roles import Role, optional_role


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """The owner of keys: a workspace (`group_id` None), or one of its groups, under which they are minted."""

    workspace_id: str
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewWorkspaceKey:
    """A key to make for a workspace. `role`: of a managing key; None is that of an administrator."""

    kind: KeyKind = KeyKind.WORKSPACE_MANAGE_ALL
    name: str | None = None
    role: Role | None = None


async def add_key(tx: WriteTx, workspace_id: str, new: NewWorkspaceKey) -> tuple[str, KeyRecord]:
    """Make and save a key of a workspace. The plaintext is returned here, and exists nowhere afterwards."""
    if new.role is not None:
        if new.kind is not KeyKind.WORKSPACE_MANAGE_ALL:
            raise InvalidFieldError("role", "role: only keys of type WORKSPACE_MANAGE_ALL have one; leave it out")
        await check_roles_known_to_proxies(tx)
    key = new_key()
    role = None if new.role is None else new.role.value
    record = KeyRecord(prefix_of(key), new.kind.value, workspace_id, None, new.name, tx.now_ms, role=role)
    await key_rows.insert_key(tx, record, digest_of(key))
    tx.audit(workspace_id, Change("key.mint", path_of(record), None, shown_key(record)))
    return key, record


async def mint_key(
    store: Store, workspace_id: str, new: NewWorkspaceKey, maker: Permissions = EVERYTHING
) -> tuple[str, KeyRecord]:
    """The plaintext, and the key of the workspace as it is stored. `maker`: what whoever makes it may do."""
    _check_within(permissions_of(new.kind, new.role), maker)
    return await store.transact(lambda tx: add_key(tx, workspace_id, new))


async def revoke_key(store: Store, owner: KeyOwner, prefix: str, revoker: Permissions = EVERYTHING) -> KeyRecord:
    """Revoke a key for good; returns it as it was. `revoker`: what whoever revokes it may do."""

    async def work(tx: WriteTx) -> KeyRecord:
        await _check_owner(tx.conn, owner)
        record = await key_rows.get_key(tx.conn, owner.workspace_id, owner.group_id, prefix)
        if record is None:
            raise KeyNotFoundError
        _check_within(permissions_of(KeyKind(record.kind), optional_role(record.role)), revoker)
        digest = await key_rows.delete_key(tx, owner.workspace_id, owner.group_id, prefix)
        if digest is None:  # another request was first
            raise KeyNotFoundError
        tx.audit(owner.workspace_id, Change("key.revoke", path_of(record), shown_key(record), None))
        return record

    return await store.transact(work)


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


def _check_within(permissions: Permissions, holder: Permissions) -> None:
    """Refuse a key that may do what `holder` may not: nobody makes or ends what is above himself."""
    beyond = permissions - holder
    if beyond:
        raise RoleTooHighError(beyond)
