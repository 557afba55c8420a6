"""Queries on `endpoints`: slug → target. The database enforces that a slug is unique over all workspaces."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, insert, not_, or_, select, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import endpoints
from control.resources.records import EndpointRecord
from policy.deployments import DEFAULT_ENVIRONMENT, comparable_name
from policy.endpoints import Target
from policy.snapshot import EndpointRow, RowKind, target_from_wire, target_to_wire


async def insert_endpoint(tx: WriteTx, record: EndpointRecord) -> None:
    values = {
        "id": record.id,
        "workspace_id": record.workspace_id,
        "slug": record.slug,
        "created_at_ms": record.created_at_ms,
        "updated_at_ms": record.updated_at_ms,
    }
    await tx.conn.execute(insert(endpoints).values(**values, **_target_columns(record.target)))
    _publish(tx, record)


async def update_target(tx: WriteTx, workspace_id: str, endpoint_id: str, target: Target) -> EndpointRecord | None:
    """Update the target; returns the endpoint with a later `updated_at`, or None if there is no such endpoint."""
    seen = endpoints.c.updated_at_ms
    later = case((seen >= tx.now_ms, seen + 1), else_=tx.now_ms)
    statement = update(endpoints).where(*_matches(workspace_id, endpoint_id)).values(updated_at_ms=later)
    statement = statement.values(**_target_columns(target)).returning(*endpoints.c)
    row = (await tx.conn.execute(statement)).one_or_none()
    if row is None:
        return None
    record = _record(row)
    _publish(tx, record)
    return record


async def delete_endpoint(tx: WriteTx, workspace_id: str, endpoint_id: str) -> EndpointRecord | None:
    statement = delete(endpoints).where(*_matches(workspace_id, endpoint_id)).returning(*endpoints.c)
    row = (await tx.conn.execute(statement)).one_or_none()
    if row is None:
        return None
    record = _record(row)
    tx.publish(RowKind.ENDPOINT, record.slug, None)
    return record


async def find_endpoint(conn: Connection, workspace_id: str, endpoint_id: str) -> EndpointRecord | None:
    row = (await conn.execute(select(endpoints).where(*_matches(workspace_id, endpoint_id)))).one_or_none()
    return _record(row) if row else None


async def list_endpoints(
    conn: Connection, workspace_id: str, after: str | None, limit: int
) -> Sequence[EndpointRecord]:
    query = select(endpoints).where(endpoints.c.workspace_id == workspace_id).order_by(endpoints.c.id).limit(limit)
    if after is not None:
        query = query.where(endpoints.c.id > after)
    return [_record(row) for row in await conn.execute(query)]


async def slugs_routed_to(
    conn: Connection, model_id: str, environment: str | None = None, limit: int = 6
) -> Sequence[str]:
    """Slugs of endpoints that name the model, in any environment or in this one. The first ones by name."""
    query = select(endpoints.c.slug).where(endpoints.c.model_id == model_id).order_by(endpoints.c.slug).limit(limit)
    if environment is not None:
        query = query.where(_names_environment(comparable_name(environment)))
    return (await conn.execute(query)).scalars().all()


def _names_environment(name: str) -> ColumnElement[bool]:
    """By the text that `_target_columns` writes: no other text in it can hold an unescaped quote."""
    text = func.lower(endpoints.c.target)
    named = text.contains(f'"environment_name":"{name}"', autoescape=True)
    if name != DEFAULT_ENVIRONMENT:
        return named
    return or_(named, not_(text.contains('"environment_name":', autoescape=True)))


def _matches(workspace_id: str, endpoint_id: str) -> tuple[Any, Any]:
    return endpoints.c.id == endpoint_id, endpoints.c.workspace_id == workspace_id


def _target_columns(target: Target) -> dict[str, str | None]:
    wire = json.dumps(target_to_wire(target), ensure_ascii=False, separators=(",", ":"))
    return {"target": wire, "secret_id": target.secret_id, "model_id": target.model_id}


def _record(row: Any) -> EndpointRecord:
    target = target_from_wire(json.loads(row.target))
    return EndpointRecord(row.id, row.workspace_id, row.slug, target, row.created_at_ms, row.updated_at_ms)


def _publish(tx: WriteTx, record: EndpointRecord) -> None:
    row = EndpointRow(record.slug, record.id, record.workspace_id, record.target)
    tx.publish(RowKind.ENDPOINT, record.slug, row.to_wire())
