"""Sends the messages in the outbox. Several control processes may share the work; each message is leased to one.

Each webhook has its own lane, so a receiver that hangs delays no other. When a process dies, its leases expire and
another process sends its messages: at least once, with the same id.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from control.edges.sql import webhook_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, UncancelledWork, WriteTx
from control.edges.sql.webhook_rows import Claim
from control.errors import DatabaseUnavailableError
from control.records.webhooks import DEAD, DELIVERED, DeliveryAttempt, DeliveryRecord, WebhookRecord
from control.resources.webhook_messages import (
    RETRY_FOR_MS,
    after_attempt,
    body_of,
    chance,
    signed_headers,
    valid_secrets,
)
from runtime.log_lines import OutageLog

log = logging.getLogger(__name__)


class ReceiverClient(Protocol):
    """Posts one message; never raises."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryAttempt: ...


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """`concurrency`: messages in flight per webhook, over all processes. `lease_ms` exceeds the longest attempt."""

    concurrency: int = 4
    poll_interval_s: float = 0.5
    lease_ms: int = 45_000
    retry_for_ms: int = RETRY_FOR_MS


@dataclass(frozen=True, slots=True)
class _Message:
    webhook: WebhookRecord
    delivery: DeliveryRecord
    body: bytes
    claimed_at_ms: int


class WebhookSender:
    """One process's sender. Calls `count` with each outcome: `delivered`, `failed` or `dead`."""

    def __init__(
        self,
        store: Store,
        client: ReceiverClient,
        secret_keys: Sequence[bytes],
        count: Callable[[str], None],
        options: SenderOptions | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._keys = secret_keys
        self._count = count
        self._options = options or SenderOptions()
        self._outage = OutageLog(log)
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._transactions = UncancelledWork()

    async def run(self) -> None:
        """Run until cancelled. Messages in flight are left to their leases."""
        try:
            while True:
                try:
                    await self._open_lanes()
                    self._outage.ends("Webhooks resume: the database is reachable again.")
                except DatabaseUnavailableError as error:
                    self._outage.begins(
                        f"Webhooks paused: database unreachable ({error.reason}). Deliveries resume when it is back."
                    )
                except Exception:  # a bug must not stop deliveries to every webhook
                    log.exception(
                        "Webhook sender failed unexpectedly; it continues with the next poll. Please report this."
                    )
                await asyncio.sleep(self._options.poll_interval_s)
        finally:
            for lane in self._lanes.values():
                lane.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)
            await self._transactions.finish()

    async def _open_lanes(self) -> None:
        """Open a lane for each webhook that has a due message and no lane in this process."""
        for webhook_id in await self._transactions.run(self._due()):
            if webhook_id not in self._lanes:
                lane = asyncio.create_task(self._lane(webhook_id), name=f"webhook {webhook_id}")
                self._lanes[webhook_id] = lane
                lane.add_done_callback(lambda task, id=webhook_id: self._close_lane(id, task))  # type: ignore[misc]  # a default binds the loop's value

    async def _due(self) -> list[str]:
        async with self._store.read() as conn:
            return await webhook_rows.due_webhooks(conn)

    def _close_lane(self, webhook_id: str, lane: asyncio.Task[None]) -> None:
        del self._lanes[webhook_id]
        if not lane.cancelled() and (error := lane.exception()) is not None:
            if isinstance(error, DatabaseUnavailableError):
                log.info(
                    "Webhook %s paused: database unreachable (%s). Deliveries resume when it is back.",
                    webhook_id,
                    error.reason,
                )
            else:
                log.error(
                    "Webhook %s paused by a bug (%s); retrying. Please report this.",
                    webhook_id,
                    type(error).__name__,
                    exc_info=error,
                )

    async def _lane(self, webhook_id: str) -> None:
        """Send to one webhook until nothing is due. As one message ends, the next one begins."""
        sending: set[asyncio.Task[None]] = set()
        try:
            while True:
                if len(sending) < self._options.concurrency:
                    for message in await self._claim(webhook_id):
                        sending.add(asyncio.create_task(self._send(message)))
                if not sending:
                    return
                # The timeout: messages queued since must not wait for one that hangs.
                ended_tasks, sending = await asyncio.wait(
                    sending, timeout=self._options.poll_interval_s, return_when=asyncio.FIRST_COMPLETED
                )
                for one in ended_tasks:
                    one.result()
        finally:
            for one in sending:
                one.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _claim(self, webhook_id: str) -> list[_Message]:
        claim = Claim(webhook_id, secrets.token_hex(8), self._options.concurrency, self._options.lease_ms)

        async def work(tx: WriteTx) -> list[_Message]:
            now_ms = await database_ms(tx.conn)
            claimed = await webhook_rows.claim_deliveries(tx, claim, now_ms)
            if claimed is None:
                return []
            webhook, deliveries = claimed
            events = await webhook_rows.load_delivery_events(tx.conn, deliveries)
            return [_Message(webhook, one, body_of(one, events), now_ms) for one in deliveries]

        return await self._transactions.run(self._store.transact(work))

    async def _send(self, message: _Message) -> None:
        webhook = message.webhook
        delivery = message.delivery
        signing = valid_secrets(webhook, self._keys, message.claimed_at_ms)
        headers = signed_headers(delivery.id, message.body, message.claimed_at_ms, signing)
        attempt = await self._client.post(webhook.url, headers, message.body)
        values = after_attempt(delivery, attempt, chance(), self._options.retry_for_ms)

        async def work(tx: WriteTx) -> bool:
            return await webhook_rows.finish_attempt(tx, delivery, values)

        with suppress(DatabaseUnavailableError):  # the lease expires and the message is sent again
            if await self._transactions.run(self._store.transact(work)):
                self._count(_outcome(values))
        if values.get("status") == DEAD:
            log.error(
                "Webhook %s: gave up message %s after %d attempts."
                " Redeliver it through the API once the receiver works.",
                webhook.id,
                delivery.id,
                delivery.attempts,
            )


def _outcome(values: Mapping[str, Any]) -> str:
    return {DELIVERED: "delivered", DEAD: "dead"}.get(values.get("status", ""), "failed")
