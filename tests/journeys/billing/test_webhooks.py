"""Webhooks through the whole product: receivers get each event, even if processes are killed."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from standardwebhooks import WebhookVerificationError

from tests.journeys.conftest import Stage, Workspace, stage_of
from tests.journeys.product import Product, ended, kill, spawn
from tests.journeys.receivers import Customer, Receiver
from tests.ports import own_port
from tests.postgres_server import find_binaries, running_postgres
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

PATH = "/v1/gateway/webhooks"
SETTINGS = {"TOLLGATE_WEBHOOK_POLL_INTERVAL_S": "0.05", "TOLLGATE_WEBHOOK_TIMEOUT_S": "1"}
RETRY_FOR_S = 4


@dataclass
class WebhookScenario:
    """A stage, and a customer with webhook receivers."""

    stage: Stage
    customer: Customer
    key: str

    async def call(self, count: int = 1, **more: Any) -> None:
        await asyncio.gather(*(self.stage.ask(self.key, **more) for _ in range(count)))

    async def webhook(self, receiver: Receiver) -> Any:
        return await self.stage.operator.call("POST", PATH, {"url": receiver.url})

    async def listed(self, count: int) -> dict[str, Any]:
        """The listed events by idempotency key, once there are `count`."""

        async def look() -> Any:
            events = await self.stage.operator.events(self.stage.name, self.stage.began, 1000)
            return events if len(events) >= count else None

        return {one["idempotencyKey"]: one for one in await self.stage.until(look, f"{count} events")}

    async def deliveries(self, webhook: Any, **query: str) -> list[Any]:
        return list((await self.stage.operator.call("GET", f"{PATH}/{webhook['id']}/deliveries", **query))["items"])

    async def until(self, receiver: Receiver, events: int) -> None:
        """Return once `receiver` has received this many distinct events."""
        await eventually(
            lambda: len({one["idempotencyKey"] for one in receiver.events}) >= events,
            lambda: f"{receiver.name}: {len(receiver.events)} of {events}\n{self.stage.product.log_tail()}",
        )

    async def call_until_more_messages(self, receiver: Receiver) -> int:
        """Make calls until messages arrive, so that some are in flight. Return the number of calls.

        The calls take some time: events that are ready together go out in one message.
        """
        before = len(receiver.messages)
        call_count = 0

        async def look() -> bool:
            nonlocal call_count
            await self.call(5)
            call_count += 5
            return call_count >= 40 and len(receiver.messages) > before + 1

        await eventually(look, lambda: "no message is in flight", every_s=0.2)
        return call_count

    async def until_all_delivered(self, webhook: Any) -> list[Any]:
        """The deliveries, once control has noted that the receiver accepted each."""

        async def look() -> Any:
            log = await self.deliveries(webhook)
            return log if {entry["status"] for entry in log} == {"DELIVERED"} else None

        return list(await self.stage.until(look, "every delivery is noted"))

    async def until_status(self, webhook: Any, status: str) -> Any:
        """Wait for a delivery of the webhook with this status, and return it."""

        async def look() -> Any:
            return next(iter(await self.deliveries(webhook, status=status)), None)

        return await self.stage.until(look, f"a delivery is {status}")


@asynccontextmanager
async def webhook_scenario(
    directory: Path, upstream: ScriptedUpstream, names: tuple[str, ...], **settings: str
) -> AsyncIterator[WebhookScenario]:
    customer = await Customer.with_receivers(directory, *names)
    product = Product(directory / "data", settings={**customer.settings, **SETTINGS, **settings})
    async with aiohttp.ClientSession() as session:
        try:
            await asyncio.to_thread(product.start)
            stage = stage_of(await asyncio.to_thread(Workspace, product), session, upstream, "own")
            yield WebhookScenario(stage, customer, await stage.key_without_limits())
        finally:
            await asyncio.to_thread(product.kill)
            await customer.stop()


async def test_long_integers_in_metadata_reach_the_receiver_unchanged(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    exact = '{"order":340282366920938463463374607431768211456,"deep":[-98765432109876543210]}'
    async with webhook_scenario(tmp_path, upstream, ("hook",)) as scenario:
        (receiver,) = scenario.customer.receivers
        created = await scenario.webhook(receiver)
        await scenario.call(1, extra_headers={"x-request-metadata": exact})
        await scenario.call(1, extra_body={"metadata": json.loads(exact)})
        await scenario.until(receiver, 2)
        bodies = b"".join(message.body for message in receiver.messages)
        assert bodies.count(f'"requestMetadata":{exact}'.encode()) == 2
        assert all(message.verified(created["secret"]) for message in receiver.messages)


async def test_each_call_is_delivered_and_signed_by_rotating_secrets(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    async with webhook_scenario(tmp_path, upstream, ("hook",)) as scenario:
        (receiver,) = scenario.customer.receivers
        created = await scenario.webhook(receiver)
        await scenario.call(
            3, metadata={"invoice": "é-7"}, extra_headers={"x-request-metadata": '{"trace": [1, null]}'}
        )
        await scenario.call(1, metadata={"invoice": "8"})
        await scenario.call(1)
        await scenario.until(receiver, 5)
        listed = await scenario.listed(5)
        for message in receiver.messages:
            assert message.verified(created["secret"])["type"] == "API_BILLING_USAGE"
        delivered = {one["idempotencyKey"]: one for one in receiver.events}
        metadata = [one.pop("requestMetadata") for one in delivered.values()]
        assert delivered == listed
        assert sorted(map(str, metadata)) == sorted(map(str, [{"trace": [1, None]}] * 3 + [{"invoice": "8"}, None]))

        one = f"{PATH}/{created['id']}"
        rotated = await scenario.stage.operator.call(
            "PATCH", one, {"rotate_secret": True, "secret_overlap_seconds": 600}
        )
        await scenario.call()
        await scenario.until(receiver, 6)
        receiver.messages[-1].verified(created["secret"])
        receiver.messages[-1].verified(rotated["secret"])
        final = await scenario.stage.operator.call("PATCH", one, {"rotate_secret": True, "secret_overlap_seconds": 0})
        ping = await scenario.stage.operator.call("POST", f"{one}/test")
        await eventually(lambda: ping["id"] in receiver.by_id(), lambda: "the test message never arrived")
        assert receiver.messages[-1].verified(final["secret"])["type"] == "TEST"
        for old in (created["secret"], rotated["secret"]):
            with pytest.raises(WebhookVerificationError):
                receiver.messages[-1].verified(old)

        await scenario.stage.operator.call("PATCH", one, {"enabled": False})
        await scenario.call(2)
        await scenario.listed(8)
        await scenario.stage.operator.call("PATCH", one, {"enabled": True})
        await scenario.call()
        await scenario.until(receiver, 7)
        assert len({event["idempotencyKey"] for event in receiver.events}) == 7, (
            "received calls made while it was disabled"
        )
        log = await scenario.until_all_delivered(created)
        assert {entry["id"] for entry in log} == set(receiver.by_id())


async def test_dead_receiver_delays_no_other_and_can_be_redelivered_later(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    settings = {"TOLLGATE_WEBHOOK_RETRY_FOR_S": str(RETRY_FOR_S)}
    async with webhook_scenario(tmp_path, upstream, ("hangs", "fails", "works"), **settings) as scenario:
        hangs, fails, working = scenario.customer.receivers
        hangs.status = None
        fails.status = 500
        dead = [await scenario.webhook(one) for one in (hangs, fails)]
        await scenario.webhook(working)
        await scenario.call()
        await scenario.until(working, 1)
        await scenario.call(40)
        await scenario.until(working, 41)
        for webhook in dead:
            given_up = await scenario.until_status(webhook, "DEAD")
            assert given_up["attempt_count"] >= 2
            assert given_up["attempts"][-1]["error"] in ("no answer in time", "answered 500")
        product = scenario.stage.product
        await eventually(lambda: "gave up message" in product.log.read_text(), product.log_tail)

        fails.status = 200
        webhook = dead[1]
        given_up = await scenario.until_status(webhook, "DEAD")
        before = fails.by_id()[given_up["id"]]
        await scenario.stage.operator.call("POST", f"{PATH}/{webhook['id']}/deliveries/{given_up['id']}/redeliver")
        await eventually(lambda: len(fails.by_id()[given_up["id"]]) > len(before), lambda: "it was not delivered again")
        assert {one.body for one in fails.by_id()[given_up["id"]]} == {before[0].body}
        fails.messages[-1].verified(webhook["secret"])


@contextmanager
def another_control(product: Product) -> Iterator[None]:
    """A second `tollgate control` on the same database."""
    port = own_port()
    words = ("control", "--control-port", str(port), "--data", str(product.data))
    process = spawn(words, product.environment, product.log)
    try:
        yield
    finally:
        process.kill()
        ended(process)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, str]]:
    """The settings for a database, and those that both processes must share."""
    shared = {
        "TOLLGATE_SECRET_KEY": base64.b64encode(b"k" * 32).decode(),
        "TOLLGATE_INTERNAL_TOKEN": "the-internal-token-of-this-journey",
    }
    if request.param == "sqlite":
        yield shared
    elif find_binaries() is None:
        pytest.skip("no PostgreSQL")
    else:
        with running_postgres() as server:
            yield shared | {"TOLLGATE_DATABASE_URL": await server.create_database("hooks")}


@pytest.mark.soak
async def test_every_event_is_delivered_when_control_is_killed(
    tmp_path: Path, upstream: ScriptedUpstream, database: dict[str, str]
) -> None:
    """A kill leaves at most four messages in flight. Those may arrive twice, with the same id and bytes.

    A message answered after its timeout may also arrive twice; the delivery's log records each such attempt.
    """
    kills = 3
    most_in_flight = 4
    async with webhook_scenario(tmp_path, upstream, ("hook",), **database) as scenario:
        (receiver,) = scenario.customer.receivers
        receiver.response_delay_s = 0.3
        product = scenario.stage.product
        webhook = await scenario.webhook(receiver)
        with another_control(product):
            calls = 0
            for _ in range(kills):
                calls += await scenario.call_until_more_messages(receiver)
                for pid in product.processes("-m control --"):
                    kill(pid)
                await scenario.stage.control_is_back()
            await scenario.until(receiver, calls)
            listed = await scenario.listed(calls)
            attempts = [
                attempt for one in await scenario.deliveries(webhook, limit="100") for attempt in one["attempts"]
            ]
    assert {one["idempotencyKey"] for one in receiver.events} == set(listed)
    repeated = {id: copies for id, copies in receiver.by_id().items() if len(copies) > 1}
    too_late = sum(attempt["status_code"] is None for attempt in attempts)
    assert sum(len(copies) - 1 for copies in repeated.values()) <= kills * most_in_flight + too_late
    assert all(len({one.body for one in copies}) == 1 for copies in repeated.values())
    keys = [one["idempotencyKey"] for copies in receiver.by_id().values() for one in copies[0].events]
    assert len(keys) == len(set(keys)), "an event is in two messages"
