"""Queries for health at a glance: what of a workspace does not work now, the first ones by name.

See docs/reference/management-api.md#health-at-a-glance.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, func, literal, or_, select

from control.edges.sql.store import Connection
from control.edges.sql.tables import deployments, endpoints, environments, models, webhook_deliveries, webhooks
from control.edges.sql.webhook_rows import IS_PENDING
from control.records.webhooks import DEAD
from policy.deployments import DEFAULT_ENVIRONMENT, LOADING_MODEL, NOT_SERVING, UNHEALTHY, WAKING_UP

_AWAITED = (WAKING_UP, LOADING_MODEL)
"""The statuses that a launcher is to end."""


async def count_webhooks(conn: Connection, workspace_id: str) -> int:
    """The number of webhooks that are on."""
    return await _count(conn, select(webhooks.c.id).where(*_is_on(workspace_id)))


async def failing_webhooks(conn: Connection, workspace_id: str, dead_since_ms: int) -> Sequence[str]:
    """The addresses of webhooks with a message that failed and is tried again, or that was given up since then."""
    table = webhook_deliveries
    # Only an attempt that failed is logged of a message that is not delivered.
    waits = exists().where(table.c.webhook_id == webhooks.c.id, IS_PENDING, table.c.attempt_log != "[]")
    given_up = select(table.c.webhook_id).where(table.c.status == DEAD, table.c.ended_at_ms >= dead_since_ms)
    query = select(webhooks.c.url).where(*_is_on(workspace_id), or_(waits, webhooks.c.id.in_(given_up)))
    return (await conn.execute(query.order_by(webhooks.c.url))).scalars().all()


async def count_endpoints(conn: Connection, workspace_id: str) -> int:
    """The number of endpoints, wherever they lead."""
    return await _count(conn, select(endpoints.c.id).where(endpoints.c.workspace_id == workspace_id))


async def failing_endpoints(conn: Connection, workspace_id: str, most: int) -> Sequence[str]:
    """The slugs, at most so many, that lead to a platform model's environment without a deployment that serves."""
    serves = exists().where(
        environments.c.model_id == endpoints.c.model_id,
        _is_named(func.lower(endpoints.c.target)),
        deployments.c.id == environments.c.deployment_id,
        deployments.c.status.not_in((UNHEALTHY, *sorted(NOT_SERVING))),
    )
    query = select(endpoints.c.slug).where(
        endpoints.c.workspace_id == workspace_id, endpoints.c.model_id.is_not(None), ~serves
    )
    return list((await conn.execute(query.order_by(endpoints.c.slug).limit(most))).scalars())


def _is_named(target: ColumnElement[str]) -> ColumnElement[bool]:
    """Match environments that the stored target names, as `endpoint_rows` finds them: by the text of its member."""
    member = literal('"environment_name":"') + func.lower(environments.c.name) + literal('"')
    is_default = and_(environments.c.name == DEFAULT_ENVIRONMENT, target.not_like('%"environment_name":%'))
    return or_(func.replace(target, member, "") != target, is_default)


async def count_launched(conn: Connection, workspace_id: str) -> int:
    """The number of deployments that a launcher starts."""
    return await _count(conn, _launched(workspace_id, deployments.c.id))


async def failing_launches(conn: Connection, workspace_id: str, awaited_since_ms: int) -> Sequence[str]:
    """The names of the models whose launcher does not answer, or has not brought a replica since then."""
    is_late = and_(deployments.c.status.in_(_AWAITED), deployments.c.updated_at_ms < awaited_since_ms)
    query = _launched(workspace_id, models.c.name).where(or_(deployments.c.wake_pause_ms < 0, is_late))
    return list((await conn.execute(query.order_by(models.c.name))).scalars())


def _is_on(workspace_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return webhooks.c.workspace_id == workspace_id, webhooks.c.enabled


def _launched(workspace_id: str, column: ColumnElement[Any]) -> Select[Any]:
    pairs = deployments.join(models, models.c.id == deployments.c.model_id)
    query = select(column).select_from(pairs)
    return query.where(models.c.workspace_id == workspace_id, deployments.c.wake_url.is_not(None))


async def _count(conn: Connection, query: Select[Any]) -> int:
    return int((await conn.execute(select(func.count()).select_from(query.subquery()))).scalar_one())
