"""Secrets: upstream credentials. They are stored sealed and leave control only as ciphertext, to the proxies.

See docs/reference/management-api.md#secrets.
"""

import asyncio
import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from control.edges.sql import secret_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.training import job_rows
from control.errors import (
    InvalidFieldError,
    SecretContendedError,
    SecretInUseError,
    SecretNotFoundError,
    SecretUnreadableError,
)
from control.records.audit import Change
from control.records.ids import new_id, new_nonce
from control.records.policy import SecretRecord
from control.resources.changes.ownership import OwnerChange, with_owner
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_secret
from policy.endpoints import UnusableCredentialError, check_credential
from policy.sealing import SealedWithUnknownKeyError, seal, unseal
from policy.service_accounts import ServiceAccountError, check_secret

_ATTEMPTS = 3
"""The tries to store a new name: another request may store it at the same time, and even delete it again."""


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A credential as the caller sent it."""

    name: str
    value: str = field(repr=False)
    owner: OwnerChange | None = None


async def put_secret(store: Store, keys: Sequence[bytes], workspace_id: str, new: NewSecret) -> SecretRecord:
    """Store or rotate: a name keeps its id, so the endpoints that use it need not change.

    Refuses a service account whose private key no proxy would sign with, and while an endpoint names the secret a value
    that cannot be sent to its upstream.
    """
    try:
        await asyncio.to_thread(check_secret, new.value)
    except ServiceAccountError as error:
        raise InvalidFieldError("value", str(error)) from None

    async def work(tx: WriteTx) -> SecretRecord:
        old = await secret_rows.lock_secret(tx, workspace_id, new.name)
        id = old.id if old else new_id("sec")
        sealed = seal(keys, id, new.value, new_nonce())
        if old:
            if await secret_rows.is_named_by_endpoint(tx.conn, id):
                _check_sendable(new.value)
            changed = replace(old, ciphertext=sealed, updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
            record = with_owner(changed, new.owner)
            await secret_rows.update_secret(tx, record)
            tx.audit(workspace_id, Change("secret.rotate", path_of(record), shown_secret(old), shown_secret(record)))
        else:
            unowned = SecretRecord(id, workspace_id, new.name, sealed, tx.now_ms, tx.now_ms)
            record = with_owner(unowned, new.owner)
            await secret_rows.insert_secret(tx, record)
            tx.audit(workspace_id, Change("secret.create", path_of(record), None, shown_secret(record)))
        return record

    for _ in range(_ATTEMPTS):
        try:
            return await store.transact(work)
        except TakenError:
            continue
    raise SecretContendedError


def _check_sendable(value: str) -> None:
    try:
        check_credential(value)
    except UnusableCredentialError as error:
        message = f"an endpoint sends this secret in a header field, which it cannot be: {error}"
        raise InvalidFieldError("value", message) from None


async def compare_secret(store: Store, keys: Sequence[bytes], workspace_id: str, secret: NewSecret) -> bool | None:
    """Return whether the secret of that name has that value; None if there is no such secret.

    Takes the same time wherever two values of one length differ. 503 when no configured key opens the secret.
    """
    async with store.read() as conn:
        records = await secret_rows.find_named(conn, workspace_id, [secret.name])
    if not records:
        return None
    try:
        value = unseal(keys, records[0].id, records[0].ciphertext)
    except SealedWithUnknownKeyError:
        raise SecretUnreadableError from None
    return hmac.compare_digest(value.encode(), secret.value.encode())


async def remove_secret(store: Store, workspace_id: str, name: str) -> str:
    """The id of the secret that was deleted. Refused while an endpoint or an unfinished training job uses it.

    Endpoints refer to secrets by id, so the database refuses for them; jobs name secrets.
    """

    async def work(tx: WriteTx) -> str:
        old = await secret_rows.lock_secret(tx, workspace_id, name)  # no job that names it is created meanwhile
        if await job_rows.uses_secret(tx.conn, workspace_id, name):
            raise SecretInUseError
        id = await secret_rows.delete_secret(tx, workspace_id, name)
        if old is None or id is None:
            raise SecretNotFoundError
        tx.audit(workspace_id, Change("secret.delete", path_of(old), shown_secret(old), None))
        return id

    try:
        return await store.transact(work)
    except DanglingError:
        raise SecretInUseError from None


async def read_secrets(store: Store, workspace_id: str, after: str | None, limit: int) -> Sequence[SecretRecord]:
    """Return at most `limit` secrets, oldest first, behind the id `after`."""
    async with store.read() as conn:
        return await secret_rows.list_secrets(conn, workspace_id, after, limit)


async def reencrypt_secrets(tx: WriteTx, keys: Sequence[bytes]) -> Counter[str]:
    """Seal every secret again under `keys[0]`; how many each workspace has."""
    records = await secret_rows.lock_all_secrets(tx)
    for record in records:
        sealed = seal(keys, record.id, unseal(keys, record.id, record.ciphertext), new_nonce())
        await secret_rows.update_secret(tx, replace(record, ciphertext=sealed))
    return Counter(record.workspace_id for record in records)
