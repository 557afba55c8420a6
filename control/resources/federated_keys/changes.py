"""Changes of a federated key, and its rotation: another key takes its place, and both work for a while.

See docs/reference/management-api.md#rotation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from control.edges.sql import key_rows
from control.edges.sql.database import DanglingError
from control.edges.sql.store import Store, WriteTx
from control.errors import GroupNotFoundError, InvalidFieldError, KeyNotFoundError, NotRotatableError
from control.records.audit import Change
from control.records.ids import new_key
from control.records.policy import KeyRecord
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_key
from control.resources.federated_keys.rules import GroupKeys, checked_settings, group_of
from control.resources.policy_feed import check_key_settings_known_to_proxies
from policy.credentials import digest_of, prefix_of
from policy.keys.states import KeyState, key_state

MAX_OVERLAP_S = 604_800


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The change that a PATCH makes. `settings`: members of `KeySettings` by name. `name` counts only if `renames`."""

    settings: Mapping[str, Any]
    renames: bool = False
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotation that was made: the new key in plaintext and as it is stored, and the one that ends at `end_ms`."""

    key: str
    record: KeyRecord
    replaced: KeyRecord
    end_ms: int


async def change_key(store: Store, owner: GroupKeys, prefix: str, change: KeyChange) -> KeyRecord:
    """Change a group's key. An expired one may be given a later end, which revives it: the audit trail shows that."""

    async def work(tx: WriteTx) -> KeyRecord:
        group = await group_of(tx, owner, locks_tree=bool(change.settings.get("spend_limits")))
        record = await _locked_key(tx, owner, prefix)
        old = record.key_settings
        settings = replace(old, **change.settings)
        if record.replaced_by is not None and settings.expires_at_ms is None:
            raise InvalidFieldError(
                "expires_at", f"expires_at: the key is replaced by {record.replaced_by} and must end; give it a date"
            )
        settings = await checked_settings(tx, group, settings, old, prefix)
        changed = record.with_settings(settings, group.root_id)
        if change.renames:
            changed = replace(changed, name=change.name)
        if changed == record:
            return record
        await key_rows.update_key(tx, changed)
        sides = (shown_key(record), shown_key(changed))
        tx.audit(owner.workspace_id, Change("key.update", path_of(record), *sides))
        return changed

    return await store.transact(work)


async def rotate_key(store: Store, owner: GroupKeys, prefix: str, overlap_s: int) -> Rotation:
    """Make a key with the settings, the counters and the spend of this one, which ends `overlap_s` from now.

    Raises `NotRotatableError` for a key that is disabled, has expired, or was rotated already.
    """

    async def work(tx: WriteTx) -> Rotation:
        return await rotate_within(tx, owner, prefix, overlap_s)

    try:
        return await store.transact(work)
    except DanglingError:  # another request deleted the group
        raise GroupNotFoundError from None


async def rotate_within(tx: WriteTx, owner: GroupKeys, prefix: str, overlap_s: int) -> Rotation:
    """Rotate a key within a transaction."""
    group = await group_of(tx, owner)
    old = await _locked_key(tx, owner, prefix)
    await _check_rotatable(tx, owner, old)
    settings = old.key_settings
    end_ms = tx.now_ms + overlap_s * 1000
    if settings.expires_at_ms is not None:
        end_ms = min(end_ms, settings.expires_at_ms)
    key = new_key()
    ending = replace(settings, expires_at_ms=end_ms)
    await check_key_settings_known_to_proxies(tx, ending)
    record = replace(
        old,
        prefix=prefix_of(key),
        created_at_ms=tx.now_ms,
        last_used_at_ms=None,
        bucket=old.bucket or old.prefix,
        replaced_by=None,
    )
    replaced = replace(old.with_settings(ending, group.root_id), replaced_by=record.prefix)
    await key_rows.insert_key(tx, record, digest_of(key))
    await key_rows.update_key(tx, replaced)
    tx.audit(owner.workspace_id, Change("key.rotate", path_of(old), shown_key(old), shown_key(replaced)))
    return Rotation(key, record, replaced, end_ms)


async def _locked_key(tx: WriteTx, owner: GroupKeys, prefix: str) -> KeyRecord:
    record = await key_rows.lock_key(tx, owner.workspace_id, owner.group_id, prefix)
    if record is None:
        raise KeyNotFoundError
    return record


async def _check_rotatable(tx: WriteTx, owner: GroupKeys, record: KeyRecord) -> None:
    """A key whose successor was revoked may be rotated again, while it works."""
    successor = record.replaced_by
    if successor is not None and not await key_rows.get_key(tx.conn, owner.workspace_id, owner.group_id, successor):
        successor = None
    match key_state(record.key_settings, successor is not None, tx.now_ms):
        case KeyState.EXPIRED:
            raise NotRotatableError(
                record.prefix, "it has expired; give it a later expires_at first, or create another"
            )
        case KeyState.DISABLED:
            raise NotRotatableError(record.prefix, "it is disabled; enable it first, or create another")
        case KeyState.REPLACED:
            raise NotRotatableError(record.prefix, f"{successor} has replaced it already; rotate that one")
