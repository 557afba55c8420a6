"""Platform models, their deployments and environments, and a deployment's life. No SQL, no HTTP.

See docs/reference/management-api.md#deployments.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from control.api.protocol.errors import conflict, not_found
from control.edges.sql import model_rows
from control.edges.sql.model_rows import DeploymentRecord, EnvironmentRecord, ModelFullError, ModelRecord
from control.edges.sql.store import Connection, Store, WriteTx
from control.resources.ids import new_id

T = TypeVar("T")
ACTIVE, INACTIVE, DEPLOYING = "ACTIVE", "INACTIVE", "DEPLOYING"
SCALED_TO_ZERO = "SCALED_TO_ZERO"
FAILED = frozenset({"FAILED", "DEPLOY_FAILED"})
STATUSES = (
    *("BUILDING", DEPLOYING, "LOADING_MODEL", ACTIVE, SCALED_TO_ZERO, "WAKING_UP", "UPDATING", "UNHEALTHY"),
    *("FAILED", "DEPLOY_FAILED", "DEACTIVATING", INACTIVE),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A deployment as a path names it: by its id, or as what an environment points to."""

    workspace_id: str
    model_id: str
    deployment_id: str | None = None
    environment: str | None = None


async def create_model(store: Store, workspace_id: str, name: str) -> ModelRecord:
    async def work(tx: WriteTx) -> ModelRecord:
        record = ModelRecord(new_id("mdl"), workspace_id, name, tx.now_ms)
        await model_rows.insert_model(tx, record)
        await model_rows.publish_model(tx, record)
        return record

    return await store.transact(work)


async def create_deployment(store: Store, place: Place, name: str) -> DeploymentRecord:
    """A deployment without replicas: calls to it wait for the first ones."""

    async def work(tx: WriteTx, model: ModelRecord) -> DeploymentRecord:
        record = DeploymentRecord(new_id("dep"), model.id, name, DEPLOYING, (), tx.now_ms, tx.now_ms)
        await model_rows.insert_deployment(tx, record)
        return record

    return await _change(store, place, work)


async def set_replicas(store: Store, place: Place, replicas: Sequence[str]) -> DeploymentRecord:
    """Replicas make a deployment ACTIVE; none leave it scaled to zero."""

    def moved(record: DeploymentRecord) -> DeploymentRecord:
        status = ACTIVE if replicas else SCALED_TO_ZERO
        return replace(record, replicas=tuple(dict.fromkeys(replicas)), status=status)

    return await _move(store, place, moved)


async def activate(store: Store, place: Place) -> DeploymentRecord:
    return await _move(store, place, lambda d: d if d.status == ACTIVE else replace(d, status=_awake(d)))


async def deactivate(store: Store, place: Place) -> DeploymentRecord:
    return await _move(store, place, lambda d: replace(d, status=INACTIVE))


async def retry(store: Store, place: Place) -> tuple[bool, DeploymentRecord]:
    """Whether the deployment had failed and is tried again, and how it stands now."""
    tried: list[bool] = []

    def moved(record: DeploymentRecord) -> DeploymentRecord:
        tried.append(record.status in FAILED)
        return replace(record, status=_awake(record)) if tried[-1] else record

    record = await _move(store, place, moved)
    return tried[-1], record


async def point_environment(store: Store, place: Place, name: str, deployment_id: str) -> EnvironmentRecord:
    async def work(tx: WriteTx, model: ModelRecord) -> EnvironmentRecord:
        if await model_rows.find_deployment(tx.conn, model.id, deployment_id) is None:
            raise not_found("deployment")
        old = await model_rows.find_environment(tx.conn, model.id, name)
        made_ms = old.created_at_ms if old else tx.now_ms
        # The name as it was first written: its case is the owner's, and two are one that differ in nothing else.
        record = EnvironmentRecord(model.id, old.name if old else name, deployment_id, made_ms, tx.now_ms)
        await model_rows.put_environment(tx, record, exists=old is not None)
        return record

    return await _change(store, place, work)


async def find_model(conn: Connection, workspace_id: str, model_id: str) -> ModelRecord:
    return _found_model(await model_rows.find_model(conn, workspace_id, model_id))


async def find_deployment(conn: Connection, place: Place) -> DeploymentRecord:
    """404 when the workspace has no such model, the model no such deployment, or the environment points nowhere."""
    await find_model(conn, place.workspace_id, place.model_id)
    deployment_id = place.deployment_id
    if place.environment is not None:
        pointer = await model_rows.find_environment(conn, place.model_id, place.environment)
        deployment_id = pointer.deployment_id if pointer else None
    record = await model_rows.find_deployment(conn, place.model_id, deployment_id) if deployment_id else None
    if record is None:
        raise not_found("deployment")
    return record


async def environments_by_deployment(conn: Connection, model_id: str) -> dict[str, str]:
    """For each deployment, the first environment by name that points to it."""
    pointers = await model_rows.list_environments(conn, model_id, None)
    return {pointer.deployment_id: pointer.name for pointer in reversed(pointers)}


def _awake(record: DeploymentRecord) -> str:
    return ACTIVE if record.replicas else DEPLOYING


async def _move(store: Store, place: Place, moved: Callable[[DeploymentRecord], DeploymentRecord]) -> DeploymentRecord:
    async def work(tx: WriteTx, _model: ModelRecord) -> DeploymentRecord:
        record = replace(moved(await find_deployment(tx.conn, place)), updated_at_ms=tx.now_ms)
        await model_rows.update_deployment(tx, record)
        return record

    return await _change(store, place, work)


async def _change(store: Store, place: Place, work: Callable[[WriteTx, ModelRecord], Awaitable[T]]) -> T:
    """Do `work` with the model locked, then publish the model as it stands."""

    async def locked(tx: WriteTx) -> T:
        model = _found_model(await model_rows.lock_model(tx, place.workspace_id, place.model_id))
        result = await work(tx, model)
        await model_rows.publish_model(tx, model)
        return result

    try:
        return await store.transact(locked)
    except ModelFullError as error:
        raise conflict(str(error)) from None


def _found_model(record: ModelRecord | None) -> ModelRecord:
    if record is None:
        raise not_found("model")
    return record
