"""Webhooks as their owner manages them: create, change, rotate the secret, delete, redeliver, send a test message.

`webhook_messages.py` writes the messages; `webhook_sender.py` sends them.

See docs/reference/events-and-webhooks.md#webhooks.
"""

import base64
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from control.edges.sql import webhook_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.group_rows import find_group
from control.edges.sql.store import Store, WriteTx
from control.errors import (
    DeliveryInProgressError,
    DeliveryNotFoundError,
    GroupNotFoundError,
    InvalidFieldError,
    TooManyWebhooksError,
    WebhookNotFoundError,
)
from control.records.audit import Change
from control.records.ids import new_id, new_nonce
from control.records.webhooks import PENDING, DeliveryRecord, WebhookRecord
from control.resources.changes.ownership import OwnerChange, with_owner
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown import shown_delivery, shown_webhook
from control.resources.changes.tags import record_tag
from control.resources.endpoints import UpstreamUrls
from control.resources.webhook_messages import new_delivery
from policy.billing import EVENT_TYPE
from policy.hosts import HostRuleError
from policy.limits.alerts import LIMIT_ALERT
from policy.sealing import seal, unseal

TEST_TYPE = "TEST"
EVENT_TYPES = (EVENT_TYPE, LIMIT_ALERT)
"""The types that a webhook may ask for."""
MAX_WEBHOOKS = 20
"""The most webhooks of a workspace: every one is sent every event."""
SECRET_PREFIX = "whsec_"  # noqa: S105 (a prefix, no secret)
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A webhook as its owner described it."""

    url: str
    description: str | None = None
    owner: OwnerChange | None = None
    include_details: bool = False
    event_types: tuple[str, ...] = (EVENT_TYPE,)
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookChange:
    """The change that a PATCH makes; None: unchanged. `overlap_ms`: rotate the secret; both sign for this long.

    `description` counts only when `describes`.
    """

    url: str | None = None
    description: str | None = None
    describes: bool = False
    enabled: bool | None = None
    overlap_ms: int | None = None
    owner: OwnerChange | None = None
    include_details: bool | None = None
    event_types: tuple[str, ...] | None = None


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


async def create_webhook(
    store: Store, keys: Sequence[bytes], workspace_id: str, new: NewWebhook
) -> tuple[WebhookRecord, str]:
    """The webhook, and its secret, which is shown only once."""
    id = new_id("whk")
    secret = new_secret()

    async def work(tx: WriteTx) -> WebhookRecord:
        if await webhook_rows.count_webhooks(tx, workspace_id) >= MAX_WEBHOOKS:
            raise TooManyWebhooksError(MAX_WEBHOOKS)
        sealed = seal(keys, id, secret, new_nonce())
        if new.group_id is not None and await find_group(tx.conn, workspace_id, new.group_id) is None:
            raise GroupNotFoundError
        times = (tx.now_ms, tx.now_ms)
        unowned = WebhookRecord(id, workspace_id, new.url, new.description, True, sealed, None, None, *times)
        described = replace(
            unowned,
            include_details=new.include_details,
            event_types=_types_text(new.event_types),
            group_id=new.group_id,
        )
        record = with_owner(described, new.owner)
        await webhook_rows.insert_webhook(tx, record)
        tx.audit(workspace_id, Change("webhook.create", path_of(record), None, shown_webhook(record)))
        return record

    return await store.transact(work), secret


async def change_webhook(
    store: Store, keys: Sequence[bytes], workspace_id: str, webhook_id: str, change: WebhookChange
) -> tuple[WebhookRecord, str | None]:
    """The webhook as it is now, and its new secret when it was rotated."""
    secret = new_secret() if change.overlap_ms is not None else None

    async def work(tx: WriteTx) -> WebhookRecord:
        old = _existing(await webhook_rows.lock_webhook(tx, workspace_id, webhook_id))
        tx.condition.check(record_tag(old))
        record = replace(
            old,
            url=change.url or old.url,
            description=change.description if change.describes else old.description,
            enabled=old.enabled if change.enabled is None else change.enabled,
            include_details=old.include_details if change.include_details is None else change.include_details,
            event_types=old.event_types if change.event_types is None else _types_text(change.event_types),
            updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1),
        )
        if secret is not None and change.overlap_ms is not None:
            until_ms = await database_ms(tx.conn) + change.overlap_ms
            sealed = seal(keys, old.id, secret, new_nonce())
            record = replace(record, secret=sealed, previous_secret=old.secret, previous_until_ms=until_ms)
        record = with_owner(record, change.owner)
        await webhook_rows.update_webhook(tx, record)
        action = "webhook.update" if secret is None else "webhook.rotate_secret"
        tx.audit(workspace_id, Change(action, path_of(record), shown_webhook(old), shown_webhook(record)))
        return record

    return await store.transact(work), secret


async def remove_webhook(store: Store, workspace_id: str, webhook_id: str) -> WebhookRecord:
    async def work(tx: WriteTx) -> WebhookRecord:
        record = _existing(await webhook_rows.lock_webhook(tx, workspace_id, webhook_id))
        tx.condition.check(record_tag(record))
        await webhook_rows.delete_webhook(tx, webhook_id)
        tx.audit(workspace_id, Change("webhook.delete", path_of(record), shown_webhook(record), None))
        return record

    return await store.transact(work)


async def read_webhook(store: Store, workspace_id: str, webhook_id: str) -> WebhookRecord:
    async with store.read() as conn:
        return _existing(await webhook_rows.find_webhook(conn, workspace_id, webhook_id))


async def read_webhooks(store: Store, workspace_id: str, after: str | None, limit: int) -> Sequence[WebhookRecord]:
    """Return at most `limit` webhooks, oldest first, behind the id `after`."""
    async with store.read() as conn:
        return await webhook_rows.list_webhooks(conn, workspace_id, after, limit)


async def read_deliveries(
    store: Store, webhook_id: str, status: str | None, before: str | None, limit: int
) -> Sequence[DeliveryRecord]:
    """Return at most `limit` deliveries of a webhook, newest first, behind the id `before`."""
    async with store.read() as conn:
        return await webhook_rows.list_deliveries(conn, webhook_id, status, before, limit)


async def check_webhook_url(url: str, urls: UpstreamUrls) -> None:
    """Refuse a URL that breaks the rules of `base_url`. Call it before the transaction: it resolves names."""
    try:
        await urls.check_base_url(url)
    except HostRuleError as error:
        raise InvalidFieldError("url", str(error).replace("base_url", "url")) from None


async def reencrypt_webhooks(tx: WriteTx, keys: Sequence[bytes]) -> Counter[str]:
    """Seal the secrets of all webhooks again under `keys[0]`; how many webhooks each workspace has."""

    def resealed(record: WebhookRecord, sealed: str) -> str:
        return seal(keys, record.id, unseal(keys, record.id, sealed), new_nonce())

    records = await webhook_rows.lock_all_webhooks(tx)
    for record in records:
        previous = None if record.previous_secret is None else resealed(record, record.previous_secret)
        changed = replace(record, secret=resealed(record, record.secret), previous_secret=previous)
        await webhook_rows.update_webhook(tx, changed)
    return Counter(record.workspace_id for record in records)


async def redeliver(store: Store, webhook: WebhookRecord, delivery_id: str) -> DeliveryRecord:
    """Send the message again at once, with retries for another three days; refused while an attempt is in progress."""

    async def work(tx: WriteTx) -> DeliveryRecord:
        delivery = await webhook_rows.lock_delivery(tx, webhook.id, delivery_id)
        if delivery is None:
            raise DeliveryNotFoundError
        now_ms = await database_ms(tx.conn)
        if delivery.leased_until_ms > now_ms:
            raise DeliveryInProgressError
        changed = replace(
            delivery, status=PENDING, retry_since_ms=now_ms, next_attempt_at_ms=now_ms, ended_at_ms=None, lease=None
        )
        names = ("status", "retry_since_ms", "next_attempt_at_ms", "ended_at_ms", "lease")
        await webhook_rows.update_delivery(tx, delivery_id, {name: getattr(changed, name) for name in names})
        sides = (shown_delivery(delivery), shown_delivery(changed))
        tx.audit(webhook.workspace_id, Change("webhook.redeliver", path_of(delivery), *sides))
        return changed

    return await store.transact(work)


async def send_test(store: Store, webhook: WebhookRecord) -> DeliveryRecord:
    """Send a message without events; it is delivered and logged like any other."""

    async def work(tx: WriteTx) -> DeliveryRecord:
        delivery = new_delivery(webhook.id, TEST_TYPE, (), await database_ms(tx.conn))
        await webhook_rows.insert_deliveries(tx, [delivery])
        fields = shown_delivery(delivery)
        tx.audit(webhook.workspace_id, Change("webhook.test", path_of(delivery), None, fields))
        return delivery

    return await store.transact(work)


def _types_text(event_types: Sequence[str]) -> str:
    """Each type once, in one order."""
    return orjson.dumps([type for type in EVENT_TYPES if type in event_types]).decode()


def _existing(record: WebhookRecord | None) -> WebhookRecord:
    if record is None:
        raise WebhookNotFoundError
    return record
