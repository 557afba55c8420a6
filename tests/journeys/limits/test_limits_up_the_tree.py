"""Limits over two workers and up the tree: no call above the threshold passes, and all of it is usable."""

import asyncio
from typing import Any

import openai
import pytest

from tests.journeys.conftest import Stage
from tests.journeys.product import models


async def tree(stage: Stage, mode: str, parent: list[Any], *children: list[Any]) -> list[str]:
    """Create a parent and children that may call the slug. Return a key of each child."""
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    root = await stage.operator.group(stage.name, parent, limit_enforcement=mode)
    groups = [
        await stage.operator.group(f"{stage.name}-{number}", entry, parent_group_id=root)
        for number, entry in enumerate(children)
    ]
    return [await stage.operator.key(group) for group in groups]


async def outcomes(stage: Stage, *keys: str) -> list[int]:
    """The status of one call with each key, all at once."""

    async def one(key: str) -> int:
        try:
            await stage.ask(key)
        except openai.APIStatusError as error:
            return error.status_code
        return 200

    return list(await asyncio.gather(*(one(key) for key in keys)))


async def test_parents_limit_refuses_exactly_the_calls_above_it(stage: Stage) -> None:
    minute = ("REQUEST", "MINUTE")
    blue, green = await tree(
        stage, "CASCADING", models(stage.slug, (*minute, 10)), *[models(stage.slug, (*minute, 8))] * 2
    )
    statuses = await outcomes(stage, *[blue, green] * 12)
    assert sorted(statuses) == [200] * 10 + [429] * 14
    assert len(stage.upstream.received) == 10, "a refused call went upstream"

    (group,) = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=f"{stage.name}-0"))["items"]
    own, shared = (await stage.operator.call("GET", f"/v1/gateway/groups/{group['id']}/limits"))["items"]
    assert (shared["current_usage"], shared["threshold"]) == (10, 10)
    assert shared["counting_group"] == group["hierarchy"]["parent_group_id"]
    assert (own["counting_group"], own["current_usage"] in range(2, 9)) == (group["id"], True)
    has_room = own["current_usage"] < 8  # of the ten admitted calls this group may have made all that it may
    assert (own["binds"], shared["binds"]) == (not has_room, has_room)
    assert 0 < shared["resets_in_s"] <= 61


async def test_refusal_has_limit_and_retry_time_and_names_no_other_group(stage: Stage) -> None:
    child = models(stage.slug, ("REQUEST", "MINUTE", 2))
    (key,) = await tree(stage, "CASCADING", models(stage.slug, ("REQUEST", "MINUTE", 2)), child)
    assert await outcomes(stage, key, key) == [200, 200]
    with pytest.raises(openai.RateLimitError) as refusal:
        await stage.ask(key)
    headers = refusal.value.response.headers
    body = refusal.value.response.json()
    assert body["error_code"] == "RATE_LIMITED"
    for word in ("REQUEST", "MINUTE", "2", stage.slug):
        assert word in body["error"]
    assert 1 <= int(headers["retry-after"]) <= 60
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"


async def test_independent_children_each_have_the_whole_inherited_limit(stage: Stage) -> None:
    bare = [{"slug": stage.slug}]
    blue, green = await tree(stage, "INDEPENDENT", models(stage.slug, ("REQUEST", "MINUTE", 2)), bare, bare)
    assert sorted(await outcomes(stage, blue, blue, blue, green, green, green)) == [200] * 4 + [429] * 2


async def test_call_that_crosses_a_token_limit_is_admitted(stage: Stage) -> None:
    """30 tokens per call against 40 per minute: a use of 0 and of 30 is below the limit; 60 is not."""
    (key,) = await tree(stage, "CASCADING", models(stage.slug, ("TOKEN", "MINUTE", 40)), [{"slug": stage.slug}])

    async def call_once_settled() -> bool:
        return await outcomes(stage, key) == [200]

    await call_once_settled()
    await stage.until(call_once_settled, "the second call, once the first was settled")
    assert await outcomes(stage, key) == [429]
    assert len(stage.upstream.received) == 2


async def test_call_that_cannot_be_translated_returns_all_it_took_up_the_tree(stage: Stage) -> None:
    secret = await stage.operator.call("POST", "/v1/secrets", {"name": stage.name, "value": "upstream-key"})
    target = {"provider": "VENDOR_A", "secret_id": secret["id"], "target_model": "m"}
    await stage.operator.call("POST", "/v1/gateway/endpoints", {"slug": stage.slug, "targets": [target]})
    limits = models(stage.slug, ("REQUEST", "MINUTE", 1), ("REQUEST", "DAY", 1), ("TOKEN", "DAY", 10))
    root = await stage.operator.group(stage.name, limits, limit_enforcement="CASCADING")
    group = await stage.operator.group(f"{stage.name}-0", limits, parent_group_id=root)
    key = await stage.operator.key(group)

    async def nothing_is_used() -> bool:
        items = (await stage.operator.call("GET", f"/v1/gateway/groups/{group}/limits"))["items"]
        assert len(items) == 6
        return all(item["current_usage"] == 0 for item in items)

    for _ in range(3):
        with pytest.raises(openai.BadRequestError) as refusal:
            await stage.ask(key, n=2)
        assert refusal.value.response.json()["error_code"] == "UNTRANSLATABLE_REQUEST"
        await stage.until(nothing_is_used, "all is given back")
    assert not await stage.operator.events(f"{stage.name}-0", stage.began)


async def test_usage_of_the_day_equals_the_settled_tokens(stage: Stage) -> None:
    day = ("TOKEN", "DAY", 50_000)  # room for both calls at once, each of which can cost 8192 tokens
    keys = await tree(stage, "CASCADING", models(stage.slug, day), [{"slug": stage.slug}], [{"slug": stage.slug}])
    assert await outcomes(stage, *keys) == [200, 200]
    groups = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=f"{stage.name}-0"))["items"]

    async def look() -> Any:
        (entry,) = (await stage.operator.call("GET", f"/v1/gateway/groups/{groups[0]['id']}/usage"))["items"]
        return entry if entry["current_usage"] == 60 else None

    entry = await stage.until(look, "60 tokens in the day's usage")
    assert (entry["slug"], entry["type"], entry["unit"], entry["threshold"]) == (stage.slug, *day)
    assert entry["reset_at"].endswith("00:00:00Z") or "T00:00:00" in entry["reset_at"]
    assert entry["source_group"] == groups[0]["hierarchy"]["parent_group_id"]


async def test_changed_threshold_applies_to_the_current_window(stage: Stage) -> None:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    group = await stage.operator.group(stage.name, models(stage.slug, ("REQUEST", "MINUTE", 1)))
    key = await stage.operator.key(group)
    assert await outcomes(stage, key) == [200]
    assert await outcomes(stage, key) == [429]
    raised = {"models": models(stage.slug, ("REQUEST", "MINUTE", 2))}
    await stage.operator.call("PATCH", f"/v1/gateway/groups/{group}", raised)

    async def passes() -> bool:
        return await outcomes(stage, key) == [200]

    await stage.until(passes, "the raised limit")
    assert await outcomes(stage, key) == [429], "the first call no longer counts"
