"""Environments of a platform model: names that point to one of its deployments. No SQL, no HTTP.

See docs/reference/management-api.md#environments.
"""

from collections.abc import Sequence

from control.edges.sql import endpoint_rows, model_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.errors import (
    DeploymentNotFoundError,
    EnvironmentInUseError,
    EnvironmentNotFoundError,
    EnvironmentTakenError,
)
from control.records.audit import Change
from control.records.models import EnvironmentRecord, ModelRecord
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown_platform import shown_environment
from control.resources.platform.models import find_model, with_model_locked


async def create_environment(store: Store, workspace_id: str, model_id: str, name: str) -> EnvironmentRecord:
    """An environment that points to no deployment. Refused if the model has one of that name, in any case."""

    async def work(tx: WriteTx, model: ModelRecord) -> EnvironmentRecord:
        if await model_rows.find_environment(tx.conn, model.id, name) is not None:
            raise EnvironmentTakenError
        record = EnvironmentRecord(model.id, name, None, tx.now_ms, tx.now_ms)
        await model_rows.insert_environment(tx, model, record)
        tx.audit(workspace_id, Change("environment.create", path_of(record), None, shown_environment(record)))
        return record

    return await with_model_locked(store, workspace_id, model_id, work)


async def point_environment(
    store: Store, workspace_id: str, model_id: str, name: str, deployment_id: str
) -> EnvironmentRecord:
    async def work(tx: WriteTx, model: ModelRecord) -> EnvironmentRecord:
        if await model_rows.find_deployment(tx.conn, model.id, deployment_id) is None:
            raise DeploymentNotFoundError
        old = await model_rows.find_environment(tx.conn, model.id, name)
        made_ms = old.created_at_ms if old else tx.now_ms
        # Names that differ in case alone are one environment, which keeps the case it was created with.
        record = EnvironmentRecord(model.id, old.name if old else name, deployment_id, made_ms, tx.now_ms)
        write = model_rows.update_environment if old else model_rows.insert_environment
        await write(tx, model, record)
        action, before = ("environment.update", shown_environment(old)) if old else ("environment.create", None)
        tx.audit(workspace_id, Change(action, path_of(record), before, shown_environment(record)))
        return record

    return await with_model_locked(store, workspace_id, model_id, work)


async def remove_environment(store: Store, workspace_id: str, model_id: str, name: str) -> EnvironmentRecord:
    """Delete an environment. Refused while an endpoint routes to it. Its deployment stays."""

    async def work(tx: WriteTx, model: ModelRecord) -> EnvironmentRecord:
        record = await _existing(tx.conn, model.id, name)
        if slugs := await endpoint_rows.slugs_routed_to(tx.conn, model.id, record.name):
            raise EnvironmentInUseError(slugs)
        await model_rows.delete_environment(tx, model, record.name)
        tx.audit(workspace_id, Change("environment.delete", path_of(record), shown_environment(record), None))
        return record

    return await with_model_locked(store, workspace_id, model_id, work)


async def read_environment(store: Store, workspace_id: str, model_id: str, name: str) -> EnvironmentRecord:
    async with store.read() as conn:
        await find_model(conn, workspace_id, model_id)
        return await _existing(conn, model_id, name)


async def read_environments(
    store: Store, workspace_id: str, model_id: str, after: str | None, limit: int
) -> Sequence[EnvironmentRecord]:
    """Return at most `limit` environments by name, behind the name `after`."""
    async with store.read() as conn:
        await find_model(conn, workspace_id, model_id)
        return await model_rows.list_environments(conn, model_id, after, limit)


async def _existing(conn: Connection, model_id: str, name: str) -> EnvironmentRecord:
    record = await model_rows.find_environment(conn, model_id, name)
    if record is None:
        raise EnvironmentNotFoundError
    return record
