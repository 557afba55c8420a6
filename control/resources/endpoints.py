"""Endpoints: which slug leads to which target (docs/reference/management-api.md#endpoints). No SQL, no HTTP."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from control.edges.sql import endpoint_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.model_rows import model_exists
from control.edges.sql.secret_rows import secret_exists
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.workspace_rows import owned_prefixes
from control.resources.changes.ownership import OwnerChange, with_owner
from control.resources.changes.records import Change
from control.resources.changes.shown import shown_endpoint
from control.resources.errors import EndpointNotFoundError, InvalidFieldError, SlugTakenError
from control.resources.ids import new_id
from control.resources.records import EndpointRecord
from policy.endpoints import EndpointRuleError, Target, check_slug, check_target

_TARGET = "targets.0"


class UpstreamUrls(Protocol):
    """Checks a URL that someone entered: its text, and the addresses its host resolves to. Raises `HostRuleError`."""

    async def check_base_url(self, url: str) -> None: ...

    async def check_replica_url(self, url: str) -> None: ...

    async def check_wake_url(self, url: str) -> None: ...


async def create_endpoint(
    store: Store, workspace_id: str, slug: str, target: Target, owner: OwnerChange | None = None
) -> EndpointRecord:
    """A new endpoint. The database decides whether the slug is free."""

    async def work(tx: WriteTx) -> EndpointRecord:
        try:
            check_slug(slug, await owned_prefixes(tx.conn, workspace_id))
        except EndpointRuleError as error:
            raise InvalidFieldError("slug", error.message) from None
        await _check_references(tx.conn, workspace_id, target)
        made = EndpointRecord(new_id("ep"), workspace_id, slug, target, tx.now_ms, tx.now_ms)
        record = with_owner(made, owner)
        await endpoint_rows.insert_endpoint(tx, record)
        tx.audit(workspace_id, Change("endpoint.create", _place(record), None, shown_endpoint(record)))
        return record

    try:
        return await store.transact(work)
    except TakenError:
        raise SlugTakenError from None
    except DanglingError:
        raise _deleted_meanwhile(target) from None


async def replace_target(
    store: Store, workspace_id: str, endpoint_id: str, target: Target, owner: OwnerChange | None = None
) -> EndpointRecord:
    """The endpoint with this target and a later `updated_at_ms`."""

    async def work(tx: WriteTx) -> EndpointRecord:
        await _check_references(tx.conn, workspace_id, target)
        old = _existing(await endpoint_rows.lock_endpoint(tx, workspace_id, endpoint_id))
        changed = replace(old, target=target, updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
        record = with_owner(changed, owner)
        await endpoint_rows.update_endpoint(tx, record)
        sides = (shown_endpoint(old), shown_endpoint(record))
        tx.audit(workspace_id, Change("endpoint.update", _place(record), *sides))
        return record

    try:
        return await store.transact(work)
    except DanglingError:
        raise _deleted_meanwhile(target) from None


async def remove_endpoint(store: Store, workspace_id: str, endpoint_id: str) -> EndpointRecord:
    async def work(tx: WriteTx) -> EndpointRecord:
        record = _existing(await endpoint_rows.delete_endpoint(tx, workspace_id, endpoint_id))
        tx.audit(workspace_id, Change("endpoint.delete", _place(record), shown_endpoint(record), None))
        return record

    return await store.transact(work)


async def read_endpoint(store: Store, workspace_id: str, endpoint_id: str) -> EndpointRecord:
    async with store.read() as conn:
        return _existing(await endpoint_rows.find_endpoint(conn, workspace_id, endpoint_id))


async def read_endpoints(store: Store, workspace_id: str, after: str | None, limit: int) -> Sequence[EndpointRecord]:
    """At most `limit` endpoints, oldest first, behind the id `after`."""
    async with store.read() as conn:
        return await endpoint_rows.list_endpoints(conn, workspace_id, after, limit)


async def check_target_rules(target: Target, urls: UpstreamUrls) -> None:
    """Refuse a target that breaks its provider's rules. Call it before the transaction: it resolves names."""
    try:
        check_target(target)
        if target.base_url is not None:
            await urls.check_base_url(target.base_url)
    except EndpointRuleError as error:
        raise InvalidFieldError(f"{_TARGET}.{error.field}", error.message) from None


def _place(record: EndpointRecord) -> str:
    return f"endpoints/{record.id}"


def _existing(record: EndpointRecord | None) -> EndpointRecord:
    if record is None:
        raise EndpointNotFoundError
    return record


async def _check_references(conn: Connection, workspace_id: str, target: Target) -> None:
    if target.secret_id is not None and not await secret_exists(conn, workspace_id, target.secret_id):
        raise InvalidFieldError(f"{_TARGET}.secret_id", "no such secret")
    if target.model_id is not None and not await model_exists(conn, workspace_id, target.model_id):
        raise InvalidFieldError(f"{_TARGET}.model_id", "no such model")


def _deleted_meanwhile(target: Target) -> InvalidFieldError:
    """Another request deleted the secret or model that the target refers to."""
    field = "secret_id" if target.secret_id is not None else "model_id"
    return InvalidFieldError(f"{_TARGET}.{field}", f"no such {field.removesuffix('_id')}")
