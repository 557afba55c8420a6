"""New keys of groups: minted here, or brought by their owners.

See docs/reference/management-api.md#federated-keys.
"""

from dataclasses import dataclass, replace

from control.edges.sql import key_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.store import Store, WriteTx
from control.errors import GroupNotFoundError, InvalidFieldError, KeyTakenError
from control.records.audit import Change
from control.records.ids import new_key
from control.records.policy import KeyRecord
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_key
from control.resources.federated_keys.rules import GroupKeys, checked_settings, group_of
from policy.credentials import KeyKind, digest_of, prefix_of, registered_prefix, unregistrable
from policy.keys.settings import NO_SETTINGS, KeySettings


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to make, apart from its text. `bucket`: the key whose counters it shares; None: its own."""

    name: str | None = None
    settings: KeySettings = NO_SETTINGS
    bucket: str | None = None


async def mint_group_key(store: Store, owner: GroupKeys, new: NewKey) -> tuple[str, KeyRecord]:
    """The plaintext, which exists nowhere afterwards, and the key as it is stored."""

    async def work(tx: WriteTx) -> tuple[str, KeyRecord]:
        key = new_key()
        return key, await add_group_key(tx, owner, key, new)

    try:
        return await store.transact(work)
    except DanglingError:  # another request deleted the group
        raise GroupNotFoundError from None


async def register_key(store: Store, owner: GroupKeys, key: str, new: NewKey) -> KeyRecord:
    """Save a key that its owner brings. Digests are unique, so that a call has one group.

    Raises `KeyTakenError`, whoever has registered it: who holds a key may learn by a call, too, that it is one.
    """
    reason = unregistrable(key)
    if reason:
        raise InvalidFieldError("key", f"key: {reason}")
    if new.name is not None and key in new.name:
        raise InvalidFieldError("name", "name: must not hold the key; it is shown in lists and in the audit trail")

    async def work(tx: WriteTx) -> KeyRecord:
        return await add_group_key(tx, owner, key, new)

    try:
        return await store.transact(work)
    except TakenError:
        raise KeyTakenError from None
    except DanglingError:
        raise GroupNotFoundError from None


async def add_group_key(tx: WriteTx, owner: GroupKeys, key: str, new: NewKey) -> KeyRecord:
    """Save a key by its plaintext. One that is not in our form is registered."""
    group = await group_of(tx, owner, locks_tree=bool(new.settings.spend_limits))
    settings = await checked_settings(tx, group, new.settings)
    own_prefix = prefix_of(key)
    prefix = own_prefix or registered_prefix(key)
    bare = KeyRecord(prefix, KeyKind.FEDERATED.value, owner.workspace_id, owner.group_id, new.name, tx.now_ms)
    record = replace(bare.with_settings(settings, group.root_id), bucket=new.bucket)
    await key_rows.insert_key(tx, record, digest_of(key))
    action = "key.mint" if own_prefix else "key.register"
    tx.audit(owner.workspace_id, Change(action, path_of(record), None, shown_key(record)))
    return record
