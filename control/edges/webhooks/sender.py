"""Sends what the outbox holds. Any number of control processes share the work: each message is leased to one of them.

Each webhook has a lane of its own, so a receiver that hangs delays no other. A process that dies leaves leases that run
out, and its messages are sent by another: at least once, with the same id.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from control.edges.sql import webhook_rows
from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.webhook_rows import Claim
from control.edges.telemetry.log_lines import OutageLog
from control.resources.errors import DatabaseUnavailableError
from control.resources.records import DEAD, DELIVERED, DeliveryRecord, WebhookRecord
from control.resources.webhook_messages import (
    RETRY_FOR_MS,
    Attempt,
    after_attempt,
    body_of,
    chance,
    signed_headers,
    valid_secrets,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class Client(Protocol):
    """Posts one message; never raises."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt: ...


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """`concurrency`: messages under way at once per webhook, over all processes. A lease outlives every attempt."""

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
    """One process's part of the sending. `count`: told each outcome (`delivered`, `failed`, `dead`)."""

    def __init__(
        self,
        store: Store,
        client: Client,
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
        self._at_the_database: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Until cancelled. What is under way then is left to its lease."""
        try:
            while True:
                try:
                    await self._look()
                    self._outage.ends("Webhooks resume: the database is back")
                except DatabaseUnavailableError as error:
                    self._outage.begins(f"Webhooks paused: database unreachable ({error.reason}). They resume with it")
                except Exception:  # a bug must not end the sending of everything for everybody
                    log.exception("the sender of webhooks stumbled")
                await asyncio.sleep(self._options.poll_interval_s)
        finally:
            for lane in self._lanes.values():
                lane.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)
            await asyncio.gather(*self._at_the_database, return_exceptions=True)

    async def _undisturbed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a transaction that is not torn when we are cancelled: SQLite might hold its lock on."""
        task = asyncio.create_task(work)
        self._at_the_database.add(task)
        task.add_done_callback(self._at_the_database.discard)
        return await asyncio.shield(task)

    async def _look(self) -> None:
        """Open a lane for each webhook that has something due and none here yet."""
        for webhook_id in await self._undisturbed(self._due()):
            if webhook_id not in self._lanes:
                lane = asyncio.create_task(self._lane(webhook_id), name=f"webhook {webhook_id}")
                self._lanes[webhook_id] = lane
                lane.add_done_callback(lambda done, id=webhook_id: self._close_lane(id, done))  # type: ignore[misc]  # a default binds the loop's value

    async def _due(self) -> list[str]:
        async with self._store.read() as conn:
            return await webhook_rows.due_webhooks(conn, await database_ms(conn))

    def _close_lane(self, webhook_id: str, lane: asyncio.Task[None]) -> None:
        del self._lanes[webhook_id]
        if not lane.cancelled() and (error := lane.exception()) is not None:
            if isinstance(error, DatabaseUnavailableError):
                log.info("webhook %s paused: database unreachable (%s)", webhook_id, error.reason)
            else:
                log.error("webhook %s waits: %s", webhook_id, type(error).__name__, exc_info=error)

    async def _lane(self, webhook_id: str) -> None:
        """Send to one webhook until nothing more is due; as one message ends the next begins."""
        sending: set[asyncio.Task[None]] = set()
        try:
            while True:
                if len(sending) < self._options.concurrency:
                    for message in await self._claim(webhook_id):
                        sending.add(asyncio.create_task(self._send(message)))
                if not sending:
                    return
                # The timeout: a message that hangs must not hold up those that came after it was claimed.
                done, sending = await asyncio.wait(
                    sending, timeout=self._options.poll_interval_s, return_when=asyncio.FIRST_COMPLETED
                )
                for one in done:
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
            events = await webhook_rows.events_of(tx.conn, deliveries)
            return [_Message(webhook, one, body_of(one, events), now_ms) for one in deliveries]

        return await self._undisturbed(self._store.transact(work))

    async def _send(self, message: _Message) -> None:
        webhook, delivery = message.webhook, message.delivery
        signing = valid_secrets(webhook, self._keys, message.claimed_at_ms)
        headers = signed_headers(delivery.id, message.body, message.claimed_at_ms, signing)
        attempt = await self._client.post(webhook.url, headers, message.body)
        values = after_attempt(delivery, attempt, chance(), self._options.retry_for_ms)

        async def work(tx: WriteTx) -> bool:
            return await webhook_rows.finish_attempt(tx, delivery, values)

        with suppress(DatabaseUnavailableError):  # then the lease runs out and it is sent again
            if await self._undisturbed(self._store.transact(work)):
                self._count(_outcome(values))
        if values.get("status") == DEAD:
            log.error(
                "webhook %s: message %s is given up after %d attempts", webhook.id, delivery.id, delivery.attempts
            )


def _outcome(values: Mapping[str, Any]) -> str:
    return {DELIVERED: "delivered", DEAD: "dead"}.get(values.get("status", ""), "failed")
