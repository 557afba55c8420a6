"""Queries on `webhooks` and `webhook_deliveries`. A process claims a delivery by a lease that expires.

Claims on one webhook are serialized, so its concurrency limit holds over all processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)

from control.edges.sql.events.clock import database_clock
from control.edges.sql.events.rows import events_by_key
from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection, WriteTx
from control.edges.sql.tables import webhook_deliveries, webhooks
from control.records.webhooks import PENDING, DeliveryRecord, Receiver, WebhookRecord

# Literals, not parameters: otherwise the planner does not use the partial indexes.
IS_PENDING = webhook_deliveries.c.status == literal_column(f"'{PENDING}'")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim on a webhook's deliveries. `most`: deliveries in flight, over all processes. `lease_ms`: its duration."""

    webhook_id: str
    lease: str
    most: int
    lease_ms: int


# --- the resource ----------------------------------------------------------------------------------------------------


async def insert_webhook(tx: WriteTx, record: WebhookRecord) -> None:
    values = {name: getattr(record, name) for name in WebhookRecord.__dataclass_fields__}
    await tx.conn.execute(insert(webhooks).values(**values))


async def find_webhook(conn: Connection, workspace_id: str, webhook_id: str) -> WebhookRecord | None:
    row = (await conn.execute(_of(workspace_id, webhook_id))).one_or_none()
    return WebhookRecord(*row) if row else None


async def lock_webhook(tx: WriteTx, workspace_id: str, webhook_id: str) -> WebhookRecord | None:
    row = (await tx.conn.execute(_of(workspace_id, webhook_id).with_for_update())).one_or_none()
    return WebhookRecord(*row) if row else None


def _of(workspace_id: str, webhook_id: str) -> Any:
    return select(webhooks).where(webhooks.c.id == webhook_id, webhooks.c.workspace_id == workspace_id)


async def list_webhooks(conn: Connection, workspace_id: str, after: str | None, limit: int) -> list[WebhookRecord]:
    query = select(webhooks).where(webhooks.c.workspace_id == workspace_id).order_by(webhooks.c.id).limit(limit)
    if after is not None:
        query = query.where(webhooks.c.id > after)
    return [WebhookRecord(*row) for row in await conn.execute(query)]


async def count_webhooks(tx: WriteTx, workspace_id: str) -> int:
    query = select(func.count()).select_from(webhooks).where(webhooks.c.workspace_id == workspace_id)
    count: int = (await tx.conn.execute(query)).scalar_one()
    return count


async def update_webhook(tx: WriteTx, record: WebhookRecord) -> None:
    values = {name: getattr(record, name) for name in WebhookRecord.__dataclass_fields__}
    await tx.conn.execute(update(webhooks).where(webhooks.c.id == record.id).values(**values))


async def delete_webhook(tx: WriteTx, webhook_id: str) -> None:
    await tx.conn.execute(delete(webhook_deliveries).where(webhook_deliveries.c.webhook_id == webhook_id))
    await tx.conn.execute(delete(webhooks).where(webhooks.c.id == webhook_id))


async def lock_all_webhooks(tx: WriteTx) -> list[WebhookRecord]:
    query = select(webhooks).order_by(webhooks.c.id).with_for_update()
    return [WebhookRecord(*row) for row in await tx.conn.execute(query)]


# --- deliveries ------------------------------------------------------------------------------------------------------


async def enabled_webhooks(
    conn: Connection, workspace_ids: Sequence[str], event_type: str
) -> dict[str, list[Receiver]]:
    """The enabled webhooks, of each of these workspaces that has any, that are told of this type of events."""
    query = select(webhooks.c.workspace_id, webhooks.c.id, webhooks.c.include_details, webhooks.c.group_id)
    query = query.where(one_of(webhooks.c.workspace_id, workspace_ids), webhooks.c.enabled, is_told(event_type))
    receivers: dict[str, list[Receiver]] = {}
    for workspace_id, *members in await conn.execute(query.order_by(webhooks.c.id)):
        receivers.setdefault(workspace_id, []).append(Receiver(*members))
    return receivers


def is_told(event_type: str) -> ColumnElement[bool]:
    """Hold for webhooks that are told of this type of events."""
    return webhooks.c.event_types.contains(f'"{event_type}"', autoescape=True)


async def listening_workspaces(conn: Connection, event_type: str) -> set[str]:
    """The workspaces with an enabled webhook that is told of this type of events."""
    query = select(webhooks.c.workspace_id).where(webhooks.c.enabled, is_told(event_type))
    return set((await conn.execute(query)).scalars())


async def insert_deliveries(tx: WriteTx, records: Sequence[DeliveryRecord]) -> None:
    names = DeliveryRecord.__dataclass_fields__
    if records:
        await tx.conn.execute(
            insert(webhook_deliveries), [{name: getattr(one, name) for name in names} for one in records]
        )


async def lock_delivery(tx: WriteTx, webhook_id: str, delivery_id: str) -> DeliveryRecord | None:
    query = select(webhook_deliveries).where(
        webhook_deliveries.c.id == delivery_id, webhook_deliveries.c.webhook_id == webhook_id
    )
    row = (await tx.conn.execute(query.with_for_update())).one_or_none()
    return DeliveryRecord(*row) if row else None


async def list_deliveries(
    conn: Connection, webhook_id: str, status: str | None, before: str | None, limit: int
) -> list[DeliveryRecord]:
    """List deliveries, newest first."""
    table = webhook_deliveries
    query = select(table).where(table.c.webhook_id == webhook_id).order_by(table.c.id.desc()).limit(limit)
    if status is not None:
        query = query.where(table.c.status == status)
    if before is not None:
        query = query.where(table.c.id < before)
    return [DeliveryRecord(*row) for row in await conn.execute(query)]


