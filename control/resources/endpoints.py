"""Endpoints as they change: which slug leads where. No SQL and no HTTP here.

See docs/reference/management-api.md#endpoints.
"""

from control.api.protocol.errors import ProblemError, bad_field, conflict, not_found
from control.edges.name_resolution import UpstreamNames
from control.edges.sql import endpoint_rows
from control.edges.sql.database import DanglingError, TakenError
from control.edges.sql.endpoint_rows import EndpointRecord
from control.edges.sql.model_rows import model_exists
from control.edges.sql.secret_rows import secret_exists
from control.edges.sql.store import Connection, Store, WriteTx
from control.edges.sql.workspace_rows import owned_prefixes
from control.resources.ids import new_id
from policy.endpoints import EndpointRuleError, Target, check_slug, check_target

_TARGET = "targets.0"


async def create_endpoint(store: Store, workspace_id: str, slug: str, target: Target) -> EndpointRecord:
    """A new endpoint; whether the slug is free is the database's to say."""

    async def work(tx: WriteTx) -> EndpointRecord:
        try:
            check_slug(slug, await owned_prefixes(tx.conn, workspace_id))
        except EndpointRuleError as error:
            raise bad_field("slug", error.message) from None
        await _check_references(tx.conn, workspace_id, target)
        record = EndpointRecord(new_id("ep"), workspace_id, slug, target, tx.now_ms, tx.now_ms)
        await endpoint_rows.insert_endpoint(tx, record)
        return record

    try:
        return await store.transact(work)
    except TakenError:
        raise conflict("the slug is taken") from None
    except DanglingError:
        raise _vanished(target) from None


async def retarget(store: Store, workspace_id: str, endpoint_id: str, target: Target) -> EndpointRecord:
    async def work(tx: WriteTx) -> EndpointRecord:
        await _check_references(tx.conn, workspace_id, target)
        return found(await endpoint_rows.update_target(tx, workspace_id, endpoint_id, target))

    try:
        return await store.transact(work)
    except DanglingError:
        raise _vanished(target) from None


async def delete_endpoint(store: Store, workspace_id: str, endpoint_id: str) -> EndpointRecord:
    async def work(tx: WriteTx) -> EndpointRecord:
        return found(await endpoint_rows.delete_endpoint(tx, workspace_id, endpoint_id))

    return await store.transact(work)


async def check_target_rules(target: Target, names: UpstreamNames) -> None:
    """400 unless the target keeps its provider's rules. Before the transaction: names are resolved here."""
    try:
        check_target(target)
        if target.base_url is not None:
            await names.check_base_url(target.base_url)
    except EndpointRuleError as error:
        raise bad_field(f"{_TARGET}.{error.field}", error.message) from None


def found(record: EndpointRecord | None) -> EndpointRecord:
    if record is None:
        raise not_found("endpoint")
    return record


async def _check_references(conn: Connection, workspace_id: str, target: Target) -> None:
    if target.secret_id is not None and not await secret_exists(conn, workspace_id, target.secret_id):
        raise bad_field(f"{_TARGET}.secret_id", "no such secret")
    if target.model_id is not None and not await model_exists(conn, workspace_id, target.model_id):
        raise bad_field(f"{_TARGET}.model_id", "no such model")


def _vanished(target: Target) -> ProblemError:
    """What the target refers to was deleted while we wrote."""
    field = "secret_id" if target.secret_id is not None else "model_id"
    return bad_field(f"{_TARGET}.{field}", f"no such {field.removesuffix('_id')}")
