"""The operator's commands: create and change workspaces, issue their keys.

Each function is one transaction on a `Store` and returns what the command prints. A refusal is a `WorkspaceError`.

See docs/reference/command-line.md#administration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from control.edges.sql import workspace_rows
from control.edges.sql.database import TakenError
from control.edges.sql.store import Store, WriteTx
from control.errors import DomainError
from control.records.audit import Change
from control.records.ids import new_id
from control.records.policy import WorkspaceRecord
from control.resources.changes.resource_paths import path_of
from control.resources.keys import NewWorkspaceKey, add_key
from policy.credentials import KeyKind
from policy.endpoints import PREFIX_PATTERN
from policy.keys.roles import Role
from policy.limits.tiers import check_tier, parse_tiers

_CHANGEABLE = ("tier", "billing", "onboarded", "training", "async_max_body_bytes")
MAX_ASYNC_BODY_BYTES = 100_000_000
DEFAULT = "default"
"""The argument that returns `async_max_body_bytes` to the proxies' setting."""


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
        tx.audit(record.id, Change("workspace.create", path_of(record), None, _shown(record, owned)))
        key, _ = await add_key(tx, record.id, NewWorkspaceKey(name="first key"))
        return {"workspace_id": record.id, "name": name, "prefixes": owned, "api_key": key}

    try:
        return await store.transact(work)
    except TakenError as error:
        duplicate = "name" if error.is_about("workspaces") else "prefix"
        raise WorkspaceError(f"another workspace has that {duplicate} already") from None


async def read_workspace(store: Store, workspace_id: str) -> WorkspaceRecord:
    """The workspace, which must exist."""
    async with store.read() as conn:
        return await workspace_rows.get_workspace(conn, workspace_id)


async def set_workspace(store: Store, name: str, **changes: Any) -> dict[str, Any]:
    """Change `tier`, `billing`, `onboarded`, `training` or `async_max_body_bytes`; None leaves a field as it is."""
    columns = {field: value for field, value in changes.items() if value is not None}
    unknown = columns.keys() - set(_CHANGEABLE)
    if unknown or not columns:
        raise WorkspaceError(f"give at least one of {', '.join(_CHANGEABLE)}")
    if columns.get("billing", "active") not in ("active", "suspended"):
        raise WorkspaceError("billing is active or suspended")
    if "async_max_body_bytes" in columns:
        columns["async_max_body_bytes"] = _body_bytes(columns["async_max_body_bytes"])

    async def work(tx: WriteTx) -> dict[str, Any]:
        workspace = await workspace_rows.find_workspace(tx.conn, name)
        old = await workspace_rows.lock_workspace(tx, workspace.id) if workspace else None
        record = await workspace_rows.update_workspace(tx, name, columns)
        if old is None or record is None:
            raise WorkspaceError(f"no workspace is called {name!r}")
        owned = await workspace_rows.owned_prefixes(tx.conn, record.id)
        if record != old:
            tx.audit(old.id, Change("workspace.update", path_of(record), _shown(old, owned), _shown(record, owned)))
        return _shown(record, owned)

    return await store.transact(work)


async def list_workspaces(store: Store) -> list[dict[str, Any]]:
    async with store.read() as conn:
        records = await workspace_rows.all_workspaces(conn)
        return [_shown(record, await workspace_rows.owned_prefixes(conn, record.id)) for record in records]


async def create_workspace_key(
    store: Store, name: str, kind: KeyKind = KeyKind.WORKSPACE_MANAGE_ALL, role: Role | None = None
) -> dict[str, Any]:
    """Issue another key of the workspace `name`, for example because the first one was lost."""
    if kind is KeyKind.FEDERATED:
        raise WorkspaceError("federated keys are minted under a group")

    async def work(tx: WriteTx) -> dict[str, Any]:
        record = await workspace_rows.find_workspace(tx.conn, name)
        if record is None:
            raise WorkspaceError(f"no workspace is called {name!r}")
        key, key_record = await add_key(tx, record.id, NewWorkspaceKey(kind, None, role))
        return {
            "workspace_id": record.id,
            "name": name,
            "api_key": key,
            "prefix": key_record.prefix,
            "type": key_record.kind,
            "role": key_record.role,
        }

    return await store.transact(work)


def _shown(record: WorkspaceRecord, prefixes: Sequence[str]) -> dict[str, Any]:
    return {
        "workspace_id": record.id,
        "name": record.name,
        "prefixes": list(prefixes),
        "tier": record.tier,
        "billing": record.billing,
        "onboarded": record.onboarded,
        "training": record.training,
        "async_max_body_bytes": record.async_max_body_bytes,
    }


def _body_bytes(value: object) -> int | None:
    """The column's value for what the operator gave: a number, or `DEFAULT`."""
    if value == DEFAULT:
        return None
    if isinstance(value, int) and 1 <= value <= MAX_ASYNC_BODY_BYTES:
        return value
    raise WorkspaceError(f"async_max_body_bytes is 1 to {MAX_ASYNC_BODY_BYTES}, or {DEFAULT!r}")


def _check(name: str, prefixes: Sequence[str], tier: str) -> None:
    if not 1 <= len(name) <= 255 or not name.isprintable():
        raise WorkspaceError("a workspace's name has 1 to 255 printable characters")
    if not prefixes or not all(map(PREFIX_PATTERN.fullmatch, prefixes)):
        raise WorkspaceError("a workspace needs at least one prefix, each [A-Za-z0-9][A-Za-z0-9._-]{0,127}")
    if not 1 <= len(tier) <= 64 or not tier.isprintable():
        raise WorkspaceError("a tier's name has 1 to 64 printable characters")
