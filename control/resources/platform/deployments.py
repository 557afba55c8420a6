"""Platform models, their deployments and environments, and a deployment's status. No SQL, no HTTP.

See docs/reference/management-api.md#deployments.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from control.edges.sql import model_rows
from control.edges.sql.store import Connection, Store, WriteTx
from control.resources.endpoints import UpstreamUrls
from control.resources.errors import (
    DeploymentNotFoundError,
    EnvironmentNotFoundError,
    InvalidFieldError,
    ModelNotFoundError,
)
from control.resources.ids import new_id
from control.resources.records import DeploymentRecord, EnvironmentRecord, ModelRecord
from policy.endpoints import EndpointRuleError

T = TypeVar("T")
ACTIVE, INACTIVE, DEPLOYING = "ACTIVE", "INACTIVE", "DEPLOYING"
SCALED_TO_ZERO = "SCALED_TO_ZERO"
FAILED = frozenset({"FAILED", "DEPLOY_FAILED"})


@dataclass(frozen=True, slots=True)
class DeploymentRef:
    """Names a deployment: by its id, or as the one that an environment points to."""

    workspace_id: str
    model_id: str
    deployment_id: str | None = None
    environment: str | None = None


async def create_model(store: Store, workspace_id: str, name: str) -> ModelRecord:
    async def work(tx: WriteTx) -> ModelRecord:
        record = ModelRecord(new_id("mdl"), workspace_id, name, tx.now_ms)
        await model_rows.insert_model(tx, record)
        return record

    return await store.transact(work)


async def create_deployment(store: Store, ref: DeploymentRef, name: str) -> DeploymentRecord:
    """A deployment without replicas: calls to it wait for the first ones."""

    async def work(tx: WriteTx, model: ModelRecord) -> DeploymentRecord:
        record = DeploymentRecord(new_id("dep"), model.id, name, DEPLOYING, (), tx.now_ms, tx.now_ms)
        await model_rows.insert_deployment(tx, model, record)
        return record

    return await _with_model_locked(store, ref, work)


async def replace_replicas(
    store: Store, urls: UpstreamUrls, ref: DeploymentRef, replicas: Sequence[str]
) -> DeploymentRecord:
    """Replace the whole list. With replicas the deployment is ACTIVE; without any it is scaled to zero."""
    for index, url in enumerate(replicas):
        try:
            await urls.check_replica_url(url)
        except EndpointRuleError as error:
            raise InvalidFieldError(f"replicas.{index}", error.message) from None
    listed = tuple(dict.fromkeys(url.rstrip("/") for url in replicas))

    def changed(record: DeploymentRecord) -> DeploymentRecord:
        return replace(record, replicas=listed, status=ACTIVE if listed else SCALED_TO_ZERO)

    return await _change_deployment(store, ref, changed)


async def activate_deployment(store: Store, ref: DeploymentRef) -> DeploymentRecord:
    return await _change_deployment(
        store, ref, lambda d: d if d.status == ACTIVE else replace(d, status=_status_when_active(d))
    )


async def deactivate_deployment(store: Store, ref: DeploymentRef) -> DeploymentRecord:
    return await _change_deployment(store, ref, lambda d: replace(d, status=INACTIVE))


async def retry_deployment(store: Store, ref: DeploymentRef) -> tuple[bool, DeploymentRecord]:
    """Whether the deployment had failed and is tried again, and how it stands now."""
    tried: list[bool] = []

    def changed(record: DeploymentRecord) -> DeploymentRecord:
        tried.append(record.status in FAILED)
        return replace(record, status=_status_when_active(record)) if tried[-1] else record

    record = await _change_deployment(store, ref, changed)
    return tried[-1], record


async def point_environment(store: Store, ref: DeploymentRef, name: str, deployment_id: str) -> EnvironmentRecord:
    async def work(tx: WriteTx, model: ModelRecord) -> EnvironmentRecord:
        if await model_rows.find_deployment(tx.conn, model.id, deployment_id) is None:
            raise DeploymentNotFoundError
        old = await model_rows.find_environment(tx.conn, model.id, name)
        made_ms = old.created_at_ms if old else tx.now_ms
        # Names that differ in case alone are one environment, which keeps the case it was created with.
        record = EnvironmentRecord(model.id, old.name if old else name, deployment_id, made_ms, tx.now_ms)
        write = model_rows.update_environment if old else model_rows.insert_environment
        await write(tx, model, record)
        return record

    return await _with_model_locked(store, ref, work)


async def read_model(store: Store, workspace_id: str, model_id: str) -> ModelRecord:
    async with store.read() as conn:
        return await _find_model(conn, workspace_id, model_id)


async def read_models(store: Store, workspace_id: str, after: str | None, limit: int) -> Sequence[ModelRecord]:
    """At most `limit` models, oldest first, behind the id `after`."""
    async with store.read() as conn:
        return await model_rows.list_models(conn, workspace_id, after, limit)


async def read_deployment(store: Store, ref: DeploymentRef) -> DeploymentRecord:
    async with store.read() as conn:
        return await _find_deployment(conn, ref)


async def read_deployments(
    store: Store, workspace_id: str, model_id: str, after: str | None, limit: int
) -> Sequence[DeploymentRecord]:
    """At most `limit` deployments, oldest first, behind the id `after`."""
    async with store.read() as conn:
        await _find_model(conn, workspace_id, model_id)
        return await model_rows.list_deployments(conn, model_id, after, limit)


async def read_environment(store: Store, workspace_id: str, model_id: str, name: str) -> EnvironmentRecord:
    async with store.read() as conn:
        model = await _find_model(conn, workspace_id, model_id)
        record = await model_rows.find_environment(conn, model.id, name)
    if record is None:
        raise EnvironmentNotFoundError
    return record


async def read_environments(
    store: Store, workspace_id: str, model_id: str, after: str | None, limit: int
) -> Sequence[EnvironmentRecord]:
    """At most `limit` environments by name, behind the name `after`."""
    async with store.read() as conn:
        await _find_model(conn, workspace_id, model_id)
        return await model_rows.list_environments(conn, model_id, after, limit)


async def _find_model(conn: Connection, workspace_id: str, model_id: str) -> ModelRecord:
    return _existing_model(await model_rows.find_model(conn, workspace_id, model_id))


async def _find_deployment(conn: Connection, ref: DeploymentRef) -> DeploymentRecord:
    """Refused when the workspace has no such model, the model no such deployment, or the environment none at all."""
    await _find_model(conn, ref.workspace_id, ref.model_id)
    deployment_id = ref.deployment_id
    if ref.environment is not None:
        pointer = await model_rows.find_environment(conn, ref.model_id, ref.environment)
        deployment_id = pointer.deployment_id if pointer else None
    record = await model_rows.find_deployment(conn, ref.model_id, deployment_id) if deployment_id else None
    return _existing_deployment(record)


async def environments_by_deployment(store: Store, model_id: str) -> dict[str, str]:
    """For each deployment, the first environment by name that points to it."""
    async with store.read() as conn:
        pointers = await model_rows.list_environments(conn, model_id, None)
    return {pointer.deployment_id: pointer.name for pointer in reversed(pointers)}


def _status_when_active(record: DeploymentRecord) -> str:
    return ACTIVE if record.replicas else DEPLOYING


async def _change_deployment(
    store: Store, ref: DeploymentRef, changed: Callable[[DeploymentRecord], DeploymentRecord]
) -> DeploymentRecord:
    async def work(tx: WriteTx, model: ModelRecord) -> DeploymentRecord:
        found = await _find_deployment(tx.conn, ref)
        old = _existing_deployment(await model_rows.lock_deployment(tx, model.id, found.id))
        record = changed(old)
        if record != old:
            record = replace(record, updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
            await model_rows.update_deployment(tx, model, old, record)
        return record

    return await _with_model_locked(store, ref, work)


async def _with_model_locked(
    store: Store, ref: DeploymentRef, work: Callable[[WriteTx, ModelRecord], Awaitable[T]]
) -> T:
    """Do `work` with the model locked."""

    async def locked(tx: WriteTx) -> T:
        return await work(tx, _existing_model(await model_rows.lock_model(tx, ref.workspace_id, ref.model_id)))

    return await store.transact(locked)


def _existing_model(record: ModelRecord | None) -> ModelRecord:
    if record is None:
        raise ModelNotFoundError
    return record


def _existing_deployment(record: DeploymentRecord | None) -> DeploymentRecord:
    if record is None:
        raise DeploymentNotFoundError
    return record
