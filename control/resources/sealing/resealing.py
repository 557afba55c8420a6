"""Seals everything again under the first key, by the operator's commands; and says whether all of it is by now.

A command has keys of its own: its shell's, or those of a file. Control has noted which it has (`key_notes.py`), so a
command notices that it would seal under a key that control does not seal under.

See docs/operating.md#rotating-the-secret-key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from control.edges.sql import secret_rows
from control.edges.sql.store import Store, WriteTx, now_ms
from control.records.audit import Change
from control.resources import secrets, webhooks
from control.resources.changes.idempotency import reencrypt_answers
from control.resources.platform import signing_secrets
from policy.sealing import SealedWithUnknownKeyError, key_ids, unseal


class SealingKeyError(ValueError):
    """The command's keys are not those that the product needs; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SealedLook:
    """The number of values that are sealed, those that the first key does not open, and those that no key opens.

    `noted`: the ids of the keys that control has; () before it noted any.
    """

    total: int
    not_under_first: int
    unopened: int
    noted: tuple[str, ...]


async def look(store: Store, keys: Sequence[bytes]) -> SealedLook:
    """Try these keys on everything that is sealed. Changes nothing."""
    async with store.read() as conn:
        values = await secret_rows.sealed_values(conn, now_ms())
        noted = await secret_rows.noted_key_ids(conn)
    others = [value for value in values if not _opens(keys[:1], *value)]
    unopened = sum(not _opens(keys, *value) for value in others)
    return SealedLook(len(values), len(others), unopened, noted)


async def noted_ids(store: Store) -> tuple[str, ...]:
    """The ids of the keys that control has; () before it noted any."""
    async with store.read() as conn:
        return await secret_rows.noted_key_ids(conn)


async def reencrypt(store: Store, keys: Sequence[bytes]) -> dict[str, Any]:
    """Seal everything under `keys[0]`, if that is the key under which control seals."""
    noted = await noted_ids(store)
    if noted and noted[0] != key_ids(keys)[0]:
        raise SealingKeyError(
            f"control seals under key {noted[0]}, and this command would seal under key {key_ids(keys)[0]}:"
            " control and the proxies could lose what it seals. Nothing was changed.\n"
            "Run it with the TOLLGATE_SECRET_KEY of control. To change to another key, put that in front of"
            " control's and the proxies' first, and restart them (docs/operating.md#rotating-the-secret-key)"
        )
    return await reencrypt_all(store, keys)


async def reencrypt_all(store: Store, keys: Sequence[bytes]) -> dict[str, Any]:
    """Seal every secret, also those that sign messages, again under `keys[0]`: all, or none if one cannot be opened."""

    async def work(tx: WriteTx) -> dict[str, Any]:
        sealed = {
            "secrets": await secrets.reencrypt_secrets(tx, keys),
            "webhooks": await webhooks.reencrypt_webhooks(tx, keys),
            "signing_secrets": await signing_secrets.reencrypt(tx, keys),
        }
        await reencrypt_answers(tx, keys)
        for workspace_id in sorted(set().union(*sealed.values())):
            counts = {kind: by_workspace[workspace_id] for kind, by_workspace in sealed.items()}
            tx.audit(workspace_id, Change("secrets.reencrypt", "secrets", None, counts))
        return {"reencrypted": sealed["secrets"].total()}

    return await store.transact(work)


def _opens(keys: Sequence[bytes], id: str, sealed: str) -> bool:
    try:
        unseal(keys, id, sealed)
    except SealedWithUnknownKeyError:
        return False
    return True
