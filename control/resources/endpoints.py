"""Endpoints: which slug leads to which target (docs/reference/management-api.md#endpoints). No SQL, no HTTP."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from control.edges.sql import endpoint_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.model_rows import model_exists
from control.edges.sql.secret_rows import lock_secret_of_id
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.workspace_rows import owned_prefixes
from control.errors import EndpointNotFoundError, InvalidFieldError, SecretUnreadableError, SlugTakenError
from control.records.audit import Change
from control.records.ids import new_id
from control.records.policy import EndpointRecord
from control.resources.changes.ownership import OwnerChange, with_owner
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_endpoint
from control.resources.changes.tags import record_tag
from policy.endpoints import (
    UNRESTRICTED,
    EndpointRuleError,
    ProviderName,
    Target,
    UnusableCredentialError,
    check_credential,
    check_region,
    check_slug,
    check_target,
)
from policy.sealing import SealedWithUnknownKeyError, unseal

_TARGET = "targets.0"


class UpstreamUrls(Protocol):
    """Checks a URL that someone entered: its text, and the addresses its host resolves to. Raises `HostRuleError`."""

    async def check_base_url(self, url: str) -> None: ...

    async def check_replica_url(self, url: str) -> None: ...

    async def check_wake_url(self, url: str) -> None: ...


@dataclass(frozen=True, slots=True)
class NewTarget:
    """The target of an endpoint as the caller sent it."""

    target: Target
    owner: OwnerChange | None = None
    alias: str | None = None
    """The provider's name, if it is an alias."""
    region: str | None = None
    """None: UNRESTRICTED for a new endpoint; it stays as it is otherwise."""


async def create_endpoint(
    store: Store, keys: Sequence[bytes], workspace_id: str, slug: str, new: NewTarget
) -> EndpointRecord:
    """A new endpoint. The database decides whether the slug is free. `keys`: they open the target's secret."""

    async def work(tx: WriteTx) -> EndpointRecord:
        try:
            check_slug(slug, await owned_prefixes(tx.conn, workspace_id))
        except EndpointRuleError as error:
            raise InvalidFieldError("slug", error.message) from None
        await _check_references(tx, keys, workspace_id, new.target)
        unowned = EndpointRecord(
            *(new_id("ep"), workspace_id, slug, new.target, tx.now_ms, tx.now_ms),
            alias=new.alias,
            region=new.region or UNRESTRICTED,
        )
        record = with_owner(unowned, new.owner)
        await endpoint_rows.insert_endpoint(tx, record)
        tx.audit(workspace_id, Change("endpoint.create", path_of(record), None, shown_endpoint(record)))
        return record

    try:
        return await store.transact(work)
    except TakenError:
        raise SlugTakenError from None
    except DanglingError:
        raise _deleted_meanwhile(new.target) from None


async def replace_target(
    store: Store, keys: Sequence[bytes], workspace_id: str, endpoint_id: str, new: NewTarget
) -> EndpointRecord:
    """The endpoint with this target and a later `updated_at_ms`."""

    async def work(tx: WriteTx) -> EndpointRecord:
        await _check_references(tx, keys, workspace_id, new.target)
        old = _existing(await endpoint_rows.lock_endpoint(tx, workspace_id, endpoint_id))
        tx.condition.check(record_tag(old))
        if new.region not in (None, old.region):
            remedy = "delete the endpoint and create it again"
            raise InvalidFieldError("region", f"the region is {old.region} and cannot change; {remedy}")
        updated_at_ms = max(tx.now_ms, old.updated_at_ms + 1)
        changed = replace(old, target=new.target, alias=new.alias, updated_at_ms=updated_at_ms)
        record = with_owner(changed, new.owner)
        await endpoint_rows.update_endpoint(tx, record)
        sides = (shown_endpoint(old), shown_endpoint(record))
        tx.audit(workspace_id, Change("endpoint.update", path_of(record), *sides))
        return record

    try:
        return await store.transact(work)
    except DanglingError:
        raise _deleted_meanwhile(new.target) from None


async def remove_endpoint(store: Store, workspace_id: str, endpoint_id: str) -> EndpointRecord:
    async def work(tx: WriteTx) -> EndpointRecord:
        record = _existing(await endpoint_rows.delete_endpoint(tx, workspace_id, endpoint_id))
        tx.condition.check(record_tag(record))
        tx.audit(workspace_id, Change("endpoint.delete", path_of(record), shown_endpoint(record), None))
        return record

    return await store.transact(work)


async def read_endpoint(store: Store, workspace_id: str, endpoint_id: str) -> EndpointRecord:
    async with store.read() as conn:
        return _existing(await endpoint_rows.find_endpoint(conn, workspace_id, endpoint_id))


async def read_endpoints(store: Store, workspace_id: str, after: str | None, limit: int) -> Sequence[EndpointRecord]:
    """Return at most `limit` endpoints, oldest first, behind the id `after`."""
    async with store.read() as conn:
        return await endpoint_rows.list_endpoints(conn, workspace_id, after, limit)


async def check_target_rules(target: Target, name: ProviderName, urls: UpstreamUrls) -> None:
    """Refuse a target that breaks its provider's rules. Call it before the transaction: it resolves names.

    `name`: the provider's, as it was written; an error names the fields as they are called beside it.
    """
    try:
        check_target(target)
        if target.base_url is not None:
            await urls.check_base_url(target.base_url)
    except EndpointRuleError as error:
        field, dot, member = error.field.partition(".")
        raise InvalidFieldError(f"{_TARGET}.{name.fields.get(field, field)}{dot}{member}", error.message) from None


def check_new_region(region: str | None, regions: Collection[str]) -> None:
    """Refuse the region of a new endpoint that the operator's setting does not name. None: no region is asked for."""
    try:
        check_region(UNRESTRICTED if region is None else region, regions)
    except EndpointRuleError as error:
        raise InvalidFieldError(error.field, error.message) from None


def _existing(record: EndpointRecord | None) -> EndpointRecord:
    if record is None:
        raise EndpointNotFoundError
    return record


async def _check_references(tx: WriteTx, keys: Sequence[bytes], workspace_id: str, target: Target) -> None:
    if target.secret_id is not None:
        await _check_secret(tx, keys, workspace_id, target.secret_id)
    if target.model_id is not None and not await model_exists(tx.conn, workspace_id, target.model_id):
        raise InvalidFieldError(f"{_TARGET}.model_id", "no such model")


async def _check_secret(tx: WriteTx, keys: Sequence[bytes], workspace_id: str, secret_id: str) -> None:
    """Refuse a secret that is not there or cannot be sent. SecretUnreadableError when no key opens it."""
    record = await lock_secret_of_id(tx, workspace_id, secret_id)
    if record is None:
        raise InvalidFieldError(f"{_TARGET}.secret_id", "no such secret")
    try:
        check_credential(unseal(keys, record.id, record.ciphertext))
    except UnusableCredentialError as error:
        message = f"this secret cannot be sent in a header field: {error}. Store its value again"
        raise InvalidFieldError(f"{_TARGET}.secret_id", message) from None
    except SealedWithUnknownKeyError:
        raise SecretUnreadableError from None


def _deleted_meanwhile(target: Target) -> InvalidFieldError:
    """Another request deleted the secret or model that the target refers to."""
    field = "secret_id" if target.secret_id is not None else "model_id"
    return InvalidFieldError(f"{_TARGET}.{field}", f"no such {field.removesuffix('_id')}")
