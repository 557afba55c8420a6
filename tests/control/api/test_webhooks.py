"""Webhooks as a customer uses them, and as several control processes deliver them, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Select, select, text, update
from standardwebhooks import Webhook

from control.edges.sql import webhook_rows
from control.edges.sql.events.clock import database_clock, database_ms
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.tables import webhook_deliveries
from control.edges.sql.tables import webhooks as webhooks_table
from control.edges.sql.webhook_rows import Claim
from control.records.events import EventWindow
from control.records.webhooks import DeliveryAttempt, DeliveryRecord
from control.resources.sealing.resealing import reencrypt_all
from control.resources.webhook_messages import RETRY_FOR_MS, new_delivery, outbox
from control.resources.webhook_sender import SenderOptions, WebhookSender
from control.retention import DAY_MS, RetentionDays, delete_old_records
from policy.sealing import unseal
from tests.control.api.description.deliveries import check_delivery, name_of
from tests.control.billing import clock_ms, event, event_key, ingest_and_reader
from tests.control.plane import SECRET_KEYS, ControlPlane, running_plane
from tests.waiting import eventually

PATH = "/v1/gateway/webhooks"
URL = "https://hooks.example.com/tollgate"
NAMES = ("hooks", "b", "c", "off", "dead")
QUIET: dict[str, Any] = {
    "webhook_poll_interval_s": 1e6,  # control's own sender never polls
    "egress_allow": ",".join(f"{name}.example.com=127.0.0.1:9" for name in NAMES),  # no name is resolved
}
EAGER = SenderOptions(poll_interval_s=0.01)


@dataclass
class Receivers:
    """Customers' receivers, by URL. `answer` gives the status of each call; a URL in `hang` never answers."""

    calls: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[str], int | None] = lambda url: 200
    hang: set[str] = field(default_factory=set)
    under_way: dict[str, int] = field(default_factory=dict)
    most_under_way: dict[str, int] = field(default_factory=dict)
    hold_s: float = 0.0

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryAttempt:
        self.calls.append((url, headers, body))
        message = orjson.loads(body)
        check_delivery(name_of(message), message, headers)
        self.under_way[url] = self.under_way.get(url, 0) + 1
        self.most_under_way[url] = max(self.most_under_way.get(url, 0), self.under_way[url])
        try:
            if url in self.hang:
                await asyncio.Event().wait()
            await asyncio.sleep(self.hold_s)
            status = self.answer(url)
        finally:
            self.under_way[url] -= 1
        return DeliveryAttempt(0, 1, status, None if status == 200 else "no")

    def keys(self, url: str = URL) -> list[str]:
        """The keys of all events sent to `url`, once for each time they were sent."""
        bodies = [orjson.loads(body) for address, _, body in self.calls if address == url]
        return sorted(event["idempotencyKey"] for body in bodies for event in body["data"]["events"])


@asynccontextmanager
async def sending(store: Store, *receivers: Receivers, options: SenderOptions = EAGER) -> AsyncIterator[list[str]]:
    """Run one sender per receiver, as several control processes would. Yields the counted results."""
    counted: list[str] = []
    senders = [WebhookSender(store, one, SECRET_KEYS, counted.append, options) for one in receivers]
    tasks = [asyncio.create_task(sender.run()) for sender in senders]
    try:
        yield counted
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(database_url, **QUIET) as control_plane:
        yield control_plane


@pytest.fixture
async def sqlite_plane(sqlite_url: str) -> AsyncIterator[ControlPlane]:
    async with running_plane(sqlite_url, **QUIET) as control_plane:
        yield control_plane


async def create_webhook(plane: ControlPlane, url: str = URL) -> Any:
    return (await plane.post(PATH, {"url": url})).ok()


async def ingest_events(plane: ControlPlane, *numbers: int, **more: Any) -> None:
    ingest, _ = ingest_and_reader(plane.store, outbox=outbox)
    now_ms = await clock_ms(plane.store)
    await ingest.commit([event(n, now_ms, workspace_id=plane.workspace_id, **more) for n in numbers])


