"""Webhooks as their owner sees them: made, changed, rotated, deleted; a message sent again or for a test.

What the messages say is in `webhook_messages.py`, sending them is `edges/webhooks/sender.py`'s.

See docs/reference/events-and-webhooks.md#webhooks.
"""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.api.protocol.errors import conflict, not_found
from control.edges.sql import webhook_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.webhook_rows import PENDING, DeliveryRecord, WebhookRecord
from control.resources.ids import new_id, new_nonce
from control.resources.webhook_messages import new_delivery
from policy.sealing import seal, unseal

TEST_TYPE = "TEST"
MAX_WEBHOOKS = 20
"""Per workspace: every event is told to each."""
SECRET_PREFIX = "whsec_"  # noqa: S105 (what secrets begin with)
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class WebhookChange:
    """What PATCH may change; None: as it is. `overlap_ms`: rotate, and let the old secret sign as well for so long."""

    url: str | None = None
    description: str | None = None
    describes: bool = False
    enabled: bool | None = None
    overlap_ms: int | None = None


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


async def create_webhook(
    store: Store, keys: Sequence[bytes], workspace_id: str, url: str, description: str | None
) -> tuple[WebhookRecord, str]:
    """The webhook, and its secret, which is not shown again."""
    id, secret = new_id("whk"), new_secret()

    async def work(tx: WriteTx) -> WebhookRecord:
        if await webhook_rows.count_webhooks(tx, workspace_id) >= MAX_WEBHOOKS:
            raise conflict(f"a workspace has at most {MAX_WEBHOOKS} webhooks")
        sealed = seal(keys, id, secret, new_nonce())
        times = (tx.now_ms, tx.now_ms)
        record = WebhookRecord(id, workspace_id, url, description, True, sealed, None, None, *times)
        await webhook_rows.insert_webhook(tx, record)
        return record

    return await store.transact(work), secret


async def change_webhook(
    store: Store, keys: Sequence[bytes], found: tuple[str, str], change: WebhookChange
) -> tuple[WebhookRecord, str | None]:
    """`found`: workspace and webhook. The webhook as it is now, and its new secret when it was rotated."""
    secret = new_secret() if change.overlap_ms is not None else None

    async def work(tx: WriteTx) -> WebhookRecord:
        old = await webhook_rows.lock_webhook(tx, *found)
        if old is None:
            raise not_found("webhook")
        record = replace(
            old,
            url=change.url or old.url,
            description=change.description if change.describes else old.description,
            enabled=old.enabled if change.enabled is None else change.enabled,
            updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1),
        )
        if secret is not None and change.overlap_ms is not None:
            until_ms = await database_ms(tx.conn) + change.overlap_ms
            sealed = seal(keys, old.id, secret, new_nonce())
            record = replace(record, secret=sealed, previous_secret=old.secret, previous_until_ms=until_ms)
        values = {name: getattr(record, name) for name in WebhookRecord.__dataclass_fields__}
        await webhook_rows.update_webhook(tx, old.id, values)
        return record

    return await store.transact(work), secret


async def delete_webhook(store: Store, workspace_id: str, webhook_id: str) -> None:
    async def work(tx: WriteTx) -> None:
        if await webhook_rows.lock_webhook(tx, workspace_id, webhook_id) is None:
            raise not_found("webhook")
        await webhook_rows.delete_webhook(tx, webhook_id)

    await store.transact(work)


async def reencrypt(tx: WriteTx, keys: Sequence[bytes]) -> None:
    """Seal the secrets of all webhooks anew under `keys[0]`."""
    for record in await webhook_rows.lock_all(tx):
        found = {"secret": record.secret, "previous_secret": record.previous_secret}
        values = {
            name: seal(keys, record.id, unseal(keys, record.id, sealed), new_nonce())
            for name, sealed in found.items()
            if sealed is not None
        }
        await webhook_rows.update_webhook(tx, record.id, values)


async def redeliver(store: Store, webhook_id: str, delivery_id: str) -> DeliveryRecord:
    """Send it again, at once and for another three days if need be; 409 while an attempt is under way."""

    async def work(tx: WriteTx) -> DeliveryRecord:
        delivery = await webhook_rows.lock_delivery(tx, webhook_id, delivery_id)
        if delivery is None:
            raise not_found("delivery")
        now_ms = await database_ms(tx.conn)
        if delivery.leased_until_ms > now_ms:
            raise conflict("the delivery is being attempted right now")
        changed = replace(
            delivery, status=PENDING, retry_since_ms=now_ms, next_attempt_at_ms=now_ms, ended_at_ms=None, lease=None
        )
        names = ("status", "retry_since_ms", "next_attempt_at_ms", "ended_at_ms", "lease")
        await webhook_rows.update_delivery(tx, delivery_id, {name: getattr(changed, name) for name in names})
        return changed

    return await store.transact(work)


async def send_test(store: Store, webhook_id: str) -> DeliveryRecord:
    """A message without events, delivered and logged like any other."""

    async def work(tx: WriteTx) -> DeliveryRecord:
        delivery = new_delivery(webhook_id, TEST_TYPE, (), await database_ms(tx.conn))
        await webhook_rows.insert_deliveries(tx, [delivery])
        return delivery

    return await store.transact(work)
