"""Alerts on limits through the whole product: each once, whoever is killed, to whom they concern."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
from redis.asyncio import Redis

from tests.journeys.billing.test_webhooks import WebhookScenario, webhook_scenario
from tests.journeys.limits.test_limits_live import statuses
from tests.journeys.product import kill, models
from tests.journeys.receivers import Receiver
from tests.upstream import ScriptedUpstream
from tests.waiting import eventually

MONTH = ("REQUEST", "MONTH")


def told(receiver: Receiver, entity: str) -> Counter[tuple[str, int]]:
    """The messages on the group's limits, each key once, by type and percent."""
    messages = {one["idempotencyKey"]: one for one in map(_alert, receiver.messages) if one is not None}
    of_entity = [one for one in messages.values() if one["data"]["externalEntityId"] == entity]
    return Counter((one["type"], one["data"]["percent"]) for one in of_entity)


def _alert(message: Any) -> Any:
    body = orjson.loads(message.body)
    return body if body["type"] in ("LIMIT_ALERT", "LIMIT_REACHED") else None


async def until_told(scenario: WebhookScenario, receiver: Receiver, entity: str, *expected: tuple[str, int]) -> None:
    """Return once the receiver was told of exactly these."""
    await eventually(
        lambda: told(receiver, entity) == Counter(expected),
        lambda: f"{told(receiver, entity)} is not {expected}\n{scenario.stage.product.log_tail()}",
    )


async def test_percents_and_first_refusal_are_told_once_through_kills(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    async with webhook_scenario(tmp_path, upstream, ("all", "own")) as scenario:
        stage = scenario.stage
        everything, own = scenario.customer.receivers
        limits = models(stage.slug, (*MONTH, 10))
        groups = [
            await stage.operator.call(
                "POST",
                "/v1/gateway/groups",
                {"metadata": {"external_entity_id": entity}, "models": limits, "alert_percents": [50, 80, 100]},
            )
            for entity in ("ours", "sibling")
        ]
        ours, sibling = [await stage.operator.key(group["id"]) for group in groups]
        hook = {"event_types": ["API_BILLING_USAGE", "LIMIT_ALERT"]}
        await stage.operator.call("POST", "/v1/gateway/webhooks", {"url": everything.url, **hook})
        more = {"url": own.url, **hook, "group_id": groups[0]["id"]}
        await stage.operator.call("POST", "/v1/gateway/webhooks", more)

        assert await statuses(stage, ours, 20) == [200] * 10 + [429] * 10
        for pid in stage.product.processes("-m control --"):
            kill(pid)
        await stage.control_is_back()
        percents = [("LIMIT_ALERT", percent) for percent in (50, 80, 100)]
        reached = ("LIMIT_REACHED", 100)
        for receiver in (everything, own):
            await until_told(scenario, receiver, "ours", *percents, reached)

        path = f"/v1/gateway/groups/{groups[0]['id']}"
        await stage.operator.call("PATCH", path, {"models": models(stage.slug, (*MONTH, 20))})

        async def is_raised() -> bool:
            return await statuses(stage, ours, 1) == [200]

        await stage.until(is_raised, "the limit is raised")
        await stage.until(is_exhausted(scenario, ours), "the rest is used")
        again = [("LIMIT_ALERT", 80), ("LIMIT_ALERT", 100), reached]
        await until_told(scenario, own, "ours", *percents, reached, *again)

        assert await statuses(stage, sibling, 12) == [200] * 10 + [429] * 2
        await until_told(scenario, everything, "sibling", *percents, reached)
        await eventually(lambda: len(everything.messages) > len(own.messages), "each message has arrived")
        assert told(own, "sibling") == Counter()
        entities = {event["externalEntityId"] for one in own.messages if _alert(one) is None for event in one.events}
        assert entities == {"ours"}


def is_exhausted(scenario: WebhookScenario, key: str) -> Any:
    async def look() -> bool:
        return set(await statuses(scenario.stage, key, 5)) == {429}

    return look


async def empty_redis(scenario: WebhookScenario) -> None:
    folder = os.open(scenario.stage.product.data, os.O_RDONLY)  # a socket's path must be short
    try:
        async with Redis.from_url(f"unix:///proc/self/fd/{folder}/redis.sock") as redis:
            await redis.flushall()
    finally:
        os.close(folder)


async def test_lost_counters_tell_no_percent_twice(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    async with webhook_scenario(tmp_path, upstream, ("hook",)) as scenario:
        stage = scenario.stage
        (receiver,) = scenario.customer.receivers
        body = {
            "metadata": {"external_entity_id": "ours"},
            "models": models(stage.slug, (*MONTH, 10)),
            "alert_percents": [50],
        }
        group = await stage.operator.call("POST", "/v1/gateway/groups", body)
        key = await stage.operator.key(group["id"])
        await stage.operator.call("POST", "/v1/gateway/webhooks", {"url": receiver.url, "event_types": ["LIMIT_ALERT"]})
        await statuses(stage, key, 6)
        await until_told(scenario, receiver, "ours", ("LIMIT_ALERT", 50))
        await empty_redis(scenario)
        assert await statuses(stage, key, 11) == [200] * 10 + [429]
        await until_told(scenario, receiver, "ours", ("LIMIT_ALERT", 50), ("LIMIT_REACHED", 100))
