"""What the operator does on the command line: create and change workspaces, issue their keys, re-encrypt secrets.

Each function is one transaction on a `Store` and returns what the command prints. A refusal is a `WorkspaceError`.

See docs/reference/command-line.md#administration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from control.edges.sql import workspace_rows
from control.edges.sql.database import TakenError
from control.edges.sql.store import Store, WriteTx
from control.resources import secrets, webhooks
from control.resources.errors import DomainError
from control.resources.ids import new_id
from control.resources.keys import KeyOwner, add_key
from control.resources.records import WorkspaceRecord
from policy.credentials import KeyKind
from policy.endpoints import PREFIX_PATTERN
from policy.limits.tiers import check_tier, parse_tiers


class WorkspaceError(DomainError):
    """The workspace cannot be created or changed so; the message says why."""


def check_tier_is_known(tier: str, environ: Mapping[str, str]) -> None:
    """Raise `WorkspaceError` unless `tier` has figures: a default, one of this environment's, or its own."""
    try:
        tiers = parse_tiers(environ.get("TOLLGATE_MODEL_API_TIERS", ""))
    except ValueError as error:
        raise WorkspaceError(f"TOLLGATE_MODEL_API_TIERS: {error}") from None
    try:
        check_tier(tier, tiers)
    except ValueError as error:
        raise WorkspaceError(str(error)) from None


async def create_workspace(
    store: Store, name: str, prefixes: Sequence[str], tier: str = "basic", onboarded: bool = True
) -> dict[str, Any]:
    """Create a workspace, its slug prefixes and its first key, which has management scope and is shown only here."""
    owned = list(dict.fromkeys(prefixes))
    _check(name, owned, tier)

    async def work(tx: WriteTx) -> dict[str, Any]:
        record = WorkspaceRecord(new_id("ws"), name, tier, "active", onboarded, tx.now_ms)
        await workspace_rows.insert_workspace(tx, record, owned)
        key, _ = await add_key(tx, KeyOwner(record.id), KeyKind.WORKSPACE_MANAGE_ALL, "first key")
        return {"workspace_id": record.id, "name": name, "prefixes": owned, "api_key": key}

    try:
        return await store.transact(work)
    except TakenError as error:
        duplicate = "name" if error.is_about("workspaces") else "prefix"
        raise WorkspaceError(f"another workspace has that {duplicate} already") from None


async def set_workspace(store: Store, name: str, **changes: Any) -> dict[str, Any]:
    """Change `tier`, `billing` or `onboarded`; None leaves a field as it is."""
    wanted = {field: value for field, value in changes.items() if value is not None}
    unknown = wanted.keys() - {"tier", "billing", "onboarded"}
    if unknown or not wanted:
        raise WorkspaceError("give at least one of tier, billing, onboarded")
    if wanted.get("billing", "active") not in ("active", "suspended"):
        raise WorkspaceError("billing is active or suspended")

    async def work(tx: WriteTx) -> dict[str, Any]:
        record = await workspace_rows.update_workspace(tx, name, wanted)
        if record is None:
            raise WorkspaceError(f"no workspace is called {name!r}")
        return _shown(record, await workspace_rows.owned_prefixes(tx.conn, record.id))

    return await store.transact(work)


async def list_workspaces(store: Store) -> list[dict[str, Any]]:
    async with store.read() as conn:
        records = await workspace_rows.all_workspaces(conn)
        return [_shown(record, await workspace_rows.owned_prefixes(conn, record.id)) for record in records]


async def create_workspace_key(store: Store, name: str, kind: KeyKind = KeyKind.WORKSPACE_MANAGE_ALL) -> dict[str, Any]:
    """Issue another key of the workspace `name`, for example because the first one was lost."""
    if kind is KeyKind.FEDERATED:
        raise WorkspaceError("federated keys are minted under a group")

    async def work(tx: WriteTx) -> dict[str, Any]:
        record = await workspace_rows.find_workspace(tx.conn, name)
        if record is None:
            raise WorkspaceError(f"no workspace is called {name!r}")
        key, made = await add_key(tx, KeyOwner(record.id), kind, None)
        return {"workspace_id": record.id, "name": name, "api_key": key, "prefix": made.prefix, "type": made.kind}

    return await store.transact(work)


async def reencrypt_all(store: Store, keys: Sequence[bytes]) -> dict[str, Any]:
    """Seal every secret, including those of webhooks, again under `keys[0]`: all, or none when one cannot be opened."""

    async def work(tx: WriteTx) -> dict[str, Any]:
        count = await secrets.reencrypt_secrets(tx, keys)
        await webhooks.reencrypt_webhooks(tx, keys)
        return {"reencrypted": count}

    return await store.transact(work)


def _shown(record: WorkspaceRecord, prefixes: Sequence[str]) -> dict[str, Any]:
    return {
        "workspace_id": record.id,
        "name": record.name,
        "prefixes": list(prefixes),
        "tier": record.tier,
        "billing": record.billing,
        "onboarded": record.onboarded,
    }


def _check(name: str, prefixes: Sequence[str], tier: str) -> None:
    if not 1 <= len(name) <= 255 or not name.isprintable():
        raise WorkspaceError("a workspace's name has 1 to 255 printable characters")
    if not prefixes or not all(map(PREFIX_PATTERN.fullmatch, prefixes)):
        raise WorkspaceError("a workspace needs at least one prefix, each [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    if not 1 <= len(tier) <= 64 or not tier.isprintable():
        raise WorkspaceError("a tier's name has 1 to 64 printable characters")
