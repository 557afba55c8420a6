"""The secrets that sign the results of a workspace's asynchronous requests. Webhooks of billing events have their own.

They are sealed with the workspace's id, and published in the workspace's row.

See docs/reference/management-api.md#signing-secret.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from control.edges.sql import workspace_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, WriteTx
from control.errors import SecretUnreadableError
from control.records.audit import Change
from control.records.ids import new_nonce
from control.records.policy import WorkspaceRecord
from control.records.times import optional_time_text
from control.resources.webhooks import new_secret
from policy.sealing import SealedWithUnknownKeyError, seal, unseal

OVERLAP_MS = 86_400_000
"""The time for which the previous secret signs as well."""
_PLACE = "async/webhook_secret"


async def read_secrets(store: Store, keys: Sequence[bytes], workspace_id: str) -> list[str]:
    """The secrets that sign now, newest first. Makes the first one."""
    async with store.read() as conn:
        record = await workspace_rows.get_workspace(conn, workspace_id)
        now_ms = await database_ms(conn)
    if record.signing_secret is None:
        return await _make_first(store, keys, workspace_id)
    return _signing(keys, record, now_ms)


async def rotate(store: Store, keys: Sequence[bytes], workspace_id: str) -> list[str]:
    """Make another secret. Only the one before it signs as well: an older one stops signing at once.

    A secret that no key opens signs nothing, so it is replaced without an overlap: rotating is the way out.
    """
    secret = new_secret()

    async def work(tx: WriteTx) -> list[str]:
        old = await workspace_rows.lock_workspace(tx, workspace_id)
        now_ms = await database_ms(tx.conn)
        is_readable = old.signing_secret is not None and _can_open(keys, old.id, old.signing_secret)
        record = replace(
            old,
            signing_secret=seal(keys, old.id, secret, new_nonce()),
            previous_signing_secret=old.signing_secret if is_readable else None,
            previous_signing_until_ms=now_ms + OVERLAP_MS if is_readable else 0,
        )
        await workspace_rows.update_signing_secrets(tx, record)
        tx.audit(old.id, Change("signing_secret.rotate", _PLACE, _shown(old), _shown(record)))
        return _signing(keys, record, now_ms)

    return await store.transact(work)


async def reencrypt(tx: WriteTx, keys: Sequence[bytes]) -> Counter[str]:
    """Seal the signing secrets of all workspaces again under `keys[0]`. Those that sign no longer are dropped.

    Returns the workspaces that have one, each with 1.
    """
    now_ms = await database_ms(tx.conn)
    records = await workspace_rows.lock_signing_workspaces(tx)
    for record in records:
        current, *previous = (
            seal(keys, record.id, unseal(keys, record.id, sealed), new_nonce()) for sealed in _sealed(record, now_ms)
        )
        changed = replace(record, signing_secret=current, previous_signing_secret=previous[0] if previous else None)
        await workspace_rows.update_signing_secrets(tx, changed)
    return Counter(record.id for record in records)


async def _make_first(store: Store, keys: Sequence[bytes], workspace_id: str) -> list[str]:
    secret = new_secret()

    async def work(tx: WriteTx) -> list[str]:
        record = await workspace_rows.lock_workspace(tx, workspace_id)
        if record.signing_secret is None:  # otherwise another request has made it meanwhile
            record = replace(record, signing_secret=seal(keys, record.id, secret, new_nonce()))
            await workspace_rows.update_signing_secrets(tx, record)
            tx.audit(record.id, Change("signing_secret.create", _PLACE, None, _shown(record)))
        return _signing(keys, record, await database_ms(tx.conn))

    return await store.transact(work)


def _shown(record: WorkspaceRecord) -> dict[str, Any] | None:
    """The secrets as the audit trail shows them: how long the previous one signs. None before the first one."""
    if record.signing_secret is None:
        return None
    return {"previous_secret_expires_at": optional_time_text(record.previous_signing_until_ms or None)}


def _signing(keys: Sequence[bytes], record: WorkspaceRecord, now_ms: int) -> list[str]:
    try:
        return [unseal(keys, record.id, sealed) for sealed in _sealed(record, now_ms)]
    except SealedWithUnknownKeyError:
        raise SecretUnreadableError from None


def _sealed(record: WorkspaceRecord, now_ms: int) -> list[str]:
    """The secrets that sign now, newest first, sealed."""
    secrets = [record.signing_secret]
    if now_ms < record.previous_signing_until_ms:
        secrets.append(record.previous_signing_secret)
    return [sealed for sealed in secrets if sealed is not None]


def _can_open(keys: Sequence[bytes], id: str, sealed: str) -> bool:
    try:
        unseal(keys, id, sealed)
    except SealedWithUnknownKeyError:
        return False
    return True
