"""Queries on `models`, `deployments` and `environments`.

Every write publishes the model with all its deployments and environments; the caller holds the lock on the model's row.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from sqlalchemy import bindparam, delete, func, insert, or_, select, update

from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import deployments, environments, models, published
from control.errors import ModelFullError
from control.long_work import beside
from control.records.models import DeploymentRecord, EnvironmentRecord, ModelRecord, PageOfNames, ReportedDeployment
from policy.deployments import Deployment, HealthCheck, comparable_name
from policy.snapshot import ModelRow, RowKind, health_from_wire, health_to_wire

MAX_MODEL_BYTES = 1024 * 1024
"""Bound on a model's published row, which each change sends in full. A larger row from before the bound may shrink."""


_PUBLISHED = ("id", "status", "replicas", "health", "max_concurrency", "max_queued")
"""Columns of a deployment that proxies use, in the order of `Deployment`."""


async def model_exists(conn: Connection, workspace_id: str, model_id: str) -> bool:
    return await find_model(conn, workspace_id, model_id) is not None


async def find_model(conn: Connection, workspace_id: str, model_id: str) -> ModelRecord | None:
    query = select(models).where(models.c.id == model_id, models.c.workspace_id == workspace_id)
    row = (await conn.execute(query)).one_or_none()
    return ModelRecord(*row) if row else None


async def lock_model(tx: WriteTx, workspace_id: str, model_id: str) -> ModelRecord | None:
    query = select(models).where(models.c.id == model_id, models.c.workspace_id == workspace_id)
    row = (await tx.conn.execute(query.with_for_update(key_share=True))).one_or_none()
    return ModelRecord(*row) if row else None


async def lock_reported_model(tx: WriteTx, model_id: str) -> ModelRecord | None:
    """The model of any workspace: for what proxies report."""
    row = (await tx.conn.execute(select(models).where(models.c.id == model_id).with_for_update(key_share=True))).first()
    return ModelRecord(*row) if row else None


async def list_models(conn: Connection, workspace_id: str, page: PageOfNames) -> Sequence[ModelRecord]:
    query = select(models).where(models.c.workspace_id == workspace_id).order_by(models.c.id).limit(page.limit)
    if page.after is not None:
        query = query.where(models.c.id > page.after)
    if page.name is not None:
        query = query.where(models.c.name == page.name)
    return [ModelRecord(*row) for row in await conn.execute(query)]


async def insert_model(tx: WriteTx, record: ModelRecord) -> None:
    values = {name: getattr(record, name) for name in ModelRecord.__dataclass_fields__}
    await tx.conn.execute(insert(models).values(**values))
    await _publish(tx, record)


async def update_model(tx: WriteTx, record: ModelRecord) -> None:
    """Write the model's name. Proxies do not use it, so nothing is published."""
    await tx.conn.execute(update(models).where(models.c.id == record.id).values(name=record.name))


async def delete_model(tx: WriteTx, record: ModelRecord) -> None:
    """Delete the model with its environments and its deployments. Their logs are deleted later, in small steps."""
    await tx.conn.execute(delete(environments).where(environments.c.model_id == record.id))
    await tx.conn.execute(delete(deployments).where(deployments.c.model_id == record.id))
    await tx.conn.execute(delete(models).where(models.c.id == record.id))
    tx.publish(RowKind.MODEL, record.id, None)


async def count_deployments(conn: Connection, model_ids: Iterable[str]) -> dict[str, int]:
    """Count the deployments by model; a model without deployments is missing."""
    model_id = deployments.c.model_id
    query = select(model_id, func.count()).where(one_of(model_id, model_ids)).group_by(model_id)
    return {row[0]: row[1] for row in await conn.execute(query)}