async def make_due(store: Store) -> None:
    """Make every delivery that is not leased due now."""
    async with store.write() as tx:
        statement = update(webhook_deliveries).where(webhook_deliveries.c.lease.is_(None))
        await tx.conn.execute(statement.values(next_attempt_at_ms=0))


async def deliveries(plane: ControlPlane, webhook: Any, **params: Any) -> list[Any]:
    return (await plane.get(f"{PATH}/{webhook['id']}/deliveries", params=params)).ok()["items"]  # type: ignore[no-any-return]  # JSON


# --- the resource ----------------------------------------------------------------------------------------------------


async def test_a_webhook_is_created_read_changed_and_deleted(plane: ControlPlane) -> None:
    webhook = (await plane.post(PATH, {"url": URL, "description": "ledger"})).ok()
    assert webhook["secret"].startswith("whsec_")
    state = (await plane.get(f"{PATH}/{webhook['id']}")).ok()
    assert state == {**webhook, "secret": None}
    assert (state["url"], state["description"], state["enabled"]) == (URL, "ledger", True)
    assert (await plane.get(PATH)).ok()["items"] == [state]
    changed = (await plane.patch(f"{PATH}/{webhook['id']}", {"enabled": False, "description": None})).ok()
    assert (changed["enabled"], changed["description"], changed["secret"]) == (False, None, None)
    assert changed["updated_at"] > state["updated_at"]
    assert (await plane.delete(f"{PATH}/{webhook['id']}")).ok() == {"id": webhook["id"], "url": URL, "deleted": True}
    (await plane.get(f"{PATH}/{webhook['id']}")).refused(404)
    (await plane.delete(f"{PATH}/{webhook['id']}")).refused(404)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://user:pw@hooks.example.com/",
        "https://hooks.example.com:8443/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://2130706433/",
        "https://localhost/",
        "https://db.internal/",
        "ftp://hooks.example.com/",
        "",
    ],
)
async def test_a_webhook_url_that_breaks_the_base_url_rules_is_refused(sqlite_plane: ControlPlane, url: str) -> None:
    refused = (await sqlite_plane.post(PATH, {"url": url})).refused(400)
    assert "base_url" not in orjson.dumps(refused).decode()
    webhook = await create_webhook(sqlite_plane)
    (await sqlite_plane.patch(f"{PATH}/{webhook['id']}", {"url": url})).refused(400)


async def test_a_url_that_later_rules_forbid_is_not_called(tmp_path: Path) -> None:
    """The operator's current settings apply, not those of the time when the URL was given."""
    url = f"sqlite+aiosqlite:///{tmp_path}/control.db"
    async with running_plane(url, **QUIET) as before:
        webhook = await create_webhook(before)
        (await before.post(f"{PATH}/{webhook['id']}/test")).ok()
    eager = {"webhook_poll_interval_s": 0.01, "platform_hosts": "hooks.example.com"}
    async with running_plane(url, "later", **eager) as plane, asyncio.timeout(20):
        plane = replace(plane, key=before.key)
        while not (attempts := (await deliveries(plane, webhook))[0]["attempts"]):
            await asyncio.sleep(0.05)
        assert attempts[0]["error"] == "the URL may not be called"
        assert attempts[0]["status_code"] is None