async def due_webhooks(conn: Connection) -> list[str]:
    """Webhooks that have a due delivery."""
    return list((await conn.execute(due_webhooks_query(database_clock(conn.dialect.name)))).scalars())


def due_webhooks_query(now_ms: ScalarSelect[int]) -> Select[Any]:
    """Select webhooks by one index look-up each, however many deliveries wait. With EXISTS a planner may read all."""
    condition = and_(webhook_deliveries.c.webhook_id == webhooks.c.id, _is_due(now_ms))
    one = select(webhook_deliveries.c.id).where(condition).limit(1).correlate(webhooks).scalar_subquery()
    return select(webhooks.c.id).where(webhooks.c.enabled, one.is_not(None))


def due_query(webhook_id: str, now_ms: int, limit: int) -> Select[Any]:
    """A webhook's due deliveries, longest due first."""
    due = select(webhook_deliveries.c.id).where(webhook_deliveries.c.webhook_id == webhook_id, _is_due(now_ms))
    return due.order_by(webhook_deliveries.c.next_attempt_at_ms).limit(limit)


def _is_due(now_ms: int | ScalarSelect[int]) -> ColumnElement[bool]:
    return and_(IS_PENDING, webhook_deliveries.c.next_attempt_at_ms <= now_ms)


def leased_query(webhook_id: str, now_ms: int) -> Select[Any]:
    """The number of a webhook's deliveries in flight, over all processes."""
    table = webhook_deliveries
    leased = and_(table.c.webhook_id == webhook_id, IS_PENDING, table.c.leased_until_ms > now_ms)
    return select(func.count()).select_from(table).where(leased)


async def claim_deliveries(tx: WriteTx, claim: Claim, now_ms: int) -> tuple[WebhookRecord, list[DeliveryRecord]] | None:
    """Lease due deliveries up to the webhook's concurrency. None if the webhook is deleted, disabled or locked."""
    query = select(webhooks).where(webhooks.c.id == claim.webhook_id, webhooks.c.enabled)
    row = (await tx.conn.execute(query.with_for_update(skip_locked=True))).one_or_none()
    if row is None:
        return None
    table = webhook_deliveries
    under_way: int = (await tx.conn.execute(leased_query(claim.webhook_id, now_ms))).scalar_one()
    due = due_query(claim.webhook_id, now_ms, max(0, claim.most - under_way))
    until_ms = now_ms + claim.lease_ms
    # After waiting for a row lock, PostgreSQL re-checks only the outer conditions.
    statement = update(table).where(table.c.id.in_(due.scalar_subquery()), _is_due(now_ms))
    statement = statement.values(
        lease=claim.lease, leased_until_ms=until_ms, next_attempt_at_ms=until_ms, attempts=table.c.attempts + 1
    )
    deliveries = [DeliveryRecord(*row) for row in await tx.conn.execute(statement.returning(*table.c))]
    return WebhookRecord(*row), sorted(deliveries, key=lambda delivery: delivery.id)


async def finish_attempt(tx: WriteTx, delivery: DeliveryRecord, values: Mapping[str, Any]) -> bool:
    """Write the result of a leased delivery. False if the lease expired and another process holds it."""
    table = webhook_deliveries
    mine = update(table).where(table.c.id == delivery.id, table.c.lease == delivery.lease, IS_PENDING)
    return (await tx.conn.execute(mine.values(lease=None, leased_until_ms=0, **values))).rowcount == 1


async def update_delivery(tx: WriteTx, delivery_id: str, values: Mapping[str, Any]) -> None:
    await tx.conn.execute(update(webhook_deliveries).where(webhook_deliveries.c.id == delivery_id).values(**values))


async def load_delivery_events(conn: Connection, deliveries: Sequence[DeliveryRecord]) -> dict[str, Any]:
    """The events of these deliveries by idempotency key, as far as they are still stored."""
    keys = {key for delivery in deliveries for key in orjson.loads(delivery.event_keys)}
    return await events_by_key(conn, keys)


async def oldest_deliveries(conn: Connection) -> dict[str, int]:
    """Return when the oldest delivery of each workspace was created. All of them may still be sent or sent again."""
    created_ms = func.min(webhook_deliveries.c.created_at_ms).label("oldest_ms")
    pairs = webhooks.join(webhook_deliveries, webhook_deliveries.c.webhook_id == webhooks.c.id)
    query = select(webhooks.c.workspace_id, created_ms).select_from(pairs).group_by(webhooks.c.workspace_id)
    return {row.workspace_id: row.oldest_ms for row in await conn.execute(query)}


async def forget_deliveries(tx: WriteTx, status: str, before_ms: int, limit: int) -> int:
    """Delete at most `limit` deliveries that ended with `status` before `before_ms`; returns how many."""
    table = webhook_deliveries
    ended = and_(table.c.status == status, table.c.ended_at_ms < before_ms)
    old = select(table.c.id).where(ended).limit(limit)
    # Repeated outside for PostgreSQL, as in `claim_deliveries`: a delivery that is being redelivered stays.
    return (await tx.conn.execute(delete(table).where(table.c.id.in_(old), ended))).rowcount


async def forget_orphans(tx: WriteTx) -> int:
    """Delete deliveries that an ingest wrote while their webhook was being deleted."""
    is_orphan = ~exists().where(webhooks.c.id == webhook_deliveries.c.webhook_id)
    return (await tx.conn.execute(delete(webhook_deliveries).where(is_orphan))).rowcount
