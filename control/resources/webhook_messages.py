"""The messages of webhooks: what they contain, how they are signed, when they are retried.

Delivery is at least once: a message keeps its id and its bytes over all attempts, and its events keep their keys.
`outbox` writes the messages in the transaction that ingests the events; `webhook_sender.py` sends them.

See docs/reference/events-and-webhooks.md#webhook-messages.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import orjson
from standardwebhooks import Webhook

from control.edges.sql import webhook_rows
from control.edges.sql.billing import price_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.events.ingest import NewEvent, Receivers
from control.edges.sql.store import WriteTx
from control.long_work import OPERATOR, beside
from control.records.ids import new_id
from control.records.limits.alerts import ENDLESS, Alert, LimitFigures, LimitWindow
from control.records.times import time_text
from control.records.webhooks import DEAD, DELIVERED, PENDING, DeliveryAttempt, DeliveryRecord, WebhookRecord
from control.resources.billing.event_costs import Cost, EventCosts, shown_details
from policy.billing import EVENT_TYPE, public_event
from policy.limits.alerts import LIMIT_ALERT
from policy.prices import amount_of, amount_text
from policy.sealing import unseal

EVENTS_PER_MESSAGE = 100
METADATA_CHARS_PER_MESSAGE = 256 * 1024
_COSTS_PER_ITEM = 2
"""The number of events whose costs take as long as an item of long work."""
RETRY_FOR_MS = 3 * 86_400_000
FIRST_DELAY_MS = 5_000
LONGEST_DELAY_MS = 8 * 3_600_000
LOGGED_ATTEMPTS = 30


async def outbox(tx: WriteTx, rows: Sequence[NewEvent], receivers: Receivers) -> None:
    """Write the messages that carry these new events to their webhooks, in the transaction that writes the events."""
    by_workspace: dict[str, list[NewEvent]] = {}
    for row in rows:
        if row.workspace_id in receivers:
            by_workspace.setdefault(row.workspace_id, []).append(row)
    if not by_workspace:
        return
    now_ms = await database_ms(tx.conn)
    messages: list[DeliveryRecord] = []
    for workspace_id, theirs in by_workspace.items():
        has_details = any(receiver.include_details for receiver in receivers[workspace_id])
        costs = await _costs(tx, workspace_id, theirs) if has_details else {}
        for receiver in receivers[workspace_id]:
            for keys in _messages_of([row for row in theirs if receiver.is_told_of(row.group_path)]):
                amounts = [costs[key] for key in keys] if receiver.include_details else None
                messages.append(new_delivery(receiver.webhook_id, EVENT_TYPE, keys, now_ms, amounts))
    await webhook_rows.insert_deliveries(tx, messages)


async def _costs(tx: WriteTx, workspace_id: str, rows: Sequence[NewEvent]) -> Mapping[str, Cost | None]:
    """The cost of each event, by its key and the prices of now."""
    slugs = {row.model_slug for row in rows}
    times = [row.timestamp_ms for row in rows]
    costs = EventCosts(await price_rows.prices_between(tx.conn, workspace_id, slugs, min(times), max(times)))
    items = len(rows) // _COSTS_PER_ITEM
    return await beside(OPERATOR, items, lambda: {row.idempotency_key: costs.of(row) for row in rows})


async def queue_alerts(tx: WriteTx, workspace_id: str, group_path: str, alerts: Sequence[Alert]) -> None:
    """Write the messages of these alerts on a group to the webhooks that are told of them."""
    receivers = (await webhook_rows.enabled_webhooks(tx.conn, [workspace_id], LIMIT_ALERT)).get(workspace_id, ())
    now_ms = await database_ms(tx.conn)
    messages = [
        replace(new_delivery(receiver.webhook_id, alert.message_type, (), now_ms), body=_alert_body(alert, now_ms))
        for alert in alerts
        for receiver in receivers
        if receiver.is_told_of(group_path)
    ]
    await webhook_rows.insert_deliveries(tx, messages)


def _alert_body(alert: Alert, now_ms: int) -> str:
    figures = alert.figures
    message = {
        "type": alert.message_type,
        "idempotencyKey": alert.id,
        "timestamp": time_text(now_ms),
        "data": {
            "groupId": alert.group_id,
            "externalEntityId": alert.external_entity_id,
            "limit": _limit_members(figures),
            "used": amount_text(amount_of(figures.use)) if figures.currency else figures.use,
            "percent": alert.percent,
            "window": _window_members(figures.window),
        },
    }
    return orjson.dumps(message).decode()


def _window_members(window: LimitWindow) -> dict[str, str] | None:
    return None if window == ENDLESS else {"start": time_text(window.start_ms), "end": time_text(window.end_ms)}


def _limit_members(figures: LimitFigures) -> dict[str, Any]:
    """A limit as its alerts name it. One of money has no slug and no type; a balance has no unit, either."""
    limit = figures.limit
    if figures.currency:
        size: dict[str, Any] = {"amount": amount_text(amount_of(figures.threshold))}
    else:
        size = {"threshold": figures.threshold}
    return {
        "kind": limit.kind,
        "type": limit.type or None,
        "unit": limit.unit or None,
        **size,
        "currency": figures.currency or None,
        "slug": limit.slug or None,
    }


def _messages_of(rows: Iterable[NewEvent]) -> list[list[str]]:
    """The keys of the events of each message, in the order of the list of events."""
    messages: list[list[str]] = []
    size = METADATA_CHARS_PER_MESSAGE + 1
    for row in sorted(rows, key=attrgetter("timestamp_ms", "idempotency_key")):
        size += len(row.request_metadata or "")
        if not messages or size > METADATA_CHARS_PER_MESSAGE or len(messages[-1]) >= EVENTS_PER_MESSAGE:
            messages.append([])
            size = len(row.request_metadata or "")
        messages[-1].append(row.idempotency_key)
    return messages


def new_delivery(
    webhook_id: str, type: str, event_keys: Sequence[str], now_ms: int, costs: Sequence[Cost | None] | None = None
) -> DeliveryRecord:
    """A message with these events. `costs`: of each of them, for a message with details."""
    keys = orjson.dumps(list(event_keys)).decode()
    return DeliveryRecord(
        id=new_id("msg"),
        webhook_id=webhook_id,
        type=type,
        event_keys=keys,
        status=PENDING,
        attempts=0,
        attempt_log="[]",
        created_at_ms=now_ms,
        retry_since_ms=now_ms,
        next_attempt_at_ms=now_ms,
        lease=None,
        leased_until_ms=0,
        ended_at_ms=None,
        costs=None if costs is None else orjson.dumps(costs).decode(),
    )


def body_of(delivery: DeliveryRecord, events: Mapping[str, Any]) -> bytes:
    """The message: the same bytes on each attempt, whatever prices are by then."""
    if delivery.body is not None:
        return delivery.body.encode()
    keys = orjson.loads(delivery.event_keys)
    items = {key: _event(events[key]) for key in keys if key in events}
    if delivery.costs is not None:
        costs = dict(zip(keys, orjson.loads(delivery.costs), strict=True))
        items = {key: item | {"details": shown_details(events[key]), "cost": costs[key]} for key, item in items.items()}
    message = {
        "type": delivery.type,
        "timestamp": time_text(delivery.created_at_ms),
        "data": {"events": list(items.values())},
    }
    return orjson.dumps(message)


def _event(row: Any) -> dict[str, Any]:
    """The event as the list of events shows it, with the request's metadata."""
    metadata = orjson.Fragment(row.request_metadata) if row.request_metadata is not None else None
    return public_event(row, time_text(row.timestamp_ms)) | {"requestMetadata": metadata}


