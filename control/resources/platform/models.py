"""Platform models: register, rename, delete; the lock under which everything of a model changes. No SQL, no HTTP.

See docs/reference/management-api.md#models.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from control.edges.sql import endpoint_rows, model_rows
from control.edges.sql.database import DanglingError
from control.edges.sql.store import Connection, Store, WriteTx
from control.errors import ModelInUseError, ModelNotFoundError
from control.records.audit import Change
from control.records.ids import new_id
from control.records.models import ModelRecord, PageOfNames
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown_platform import shown_model
from policy.deployments import DEFAULT_ENVIRONMENT, DEVELOPMENT, deployment_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model, how many deployments it has, and where its two well-known environments point."""

    record: ModelRecord
    deployments_count: int = 0
    production_deployment_id: str | None = None
    development_deployment_id: str | None = None


async def create_model(store: Store, workspace_id: str, name: str) -> ModelSummary:
    async def work(tx: WriteTx) -> ModelSummary:
        record = ModelRecord(new_id("mdl"), workspace_id, name, tx.now_ms)
        await model_rows.insert_model(tx, record)
        tx.audit(workspace_id, Change("model.create", path_of(record), None, shown_model(record)))
        return ModelSummary(record)

    return await store.transact(work)


async def rename_model(store: Store, workspace_id: str, model_id: str, name: str) -> ModelSummary:
    async def work(tx: WriteTx, model: ModelRecord) -> ModelSummary:
        record = replace(model, name=name)
        await model_rows.update_model(tx, record)
        if record != model:
            tx.audit(workspace_id, Change("model.update", path_of(record), shown_model(model), shown_model(record)))
        return (await _summaries(tx.conn, [record]))[0]

    return await with_model_locked(store, workspace_id, model_id, work)


async def remove_model(store: Store, workspace_id: str, model_id: str) -> str:
    """Delete the model with all its deployments and environments. Refused while an endpoint names it."""

    async def work(tx: WriteTx, model: ModelRecord) -> str:
        if slugs := await endpoint_rows.slugs_routed_to(tx.conn, model.id):
            raise ModelInUseError(slugs)
        count = (await model_rows.count_deployments(tx.conn, [model.id])).get(model.id, 0)
        await model_rows.delete_model(tx, model)
        fields = shown_model(model) | {"deployments_deleted": count}
        tx.audit(workspace_id, Change("model.delete", path_of(model), fields, None))
        return model.id

    try:
        return await with_model_locked(store, workspace_id, model_id, work)
    except DanglingError:  # an endpoint was written meanwhile
        raise ModelInUseError from None


async def read_model(store: Store, workspace_id: str, model_id: str) -> ModelSummary:
    async with store.read() as conn:
        return (await _summaries(conn, [await find_model(conn, workspace_id, model_id)]))[0]


async def read_models(store: Store, workspace_id: str, page: PageOfNames) -> Sequence[ModelSummary]:
    """Return the page of the workspace's models, oldest first."""
    async with store.read() as conn:
        return await _summaries(conn, await model_rows.list_models(conn, workspace_id, page))


async def find_model(conn: Connection, workspace_id: str, model_id: str) -> ModelRecord:
    return _existing(await model_rows.find_model(conn, workspace_id, model_id))


async def with_model_locked(
    store: Store, workspace_id: str, model_id: str, work: Callable[[WriteTx, ModelRecord], Awaitable[T]]
) -> T:
    """Do `work` in a transaction that no other change of this model runs beside."""

    async def locked(tx: WriteTx) -> T:
        return await work(tx, _existing(await model_rows.lock_model(tx, workspace_id, model_id)))

    return await store.transact(locked)


async def _summaries(conn: Connection, records: Sequence[ModelRecord]) -> list[ModelSummary]:
    ids = [record.id for record in records]
    counts = await model_rows.count_deployments(conn, ids)
    pointers = await model_rows.pointers_of(conn, ids, (DEFAULT_ENVIRONMENT, DEVELOPMENT))
    return [
        ModelSummary(
            record,
            counts.get(record.id, 0),
            deployment_of(pointers.get(record.id, {}), DEFAULT_ENVIRONMENT),
            deployment_of(pointers.get(record.id, {}), DEVELOPMENT),
        )
        for record in records
    ]


def _existing(record: ModelRecord | None) -> ModelRecord:
    if record is None:
        raise ModelNotFoundError
    return record
