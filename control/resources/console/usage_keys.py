"""Keys of a group, as its own people manage them: a key makes, replaces and revokes what may do no more than itself.

See docs/reference/console.md#keys-of-customers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.edges.sql import key_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.errors import ForbiddenKeyError, InvalidFieldError, KeyNotFoundError, TooManyKeysError
from control.records.audit import Change
from control.records.ids import new_key
from control.records.policy import GroupRecord, KeyRecord
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_key
from control.resources.federated_keys.changes import Rotation, rotate_within
from control.resources.federated_keys.new_keys import NewKey, add_group_key
from control.resources.federated_keys.rules import GroupKeys, checked_networks, group_of
from policy.keys.within import excess_of, has_own_limits

MAX_KEYS = 100
"""The most keys of a group to which its own people can add one."""


@dataclass(frozen=True, slots=True)
class CustomerKeys:
    """The keys of a group, and the key of it that its people are logged in with."""

    keys: GroupKeys
    prefix: str


@dataclass(frozen=True, slots=True)
class WishedKey:
    """A key as a customer asks for it. None and no networks: as far as the caller's own key goes."""

    name: str | None
    expires_at_ms: int | None
    allowed_ips: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CustomerKey:
    """A key of the group. `may_change`: whether the caller's key may replace and revoke it."""

    record: KeyRecord
    may_change: bool


async def read_customer_keys(
    store: Store, customer: CustomerKeys, after: tuple[int, str] | None, limit: int
) -> Sequence[CustomerKey]:
    """Return at most `limit` keys of the group, oldest first, behind `after` (created_at_ms, prefix)."""
    keys = customer.keys
    async with store.read() as conn:
        caller = await _caller(conn, customer)
        records = await key_rows.list_keys(conn, keys.workspace_id, keys.group_id, after, limit)
    return [CustomerKey(record, _is_within(record, caller)) for record in records]


async def create_customer_key(store: Store, customer: CustomerKeys, wish: WishedKey) -> tuple[str, KeyRecord]:
    """Make a key that may do no more than the caller's; if that has limits of its own, both share them.

    The plaintext exists nowhere afterwards.
    """

    async def work(tx: WriteTx) -> tuple[str, KeyRecord]:
        group = await _group_with_room(tx, customer)
        caller = await _caller(tx.conn, customer)
        bounds = caller.key_settings
        callable_slugs = {entry.slug for entry in group.group.models}
        slugs = None if bounds.slugs is None else tuple([slug for slug in bounds.slugs if slug in callable_slugs])
        settings = replace(
            bounds,
            slugs=slugs,
            expires_at_ms=wish.expires_at_ms if wish.expires_at_ms is not None else bounds.expires_at_ms,
            allowed_ips=checked_networks(wish.allowed_ips) or bounds.allowed_ips,
        )
        excess = excess_of(settings, bounds)
        if excess is not None:
            raise InvalidFieldError(
                excess, f"{excess}: a new key may do no more than the key that you are logged in with"
            )
        bucket = caller.bucket or caller.prefix if has_own_limits(bounds) else None
        key = new_key()
        return key, await add_group_key(tx, customer.keys, key, NewKey(wish.name, settings, bucket))

    return await store.transact(work)


async def rotate_customer_key(store: Store, customer: CustomerKeys, prefix: str, overlap_s: int) -> Rotation:
    async def work(tx: WriteTx) -> Rotation:
        await _group_with_room(tx, customer)
        await _changeable(tx, customer, prefix)
        return await rotate_within(tx, customer.keys, prefix, overlap_s)

    return await store.transact(work)


async def revoke_customer_key(store: Store, customer: CustomerKeys, prefix: str) -> None:
    keys = customer.keys

    async def work(tx: WriteTx) -> None:
        record = await _changeable(tx, customer, prefix)
        await key_rows.delete_key(tx, keys.workspace_id, keys.group_id, prefix)
        tx.audit(keys.workspace_id, Change("key.revoke", path_of(record), shown_key(record), None))

    await store.transact(work)


async def _caller(conn: Connection, customer: CustomerKeys) -> KeyRecord:
    keys = customer.keys
    caller = await key_rows.get_key(conn, keys.workspace_id, keys.group_id, customer.prefix)
    if caller is None:  # revoked in this moment
        raise KeyNotFoundError
    return caller


async def _group_with_room(tx: WriteTx, customer: CustomerKeys) -> GroupRecord:
    """The group, if it may get one more key. Its tree is locked, so that two cannot take the last place."""
    keys = customer.keys
    group = await group_of(tx, keys, locks_tree=True)
    if len(await key_rows.list_keys(tx.conn, keys.workspace_id, keys.group_id, None, MAX_KEYS)) == MAX_KEYS:
        raise TooManyKeysError(MAX_KEYS)
    return group


async def _changeable(tx: WriteTx, customer: CustomerKeys, prefix: str) -> KeyRecord:
    """The key of the group, locked, if the caller's may change it."""
    keys = customer.keys
    caller = await _caller(tx.conn, customer)
    record = await key_rows.lock_key(tx, keys.workspace_id, keys.group_id, prefix)
    if record is None:
        raise KeyNotFoundError
    if not _is_within(record, caller):
        raise ForbiddenKeyError
    return record


def _is_within(record: KeyRecord, caller: KeyRecord) -> bool:
    bounds = caller.key_settings
    if has_own_limits(bounds) and (record.bucket or record.prefix) != (caller.bucket or caller.prefix):
        return False
    return excess_of(record.key_settings, bounds) is None
