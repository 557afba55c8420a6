"""API keys: made once in plaintext, kept as a digest, published to the proxies, revoked for good.

See docs/reference/management-api.md#api-keys.
"""

from dataclasses import dataclass

from control.api.protocol.errors import not_found
from control.edges.sql import key_rows
from control.edges.sql.database import DanglingError
from control.edges.sql.group_rows import find_group
from control.edges.sql.key_rows import KeyRecord
from control.edges.sql.store import Connection, Store, WriteTx
from control.resources.ids import new_key
from policy.credentials import KeyKind, digest_of, prefix_of
from policy.snapshot import KeyRow, RowKind


@dataclass(frozen=True, slots=True)
class Keyring:
    """Whose keys: a workspace's own (`group_id` None), or those minted under one of its groups."""

    workspace_id: str
    group_id: str | None = None


async def add_key(tx: WriteTx, ring: Keyring, kind: KeyKind, name: str | None) -> tuple[str, KeyRecord]:
    """Make, save and publish a key. The plaintext is in the first of the pair, and nowhere else afterwards."""
    key = new_key()
    record = KeyRecord(prefix_of(key), kind.value, ring.workspace_id, ring.group_id, name, tx.now_ms)
    digest = digest_of(key)
    await key_rows.insert_key(tx, record, digest)
    row = KeyRow(digest, record.prefix, kind, ring.workspace_id, ring.group_id)
    tx.publish(RowKind.KEY, digest, row.to_wire())
    return key, record


async def mint(store: Store, ring: Keyring, kind: KeyKind, name: str | None) -> tuple[str, KeyRecord]:
    async def work(tx: WriteTx) -> tuple[str, KeyRecord]:
        await check_ring(tx.conn, ring)
        return await add_key(tx, ring, kind, name)

    try:
        return await store.transact(work)
    except DanglingError:  # the group was deleted meanwhile
        raise not_found("group") from None


async def revoke(store: Store, ring: Keyring, prefix: str) -> None:
    async def work(tx: WriteTx) -> None:
        await check_ring(tx.conn, ring)
        digest = await key_rows.delete_key(tx, ring.workspace_id, ring.group_id, prefix)
        if digest is None:
            raise not_found("API key")
        tx.publish(RowKind.KEY, digest, None)

    await store.transact(work)


async def check_ring(conn: Connection, ring: Keyring) -> None:
    """404 when the group is not one of the workspace's."""
    if ring.group_id is not None and await find_group(conn, ring.workspace_id, ring.group_id) is None:
        raise not_found("group")
