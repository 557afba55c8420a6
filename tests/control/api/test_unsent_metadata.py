"""Request metadata is deleted once no webhook message carries it, on both databases.

See docs/reference/events-and-webhooks.md#the-event.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import func, select, update

from control import app
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.tables import events, webhook_deliveries
from control.errors import DatabaseUnavailableError
from control.records.webhooks import DELIVERED
from control.resources.billing.unsent_metadata import UnsentMetadata
from control.resources.webhook_messages import outbox
from control.retention import DAY_MS, RetentionDays, delete_old_records
from tests.control.billing import HOLDBACK_S, clock_ms, event, ingest_and_reader
from tests.control.plane import ControlPlane, running_plane

PATH = "/v1/gateway/webhooks"
URL = "https://hooks.example.com/tollgate"
EARLIER_S = 30 * 86_400.0
"""The holdback of a control that stores events of the last two weeks."""
METADATA = '{"told":"to nobody"}'


def deleter(store: Store, events_at_once: int = 500) -> UnsentMetadata:
    return UnsentMetadata(store, ingest_and_reader(store, HOLDBACK_S)[1], events_at_once)


async def store_as_before(plane: ControlPlane, workspace_id: str, numbers: Sequence[int], days_ago: int) -> None:
    """Store events with metadata, as versions did that stored it for everybody."""
    ended_ms = await clock_ms(plane.store) - days_ago * DAY_MS
    ingest, _ = ingest_and_reader(plane.store, EARLIER_S, outbox=outbox)
    await ingest.commit([event(n, ended_ms + n, workspace_id=workspace_id) for n in numbers])
    async with plane.store.write() as tx:
        theirs = events.c.request_id.in_([f"req-{n}" for n in numbers])
        await tx.conn.execute(update(events).where(theirs).values(request_metadata=METADATA))
        created = webhook_deliveries.c.created_at_ms > ended_ms + DAY_MS
        await tx.conn.execute(update(webhook_deliveries).where(created).values(created_at_ms=ended_ms))


class StoppedStore(Store):
    """A store whose database is away after some transactions."""

    def __init__(self, store: Store, after: int) -> None:
        super().__init__(store.engine)
        self._budget = after

    async def transact(self, work: Callable[[WriteTx], Awaitable[Any]]) -> Any:
        if not self._budget:
            raise DatabaseUnavailableError("gone")
        self._budget -= 1
        return await super().transact(work)


async def with_metadata(store: Store) -> list[int]:
    query = select(events.c.request_id).where(events.c.request_metadata.is_not(None))
    async with store.read() as conn:
        return sorted(int(id.removeprefix("req-")) for id in (await conn.execute(query)).scalars())


async def forget_oldest_message(store: Store) -> None:
    """Delete it as control does a week after its delivery."""
    oldest = select(func.min(webhook_deliveries.c.created_at_ms)).scalar_subquery()
    async with store.write() as tx:
        ended = {"status": DELIVERED, "ended_at_ms": 1}
        await tx.conn.execute(
            update(webhook_deliveries).where(webhook_deliveries.c.created_at_ms == oldest).values(**ended)
        )
    await delete_old_records(store, RetentionDays(events=92, sums=400, audit=400))


async def test_stored_metadata_of_a_workspace_without_webhooks_is_deleted_in_portions(plane: ControlPlane) -> None:
    await store_as_before(plane, plane.workspace_id, range(25), days_ago=3)
    await store_as_before(plane, plane.workspace_id, range(25, 40), days_ago=1)
    assert await deleter(plane.store, events_at_once=10).delete() == 40
    assert await with_metadata(plane.store) == []
    async with plane.store.read() as conn:
        assert len((await conn.execute(select(events.c.idempotency_key))).all()) == 40


async def test_metadata_stays_while_a_stored_message_may_be_sent_again(plane: ControlPlane) -> None:
    other = (await plane.another_workspace())["workspace_id"]
    (await plane.post(PATH, {"url": URL})).ok()
    await store_as_before(plane, plane.workspace_id, range(3), days_ago=10)
    await store_as_before(plane, plane.workspace_id, range(3, 6), days_ago=5)
    await store_as_before(plane, other, range(6, 9), days_ago=5)
    await deleter(plane.store).delete()
    assert await with_metadata(plane.store) == [0, 1, 2, 3, 4, 5]
    await forget_oldest_message(plane.store)
    await deleter(plane.store).delete()
    assert await with_metadata(plane.store) == [3, 4, 5]
    await forget_oldest_message(plane.store)
    await deleter(plane.store).delete()
    assert await with_metadata(plane.store) == []


async def test_deletion_goes_on_where_it_was_stopped(plane: ControlPlane) -> None:
    await store_as_before(plane, plane.workspace_id, range(30), days_ago=3)
    portions = StoppedStore(plane.store, after=2)
    with pytest.raises(DatabaseUnavailableError):
        await deleter(portions, events_at_once=10).delete()
    remaining_events = await with_metadata(plane.store)
    assert 0 < len(remaining_events) < 30
    assert await deleter(plane.store, events_at_once=10).delete() == len(remaining_events)
    assert await with_metadata(plane.store) == []


async def test_two_control_processes_delete_each_metadata_once(plane: ControlPlane) -> None:
    await store_as_before(plane, plane.workspace_id, range(30), days_ago=3)
    both = await asyncio.gather(*(deleter(plane.store, events_at_once=5).delete() for _ in range(2)))
    assert sum(both) == 30
    assert await with_metadata(plane.store) == []


async def test_metadata_of_events_within_the_holdback_stays(plane: ControlPlane) -> None:
    """The transaction that stores such events and their webhook messages may not be committed yet."""
    await store_as_before(plane, plane.workspace_id, range(3), days_ago=0)
    assert await deleter(plane.store).delete() == 0
    assert await with_metadata(plane.store) == [0, 1, 2]


async def test_the_regular_clean_up_deletes_it(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_plane(database_url) as plane:
        await store_as_before(plane, plane.workspace_id, range(3), days_ago=3)
    monkeypatch.setattr(app, "_FIRST_HOUSEKEEPING_S", 0.01)
    async with running_plane(database_url, prefix="other") as plane, asyncio.timeout(20):
        while await with_metadata(plane.store):
            await asyncio.sleep(0.01)