async def pointers_of(conn: Connection, model_ids: Iterable[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The deployment ids of the environments with these names, in any case, by model and by the name as it is spelt."""
    same_names = func.lower(environments.c.name).in_([comparable_name(name) for name in names])
    query = select(environments).where(one_of(environments.c.model_id, model_ids), same_names)
    pointers: dict[str, dict[str, str]] = {}
    points = environments.c.deployment_id.is_not(None)
    for row in await conn.execute(query.where(points).order_by(environments.c.name)):
        pointers.setdefault(row.model_id, {})[row.name] = row.deployment_id
    return pointers


async def find_deployment(conn: Connection, model_id: str, deployment_id: str) -> DeploymentRecord | None:
    query = select(deployments).where(deployments.c.id == deployment_id, deployments.c.model_id == model_id)
    row = (await conn.execute(query)).one_or_none()
    return _deployment(row) if row else None


async def find_deployments(conn: Connection, model_id: str, ids: Iterable[str]) -> Sequence[DeploymentRecord]:
    """Return those of these deployments that the model has."""
    query = select(deployments).where(deployments.c.model_id == model_id, one_of(deployments.c.id, ids))
    return [_deployment(row) for row in await conn.execute(query)]


async def list_deployments(
    conn: Connection, model_id: str, after: str | None, limit: int | None = None, name: str | None = None
) -> Sequence[DeploymentRecord]:
    query = select(deployments).where(deployments.c.model_id == model_id).order_by(deployments.c.id).limit(limit)
    if after is not None:
        query = query.where(deployments.c.id > after)
    if name is not None:
        query = query.where(deployments.c.name == name)
    return [_deployment(row) for row in await conn.execute(query)]


async def lock_deployment(tx: WriteTx, model_id: str, deployment_id: str) -> DeploymentRecord | None:
    query = select(deployments).where(deployments.c.id == deployment_id, deployments.c.model_id == model_id)
    row = (await tx.conn.execute(query.with_for_update())).one_or_none()
    return _deployment(row) if row else None


async def reported_deployments(conn: Connection, deployment_ids: Iterable[str]) -> list[ReportedDeployment]:
    """Return those of these deployments that exist, of any workspace: for the reports of proxies."""
    query = select(models.c.workspace_id, *deployments.c).join_from(deployments, models)
    rows = await conn.execute(query.where(one_of(deployments.c.id, deployment_ids)))
    return [ReportedDeployment(row.workspace_id, _deployment(row)) for row in rows]


async def schedule_wake(tx: WriteTx, deployment_id: str, next_ms: int, pause_ms: int) -> None:
    """The caller holds the lock on the deployment's row."""
    values = {"wake_next_ms": next_ms, "wake_pause_ms": pause_ms}
    await tx.conn.execute(update(deployments).where(deployments.c.id == deployment_id).values(**values))


async def note_last_requests(tx: WriteTx, noted: Mapping[str, int]) -> None:
    """Move `last_request_at_ms` forward, by deployment. Proxies do not use it, so nothing is published."""
    earlier = or_(deployments.c.last_request_at_ms.is_(None), deployments.c.last_request_at_ms < bindparam("called_ms"))
    statement = update(deployments).where(deployments.c.id == bindparam("called"), earlier)
    # In order of the ids, so that two processes cannot deadlock.
    calls = [{"called": id, "called_ms": noted[id]} for id in sorted(noted)]
    await tx.conn.execute(statement.values(last_request_at_ms=bindparam("called_ms")), calls)


async def insert_deployment(tx: WriteTx, model: ModelRecord, record: DeploymentRecord) -> None:
    await tx.conn.execute(insert(deployments).values(**_columns(record)))
    await _publish(tx, model)


async def update_deployment(tx: WriteTx, model: ModelRecord, old: DeploymentRecord, record: DeploymentRecord) -> None:
    """Write what differs from `old`, and publish it if the proxies use it."""
    before = _columns(old)
    changed = {name: value for name, value in _columns(record).items() if value != before[name]}
    if changed:
        await tx.conn.execute(update(deployments).where(deployments.c.id == record.id).values(**changed))
    earlier = _for_proxies(old)
    after = _for_proxies(record)
    if earlier != after:
        await _publish(tx, model, may_grow=replace(earlier, status=after.status) == after)


async def delete_deployment(tx: WriteTx, model: ModelRecord, deployment_id: str) -> None:
    """Delete the deployment. Its log is deleted later, in small steps."""
    await tx.conn.execute(delete(deployments).where(deployments.c.id == deployment_id))
    await _publish(tx, model)


async def environments_pointing_to(conn: Connection, deployment_id: str, limit: int = 6) -> Sequence[str]:
    """Names of environments that point to the deployment. The first ones by name."""
    query = select(environments.c.name).where(environments.c.deployment_id == deployment_id)
    return (await conn.execute(query.order_by(environments.c.name).limit(limit))).scalars().all()


async def first_environments(conn: Connection, deployment_ids: Iterable[str]) -> dict[str, str]:
    """The first environment by name that points to each of these deployments."""
    id = environments.c.deployment_id
    query = select(id, func.min(environments.c.name)).where(one_of(id, deployment_ids)).group_by(id)
    return {row[0]: row[1] for row in await conn.execute(query)}


async def find_environment(conn: Connection, model_id: str, name: str) -> EnvironmentRecord | None:
    """Find by name, ignoring case. Older versions allowed names that differ in case; then the exact spelling wins."""
    same_name = func.lower(environments.c.name) == comparable_name(name)
    rows = (await conn.execute(select(environments).where(environments.c.model_id == model_id, same_name))).all()
    records = {row.name: EnvironmentRecord(*row) for row in rows}
    return records.get(name) or next(iter(records.values()), None)


async def list_environments(
    conn: Connection, model_id: str, after: str | None, limit: int | None = None
) -> Sequence[EnvironmentRecord]:
    query = select(environments).where(environments.c.model_id == model_id).order_by(environments.c.name).limit(limit)
    if after is not None:
        query = query.where(environments.c.name > after)
    return [EnvironmentRecord(*row) for row in await conn.execute(query)]


async def insert_environment(tx: WriteTx, model: ModelRecord, record: EnvironmentRecord) -> None:
    values = {name: getattr(record, name) for name in EnvironmentRecord.__dataclass_fields__}
    await tx.conn.execute(insert(environments).values(**values))
    await _publish(tx, model)


async def update_environment(tx: WriteTx, model: ModelRecord, record: EnvironmentRecord) -> None:
    values = {name: getattr(record, name) for name in EnvironmentRecord.__dataclass_fields__}
    matches = (environments.c.model_id == record.model_id, environments.c.name == record.name)
    await tx.conn.execute(update(environments).where(*matches).values(**values))
    await _publish(tx, model)


async def delete_environment(tx: WriteTx, model: ModelRecord, name: str) -> None:
    await tx.conn.execute(delete(environments).where(environments.c.model_id == model.id, environments.c.name == name))
    await _publish(tx, model)


async def _publish(tx: WriteTx, model: ModelRecord, may_grow: bool = False) -> None:
    """Publish the model as this transaction sees it. Raises `ModelFullError` if it grows beyond `MAX_MODEL_BYTES`.

    `may_grow`: a full model must not keep a deployment from being deactivated.
    """
    # A model may have thousands of deployments, and their other columns may be long.
    query = select(*(deployments.c[name] for name in _PUBLISHED)).where(deployments.c.model_id == model.id)
    rows = (await tx.conn.execute(query.order_by(deployments.c.id))).all()
    pointers = select(environments.c.name, environments.c.deployment_id).where(environments.c.model_id == model.id)
    names = {row[0]: row[1] for row in await tx.conn.execute(pointers.order_by(environments.c.name))}
    text = await beside(model.workspace_id, len(rows), partial(_published_text, model, rows, names))
    if not may_grow and len(text) > MAX_MODEL_BYTES and len(text) > await _published_chars(tx, model):
        raise ModelFullError
    tx.publish_text(RowKind.MODEL, model.id, text)


async def _published_chars(tx: WriteTx, model: ModelRecord) -> int:
    matches = (published.c.kind == RowKind.MODEL.value, published.c.id == model.id)
    return (await tx.conn.execute(select(func.length(published.c.body)).where(*matches))).scalar() or 0


def _published_text(model: ModelRecord, rows: Sequence[Any], names: Mapping[str, str | None]) -> str:
    listed = {row.id: _published_deployment(row) for row in rows}
    return orjson.dumps(ModelRow(model.id, model.workspace_id, listed, names).to_wire()).decode()


def _published_deployment(row: Any) -> Deployment:
    id, status, replicas, health, max_concurrency, max_queued = row
    return Deployment(id, status, tuple(orjson.loads(replicas)), _health(health), max_concurrency, max_queued)


def _for_proxies(record: DeploymentRecord) -> Deployment:
    return Deployment(*(getattr(record, name) for name in _PUBLISHED))


def _health(text: str | None) -> HealthCheck | None:
    return None if text is None else health_from_wire(orjson.loads(text))


def _columns(record: DeploymentRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in DeploymentRecord.__dataclass_fields__}
    health = None if record.health is None else json.dumps(health_to_wire(record.health))
    return values | {"replicas": json.dumps(record.replicas), "health": health}


def _deployment(row: Any) -> DeploymentRecord:
    values = {name: getattr(row, name) for name in DeploymentRecord.__dataclass_fields__}
    return DeploymentRecord(**values | {"replicas": tuple(orjson.loads(row.replicas)), "health": _health(row.health)})
