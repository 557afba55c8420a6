"""Secrets: upstream credentials that go in and never come out again, except sealed to the proxies.

See docs/reference/management-api.md#secrets.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from control.api.protocol.errors import ProblemError, bad_field, conflict, not_found
from control.edges.sql import secret_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.secret_rows import SecretRecord
from control.edges.sql.store import Store, WriteTx
from control.resources.ids import new_id, new_nonce
from policy.sealing import seal
from policy.service_accounts import ServiceAccountError, check_secret
from policy.snapshot import RowKind, SecretRow


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A credential on its way in."""

    name: str
    value: str = field(repr=False)


async def put_secret(store: Store, keys: Sequence[bytes], workspace_id: str, new: NewSecret) -> SecretRecord:
    """Store or rotate: a name keeps its id, so the endpoints that use it need not change.

    400 for a service account whose key no proxy would sign with.
    """
    try:
        await asyncio.to_thread(check_secret, new.value)
    except ServiceAccountError as error:
        raise bad_field("value", str(error)) from None

    async def work(tx: WriteTx) -> SecretRecord:
        old = await secret_rows.lock_secret(tx, workspace_id, new.name)
        id = old.id if old else new_id("sec")
        sealed = seal(keys, id, new.value, new_nonce())
        if old:
            record = replace(old, ciphertext=sealed, updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
            await secret_rows.set_ciphertext(tx, id, sealed, record.updated_at_ms)
        else:
            record = SecretRecord(id, workspace_id, new.name, sealed, tx.now_ms, tx.now_ms)
            await secret_rows.insert_secret(tx, record)
        tx.publish(RowKind.SECRET, id, SecretRow(id, workspace_id, sealed).to_wire())
        return record

    for _ in range(3):  # somebody may store the same new name at the same time, and even delete it again
        try:
            return await store.transact(work)
        except TakenError:
            continue
    raise ProblemError(409, "CONFLICT", "the secret is being changed by somebody else at the same time")


async def delete_secret(store: Store, workspace_id: str, name: str) -> str:
    """The id of what was deleted; 409 while an endpoint uses it, which the database decides."""

    async def work(tx: WriteTx) -> str:
        id = await secret_rows.delete_secret(tx, workspace_id, name)
        if id is None:
            raise not_found("secret")
        tx.publish(RowKind.SECRET, id, None)
        return id

    try:
        return await store.transact(work)
    except DanglingError:
        raise conflict("the secret is in use by an endpoint") from None
