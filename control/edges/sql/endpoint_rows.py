"""Queries on `endpoints`: slug → target. The database enforces that a slug is unique over all workspaces."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, not_, or_, select, update

from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import endpoints
from control.records.policy import EndpointRecord
from policy.deployments import DEFAULT_ENVIRONMENT, comparable_name
from policy.endpoints import UNRESTRICTED
from policy.snapshot import EndpointRow, RowKind, target_from_wire, target_to_wire

_ALIAS = "alias"
"""The member of the stored target that holds the provider's name as it was written. Proxies do not get it."""


async def insert_endpoint(tx: WriteTx, record: EndpointRecord) -> None:
    values = {
        "id": record.id,
        "workspace_id": record.workspace_id,
        "slug": record.slug,
        "region": None if record.region == UNRESTRICTED else record.region,
        "created_at_ms": record.created_at_ms,
        **_changing_columns(record),
    }
    await tx.conn.execute(insert(endpoints).values(**values))
    _publish(tx, record)


async def lock_endpoint(tx: WriteTx, workspace_id: str, endpoint_id: str) -> EndpointRecord | None:
    query = select(endpoints).where(*_matches(workspace_id, endpoint_id))
    row = (await tx.conn.execute(query.with_for_update(key_share=True))).one_or_none()
    return _record(row) if row else None


async def update_endpoint(tx: WriteTx, record: EndpointRecord) -> None:
    """Write the target, the owner and the time of the change."""
    await tx.conn.execute(update(endpoints).where(endpoints.c.id == record.id).values(**_changing_columns(record)))
    _publish(tx, record)


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
    """Match the text that `_changing_columns` writes for this environment: no other text holds an unescaped quote."""
    text = func.lower(endpoints.c.target)
    condition = text.contains(f'"environment_name":"{name}"', autoescape=True)
    if name != DEFAULT_ENVIRONMENT:
        return condition
    return or_(condition, not_(text.contains('"environment_name":', autoescape=True)))


def _matches(workspace_id: str, endpoint_id: str) -> tuple[Any, Any]:
    return endpoints.c.id == endpoint_id, endpoints.c.workspace_id == workspace_id


def _changing_columns(record: EndpointRecord) -> dict[str, Any]:
    target = record.target
    # In one column with the target: control of the version before, which knows no alias, writes both or neither.
    stored = target_to_wire(target) | ({} if record.alias is None else {_ALIAS: record.alias})
    return {
        "target": json.dumps(stored, ensure_ascii=False, separators=(",", ":")),
        "secret_id": target.secret_id,
        "model_id": target.model_id,
        "updated_at_ms": record.updated_at_ms,
        "managed_by": record.managed_by,
        "managed_at_ms": record.managed_at_ms,
    }


def _record(row: Any) -> EndpointRecord:
    stored = json.loads(row.target)
    return EndpointRecord(
        id=row.id,
        workspace_id=row.workspace_id,
        slug=row.slug,
        target=target_from_wire(stored),
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
        managed_by=row.managed_by,
        managed_at_ms=row.managed_at_ms,
        alias=stored.get(_ALIAS),
        region=row.region or UNRESTRICTED,
    )


def _publish(tx: WriteTx, record: EndpointRecord) -> None:
    row = EndpointRow(record.slug, record.id, record.workspace_id, record.target)
    tx.publish(RowKind.ENDPOINT, record.slug, row.to_wire())