def signed_headers(message_id: str, body: bytes, now_ms: int, valid_secrets: Sequence[str]) -> dict[str, str]:
    """The headers of Standard Webhooks. One signature per valid secret: the receiver may know either."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    text = body.decode()
    signatures = [Webhook(secret).sign(message_id, moment, text) for secret in valid_secrets]
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(now_ms // 1000),
        "webhook-signature": " ".join(signatures),
    }


def valid_secrets(record: WebhookRecord, keys: Sequence[bytes], now_ms: int) -> list[str]:
    """The current secret, and the one before while the overlap lasts."""
    secrets = [unseal(keys, record.id, record.secret)]
    if record.previous_secret is not None and now_ms < (record.previous_until_ms or 0):
        secrets.append(unseal(keys, record.id, record.previous_secret))
    return secrets


def after_attempt(
    delivery: DeliveryRecord, attempt: DeliveryAttempt, chance: float, retry_for_ms: int = RETRY_FOR_MS
) -> dict[str, Any]:
    """The columns to write: delivered, due again later, or dead when its time is up. `chance` is from [0, 1)."""
    ended_ms = attempt.at_ms + attempt.duration_ms
    entry = [attempt.at_ms, attempt.duration_ms, attempt.status_code, attempt.error]
    log = [*orjson.loads(delivery.attempt_log), entry][-LOGGED_ATTEMPTS:]
    columns = {"attempt_log": orjson.dumps(log).decode()}
    if attempt.succeeded:
        return {**columns, "status": DELIVERED, "ended_at_ms": ended_ms}
    give_up_at_ms = delivery.retry_since_ms + retry_for_ms
    if ended_ms >= give_up_at_ms:
        return {**columns, "status": DEAD, "ended_at_ms": ended_ms}
    delay_ms = max(delay_ms_after(delivery.attempts, chance), min(attempt.retry_after_ms, LONGEST_DELAY_MS))
    return {**columns, "next_attempt_at_ms": min(ended_ms + delay_ms, give_up_at_ms)}


def delay_ms_after(attempts: int, chance: float) -> int:
    """Back off exponentially, with jitter over the upper half: deliveries that failed together are retried apart."""
    ceiling = min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** min(attempts - 1, 32))
    return int(ceiling * (0.5 + chance / 2))


def chance() -> float:
    return random.random()  # noqa: S311 (jitter, not secrecy)