async def test_a_disabled_webhook_keeps_its_pending_messages(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    one = f"{PATH}/{webhook['id']}"
    await ingest_events(sqlite_plane, 1)
    (await sqlite_plane.patch(one, {"enabled": False})).ok()
    await ingest_events(sqlite_plane, 2)
    receivers = Receivers()
    async with sending(sqlite_plane.store, receivers) as counted:
        await asyncio.sleep(0.1)
        assert receivers.calls == []
        (await sqlite_plane.patch(one, {"enabled": True})).ok()
        await eventually(lambda: counted == ["delivered"])
    assert receivers.keys() == [event_key(1)]


NO_CHANGES: list[dict[str, Any]] = [
    {},
    {"secret_overlap_seconds": 5},
    {"url": None},
    {"enabled": None},
    {"enabled": 1},
    {"rotate_secret": False},
    {"x": 1},
]


@pytest.mark.parametrize("body", NO_CHANGES)
async def test_an_empty_webhook_change_is_400(sqlite_plane: ControlPlane, body: Any) -> None:
    webhook = await create_webhook(sqlite_plane)
    (await sqlite_plane.patch(f"{PATH}/{webhook['id']}", body)).refused(400)


async def test_a_null_member_of_a_change_counts_as_absent(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    one = f"{PATH}/{webhook['id']}"
    nulls = dict.fromkeys(["url", "enabled", "rotate_secret", "secret_overlap_seconds"])
    state = (await sqlite_plane.patch(one, nulls | {"enabled": False})).ok()
    assert (state["url"], state["description"], state["enabled"], state["secret"]) == (
        *(webhook["url"], webhook["description"]),
        *(False, None),
    )
    rotated = (await sqlite_plane.patch(one, nulls | {"rotate_secret": True})).ok()
    assert (rotated["enabled"], bool(rotated["secret"])) == (False, True)
    assert (await sqlite_plane.patch(one, nulls | {"description": None})).ok()["description"] is None
    (await sqlite_plane.patch(one, nulls)).refused(400)


async def test_webhooks_of_other_workspaces_are_404(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    await ingest_events(sqlite_plane, 1)
    (delivery,) = await deliveries(sqlite_plane, webhook)
    other = (await sqlite_plane.another_workspace())["api_key"]
    assert (await sqlite_plane.get(PATH, key=other)).ok()["items"] == []
    one = f"{PATH}/{webhook['id']}"
    (await sqlite_plane.get(one, key=other)).refused(404)
    (await sqlite_plane.patch(one, {"enabled": False}, key=other)).refused(404)
    (await sqlite_plane.get(f"{one}/deliveries", key=other)).refused(404)
    (await sqlite_plane.post(f"{one}/test", key=other)).refused(404)
    (await sqlite_plane.post(f"{one}/deliveries/{delivery['id']}/redeliver", key=other)).refused(404)
    (await sqlite_plane.delete(one, key=other)).refused(404)
    second = await create_webhook(sqlite_plane)
    (await sqlite_plane.post(f"{PATH}/{second['id']}/deliveries/{delivery['id']}/redeliver")).refused(404)


async def test_a_workspace_has_a_bounded_number_of_webhooks(sqlite_plane: ControlPlane) -> None:
    for _ in range(20):
        await create_webhook(sqlite_plane)
    (await sqlite_plane.post(PATH, {"url": URL})).refused(409)


async def test_webhook_secrets_are_sealed_and_reencrypted(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    fresh = b"n" * 32
    await reencrypt_all(sqlite_plane.store, (fresh, *SECRET_KEYS))
    async with sqlite_plane.store.read() as conn:
        row = (await conn.execute(select(webhooks_table))).one()
    assert webhook["secret"] not in row.secret
    assert unseal((fresh,), webhook["id"], row.secret) == webhook["secret"]


# --- messages --------------------------------------------------------------------------------------------------------


async def test_every_webhook_of_the_workspace_gets_each_event_once(plane: ControlPlane) -> None:
    first = await create_webhook(plane)
    second = await create_webhook(plane, "https://b.example.com/x")
    off = await create_webhook(plane, "https://off.example.com/x")
    await plane.patch(f"{PATH}/{off['id']}", {"enabled": False})
    other = await plane.another_workspace()
    (await plane.post(PATH, {"url": "https://c.example.com/x"}, key=other["api_key"])).ok()
    await ingest_events(plane, *range(250), request_metadata={"trace": 7})
    await ingest_events(plane, *range(240, 260))
    receivers = Receivers()
    async with sending(plane.store, receivers) as counted:
        await eventually(lambda: len(counted) >= 8)
    assert receivers.keys() == receivers.keys(second["url"]) == [event_key(n) for n in range(260)]
    assert {url for url, _, _ in receivers.calls} == {first["url"], second["url"]}
    assert set(counted) == {"delivered"}
    url, headers, body = receivers.calls[0]
    secret = first["secret"] if url == URL else second["secret"]
    message = Webhook(secret).verify(body, dict(headers))
    assert message["type"] == "API_BILLING_USAGE"
    assert message["data"]["events"][0]["requestMetadata"] == {"trace": 7}


async def test_a_failed_message_is_retried_with_the_same_id_and_bytes(plane: ControlPlane) -> None:
    webhook = await create_webhook(plane)
    await ingest_events(plane, 1)
    answers = iter([500, None, 200])
    receivers = Receivers(answer=lambda url: next(answers))
    async with sending(plane.store, receivers) as counted:
        for tries in (1, 2):
            await eventually(lambda: len(counted) >= tries)  # noqa: B023 (awaited within the iteration)
            await make_due(plane.store)  # on a busy machine the retry may come before it by itself
        await eventually(lambda: len(counted) == 3)
    assert counted == ["failed", "failed", "delivered"]
    assert len({(headers["webhook-id"], body) for _, headers, body in receivers.calls}) == 1
    (delivery,) = await deliveries(plane, webhook)
    assert (delivery["status"], delivery["attempt_count"], delivery["event_count"]) == ("DELIVERED", 3, 1)
    assert [attempt["status_code"] for attempt in delivery["attempts"]] == [500, None, 200]
    assert delivery["id"] == receivers.calls[0][1]["webhook-id"]
    assert delivery["next_attempt_at"] is None


async def test_a_message_is_dead_after_three_days_and_can_be_redelivered(plane: ControlPlane) -> None:
    webhook = await create_webhook(plane)
    await ingest_events(plane, 1)
    async with plane.store.write() as tx:
        long_ago = {"retry_since_ms": -RETRY_FOR_MS}
        await tx.conn.execute(update(webhook_deliveries).values(**long_ago))
    status = 500
    receivers = Receivers(answer=lambda url: status)
    async with sending(plane.store, receivers) as counted:
        await eventually(lambda: counted == ["dead"])
        (dead,) = await deliveries(plane, webhook, status="DEAD")
        assert await deliveries(plane, webhook, status="PENDING") == []
        status = 200
        again = (await plane.post(f"{PATH}/{webhook['id']}/deliveries/{dead['id']}/redeliver")).ok()
        assert (again["status"], again["id"]) == ("PENDING", dead["id"])
        await eventually(lambda: counted == ["dead", "delivered"])
    (delivered,) = await deliveries(plane, webhook)
    assert (delivered["status"], delivered["attempt_count"]) == ("DELIVERED", 2)


async def test_a_delivered_message_can_be_redelivered(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    await ingest_events(sqlite_plane, 1)
    receivers = Receivers()
    async with sending(sqlite_plane.store, receivers) as counted:
        await eventually(lambda: len(counted) == 1)
        (delivery,) = await deliveries(sqlite_plane, webhook)
        (await sqlite_plane.post(f"{PATH}/{webhook['id']}/deliveries/{delivery['id']}/redeliver")).ok()
        await eventually(lambda: len(counted) == 2)
    assert receivers.keys() == [event_key(1)] * 2
    (await sqlite_plane.post(f"{PATH}/{webhook['id']}/deliveries/msg_nobody/redeliver")).refused(404)


async def test_a_test_message_is_delivered_and_logged(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    delivery = (await sqlite_plane.post(f"{PATH}/{webhook['id']}/test")).ok()
    assert (delivery["type"], delivery["status"], delivery["event_count"]) == ("TEST", "PENDING", 0)
    receivers = Receivers()
    async with sending(sqlite_plane.store, receivers) as counted:
        await eventually(lambda: counted == ["delivered"])
    _, headers, body = receivers.calls[0]
    message = Webhook(webhook["secret"]).verify(body, dict(headers))
    assert (message["type"], message["data"]) == ("TEST", {"events": []})
    assert headers["webhook-id"] == delivery["id"]


async def test_both_secrets_are_valid_while_the_overlap_lasts(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    one = f"{PATH}/{webhook['id']}"
    rotated = (await sqlite_plane.patch(one, {"rotate_secret": True, "secret_overlap_seconds": 3600})).ok()
    assert rotated["secret"] not in (None, webhook["secret"])
    assert rotated["previous_secret_expires_at"] > rotated["updated_at"]
    await sqlite_plane.post(f"{one}/test")
    receivers = Receivers()
    async with sending(sqlite_plane.store, receivers) as counted:
        await eventually(lambda: len(counted) == 1)
        _, headers, body = receivers.calls[0]
        for secret in (webhook["secret"], rotated["secret"]):
            Webhook(secret).verify(body, dict(headers))
        assert len(headers["webhook-signature"].split()) == 2
        final = (await sqlite_plane.patch(one, {"rotate_secret": True, "secret_overlap_seconds": 0})).ok()
        await sqlite_plane.post(f"{one}/test")
        await eventually(lambda: len(counted) == 2)
    _, headers, body = receivers.calls[1]
    Webhook(final["secret"]).verify(body, dict(headers))
    assert len(headers["webhook-signature"].split()) == 1


async def test_deliveries_are_paged_newest_first(sqlite_plane: ControlPlane) -> None:
    webhook = await create_webhook(sqlite_plane)
    ids = [(await sqlite_plane.post(f"{PATH}/{webhook['id']}/test")).ok()["id"] for _ in range(5)]
    path = f"{PATH}/{webhook['id']}/deliveries"
    listed_ids = []
    answer = (await sqlite_plane.get(path, params={"limit": 2, "status": "PENDING"})).ok()
    while True:
        listed_ids += [item["id"] for item in answer["items"]]
        if not answer["pagination"]["has_more"]:
            break
        answer = (await sqlite_plane.get(path, params={"cursor": answer["pagination"]["cursor"]})).ok()
    assert sorted(listed_ids) == sorted(ids)
    assert listed_ids == sorted(listed_ids, reverse=True)
    (await sqlite_plane.get(path, params={"status": "LOST"})).refused(400)


# --- isolation, sharing, crashes -------------------------------------------------------------------------------------


async def test_a_hanging_receiver_delays_no_other_and_has_bounded_concurrency(plane: ControlPlane) -> None:
    await create_webhook(plane, "https://dead.example.com/x")
    await create_webhook(plane)
    receivers = Receivers(hang={"https://dead.example.com/x"})
    async with sending(plane.store, receivers):
        for start in range(0, 1000, 100):
            await ingest_events(plane, *range(start, start + 100))
        await eventually(lambda: len(receivers.keys()) == 1000)
        await eventually(lambda: receivers.under_way.get("https://dead.example.com/x") == EAGER.concurrency)
    assert receivers.most_under_way["https://dead.example.com/x"] == EAGER.concurrency


async def test_several_processes_deliver_each_event_once(plane: ControlPlane) -> None:
    await create_webhook(plane)
    processes = [Receivers(hold_s=0.01) for _ in range(3)]
    async with sending(plane.store, *processes) as counted:
        for start in range(0, 3000, 100):
            await ingest_events(plane, *range(start, start + 100))
        await eventually(lambda: len(counted) == 30)
    keys = [key for process in processes for key in process.keys()]  # noqa: SIM118 (not a dict's)
    assert sorted(keys) == [event_key(n) for n in range(3000)]


async def test_the_concurrency_of_a_webhook_holds_over_all_processes(plane: ControlPlane) -> None:
    await create_webhook(plane)
    for start in range(0, 2000, 100):
        await ingest_events(plane, *range(start, start + 100))
    shared = Receivers(hold_s=0.02)
    async with sending(plane.store, shared, shared, shared, options=SenderOptions(3, 0.001)) as counted:
        await eventually(lambda: len(counted) == 20)
    assert shared.most_under_way[URL] <= 3


async def test_messages_of_a_dead_process_are_sent_by_another(plane: ControlPlane) -> None:
    await create_webhook(plane)
    await ingest_events(plane, 1)
    dying = Receivers(hang={URL})
    living = Receivers()
    async with sending(plane.store, dying, options=SenderOptions(lease_ms=300, poll_interval_s=0.01)):
        await eventually(lambda: len(dying.calls) == 1)
    async with sending(plane.store, living) as counted:
        await eventually(lambda: counted == ["delivered"])
    assert living.keys() == dying.keys() == [event_key(1)]
    assert dying.calls[0][1]["webhook-id"] == living.calls[0][1]["webhook-id"]


async def test_a_result_after_the_lease_expired_is_ignored(plane: ControlPlane) -> None:
    await create_webhook(plane)
    await ingest_events(plane, 1)
    slow = Receivers(hold_s=0.6, answer=lambda url: 500)
    quick = Receivers()
    async with sending(plane.store, slow, options=SenderOptions(lease_ms=100, poll_interval_s=0.01)) as late:
        await eventually(lambda: len(slow.calls) == 1)
        async with sending(plane.store, quick) as counted:
            await eventually(lambda: counted == ["delivered"])
        await eventually(lambda: slow.under_way[URL] == 0)
        await asyncio.sleep(0.05)
    assert late == []
    async with plane.store.read() as conn:
        assert (await conn.execute(select(webhook_deliveries.c.status))).scalars().all() == ["DELIVERED"]


async def test_a_leased_message_is_claimed_by_no_other_process(plane: ControlPlane) -> None:
    """The lease has expired, and the claim arrives while the attempt's result is being written."""
    webhook = await create_webhook(plane)
    await ingest_events(plane, 1)

    async def claim(tx: WriteTx) -> list[DeliveryRecord]:
        over_at_once = Claim(webhook["id"], "a lease", most=4, lease_ms=-1000)
        batch = await webhook_rows.claim_deliveries(tx, over_at_once, await database_ms(tx.conn))
        assert batch is not None
        return batch[1]

    (delivery,) = await plane.store.transact(claim)
    async with plane.store.write() as tx:
        assert await webhook_rows.finish_attempt(tx, delivery, {"status": "DELIVERED", "ended_at_ms": 1})
        another = asyncio.create_task(plane.store.transact(claim))
        await wait_until_blocked_by_lock(plane.store)
    assert await another == []
    ((status, attempts),) = [(one["status"], one["attempt_count"]) for one in await deliveries(plane, webhook)]
    assert (status, attempts) == ("DELIVERED", 1)


async def test_a_leased_message_cannot_be_redelivered(plane: ControlPlane) -> None:
    webhook = await create_webhook(plane)
    await ingest_events(plane, 1)
    (delivery,) = await deliveries(plane, webhook)
    async with plane.store.write() as tx:
        claim = Claim(webhook["id"], "a lease", most=4, lease_ms=60_000)
        assert await webhook_rows.claim_deliveries(tx, claim, await database_ms(tx.conn)) is not None
        by_hand = asyncio.create_task(plane.post(f"{PATH}/{webhook['id']}/deliveries/{delivery['id']}/redeliver"))
        await wait_until_blocked_by_lock(plane.store)
    (await by_hand).refused(409)


async def test_a_message_redelivered_during_cleanup_is_kept(plane: ControlPlane) -> None:
    webhook = await create_webhook(plane)
    await ingest_events(plane, 1)
    (delivery,) = await deliveries(plane, webhook)
    async with plane.store.write() as tx:
        await webhook_rows.update_delivery(tx, delivery["id"], {"status": "DELIVERED", "ended_at_ms": 1})

    async def forget(tx: WriteTx) -> int:
        return await webhook_rows.forget_deliveries(tx, "DELIVERED", 2, 10)

    async with plane.store.write() as tx:
        await webhook_rows.update_delivery(tx, delivery["id"], {"status": "PENDING", "ended_at_ms": None})
        forgetting = asyncio.create_task(plane.store.transact(forget))
        await wait_until_blocked_by_lock(plane.store)
    assert await forgetting == 0
    assert [one["id"] for one in await deliveries(plane, webhook)] == [delivery["id"]]


async def wait_until_blocked_by_lock(store: Store) -> None:
    """Wait until a statement is blocked by a lock. SQLite: the writer queues before its first statement."""
    if store.engine.dialect.name == "sqlite":
        return
    query = text("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
    row = None
    async with asyncio.timeout(20):
        while row is None:
            async with store.read() as conn:  # a new transaction each time: within one, the view does not change
                row = (await conn.execute(query)).first()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (webhook_rows.due_webhooks_query, "ix_webhook_deliveries_due"),
        (webhook_rows.due_query("whk_1", 5, 4), "ix_webhook_deliveries_due"),
        (webhook_rows.leased_query("whk_1", 5), "ix_webhook_deliveries_leased"),
    ],
)
async def test_polling_queries_use_a_partial_index(
    store: Store, query: Select[Any] | Callable[..., Select[Any]], index: str
) -> None:
    """Pending deliveries are found without reading the delivered ones, of which there may be many."""
    log = [new_delivery(f"whk_{n % 9}", "TEST", (), n) for n in range(3000)]
    delivered = [replace(one, status="DELIVERED", ended_at_ms=1) for one in log[:2900]]
    async with store.write() as tx:
        await webhook_rows.insert_deliveries(tx, delivered + log[2900:])
        await tx.conn.execute(text("ANALYZE"))
    async with store.read() as conn:
        explain = "EXPLAIN " if conn.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
        if not isinstance(query, Select):
            query = query(database_clock(conn.dialect.name))
        compiled = str(query.compile(dialect=conn.dialect, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(row[-1] for row in await conn.execute(text(explain + compiled)))
    assert index in plan
    assert "Seq Scan on webhook_deliveries" not in plan


async def test_deleting_a_webhook_deletes_messages_of_a_concurrent_ingest(plane: ControlPlane) -> None:
    webhook = await create_webhook(plane)
    await ingest_events(plane, *range(3))
    (await plane.delete(f"{PATH}/{webhook['id']}")).ok()
    async with plane.store.write() as tx:  # as written by an ingest that read the webhook before its deletion
        await webhook_rows.insert_deliveries(tx, [new_delivery(webhook["id"], "API_BILLING_USAGE", ["k"], 0)])
    receivers = Receivers()
    async with sending(plane.store, receivers):
        await asyncio.sleep(0.1)
    assert receivers.calls == []
    await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400))
    async with plane.store.read() as conn:
        assert (await conn.execute(select(webhook_deliveries.c.id))).all() == []


async def test_old_events_and_messages_are_deleted_and_recent_ones_kept(plane: ControlPlane) -> None:
    await create_webhook(plane)
    await ingest_events(plane, 1, 2)
    async with plane.store.read() as conn:
        now_ms = await database_ms(conn)
    old = ingest_and_reader(plane.store, 1e9)[0]
    await old.commit([event(n, now_ms - 93 * DAY_MS, workspace_id=plane.workspace_id) for n in range(10, 5000)])
    async with plane.store.write() as tx:
        ended = {"status": "DELIVERED", "ended_at_ms": now_ms - 8 * DAY_MS}
        await tx.conn.execute(update(webhook_deliveries).values(**ended))
    assert await delete_old_records(plane.store, RetentionDays(events=92, sums=400, audit=400)) == 4991
    _, statements = ingest_and_reader(plane.store, 0.0)
    page = await statements.first_page(EventWindow(plane.workspace_id, 0, 1 << 60), 10)
    assert [row.idempotency_key for row in page.rows] == [event_key(1), event_key(2)]
