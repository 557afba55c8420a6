"""A key's own limits on the whole product, over two workers: over all its slugs, shared by rotation, shown.

Parallel calls, slugs, workers and keys of a rotation together never get more than one key may have.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from policy.billing import Tokens
from policy.prices import date_text
from tests.journeys.conftest import Stage
from tests.journeys.limits.test_spend_limits import COST, PRICE, billed, limit
from tests.journeys.product import kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import Question, answer_question

CALL = Tokens(input=1_000, output=100, cached_input=400)
CALLERS = 20
GROUPS = "/v1/gateway/groups"


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


class Scene:
    """A group that may call two slugs, and a key of it."""

    def __init__(self, stage: Stage, settings: dict[str, Any]) -> None:
        self.stage = stage
        self.settings = settings
        self.slugs = (stage.slug, f"{stage.slug}-other")

    async def build(self) -> "Scene":
        operator = self.stage.operator
        model = await operator.model(self.stage.name, self.stage.upstream.url)
        for slug in self.slugs:
            await operator.endpoint(slug, model)
            await operator.call("PUT", "/v1/gateway/prices", {"slug": slug, "valid_from": date_text(0), **PRICE})
        models = [{"slug": slug} for slug in self.slugs]
        metadata = {"external_entity_id": f"{self.stage.name}-one"}
        group = await operator.call("POST", GROUPS, {"metadata": metadata, "models": models})
        self.keys = f"{GROUPS}/{group['id']}/api_keys"
        created = await operator.call("POST", self.keys, self.settings)
        self.key = str(created["api_key"])
        self.prefix = str(created["prefix"])
        return self

    async def rotate(self) -> str:
        answer = await self.stage.operator.call("POST", f"{self.keys}/{self.prefix}/rotate", {"overlap_seconds": 3600})
        return str(answer["api_key"])

    async def other_key(self) -> str:
        return str((await self.stage.operator.call("POST", self.keys, {}))["api_key"])

    async def call(self, key: str, slug: str = "", **more: Any) -> tuple[int, Any]:
        """Call on a connection of its own, so that the kernel spreads calls over the workers."""
        # A HARD limit reserves a token for each byte, and the upstream reports no more than that.
        messages = [("system", " " * CALL.input), ("user", Question(CALL, 1, 20).text())]
        body = {
            "model": slug or self.slugs[0],
            "messages": [{"role": role, "content": content} for role, content in messages],
            **more,
        }
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        url = self.stage.product.proxy + "/v1/chat/completions"
        async with self.stage.session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def call_at_once(self, *keys: str, **more: Any) -> Counter[int]:
        """Calls by these keys and both slugs in turn."""
        calls = (self.call(keys[n % len(keys)], self.slugs[n // 2 % 2], **more) for n in range(CALLERS))
        return Counter(status for status, _ in await asyncio.gather(*calls))

    async def knows(self, key: str) -> None:
        """Wait until the proxy knows a new key, by a call that is not admitted."""

        async def is_known() -> bool:
            return (await self.call(key, "no/such-slug"))[0] == 404

        await self.stage.until(is_known, "the proxy knows the key")

    async def spend(self) -> tuple[int, Any]:
        status, answer = await self.stage.operator.ask("GET", f"{self.keys}/{self.prefix}/spend")
        return status, answer.get("items")

    async def is_counted(self) -> None:
        async def counts() -> bool:
            return (await self.spend())[0] == 200

        await self.stage.until(counts, "what keys of the tree spend is counted")

    async def settled(self) -> Decimal:
        """The spend of the key, once nothing is reserved and it is what is billed."""
        total = Decimal(0)

        async def is_settled() -> bool:
            nonlocal total
            status, items = await self.spend()
            total = await billed(self.stage, "one")
            return status == 200 and all(
                Decimal(one["spent"]) == total and not Decimal(one["reserved"]) for one in items
            )

        await self.stage.until(is_settled, "spent is what is billed")
        return total


async def test_rate_limit_holds_over_slugs_workers_and_rotation_and_for_no_other_key(stage: Stage) -> None:
    limits = [{"type": "REQUEST", "unit": "MINUTE", "threshold": 6}]
    scene = await Scene(stage, {"rate_limits": limits}).build()
    later = await scene.rotate()
    await scene.knows(later)
    statuses = await scene.call_at_once(scene.key, later)
    assert statuses == {200: 6, 429: CALLERS - 6}
    status, answer = await scene.call(later, scene.slugs[1])
    assert (status, answer["error_code"]) == (429, "RATE_LIMITED")
    assert answer["error"] == "Rate limit exceeded for this key: 6 REQUEST per MINUTE"
    other = await scene.other_key()
    await scene.knows(other)
    assert await scene.call_at_once(other) == {200: CALLERS}

    async def is_listed() -> bool:
        page = await stage.operator.call("GET", f"/v1/gateway/requests?slug={scene.slugs[1]}&status=429")
        listed = [one["limit"] for one in page["items"]]
        expected = {"group_id": None, "api_key_prefix": scene.prefix, **limits[0]}
        return bool(listed) and all(one == expected for one in listed)

    await stage.until(is_listed, "refusals are listed with the key's own limit")


async def test_calls_in_flight_of_a_key_end_with_them(stage: Stage) -> None:
    limits = [{"type": "CONCURRENT_REQUEST", "unit": "MINUTE", "threshold": 2}]
    scene = await Scene(stage, {"rate_limits": limits}).build()
    await scene.knows(scene.key)
    statuses = await scene.call_at_once(scene.key)
    assert statuses[200] >= 2
    assert statuses[429] >= 1

    async def is_admitted() -> bool:
        return (await scene.call(scene.key))[0] == 200

    await stage.until(is_admitted, "places are free again")


@pytest.mark.parametrize("mode", ["SOFT", "HARD"])
async def test_spend_of_all_keys_of_a_rotation_is_bounded_and_is_what_is_billed(
    killable_stage: Stage, mode: str
) -> None:
    stage = killable_stage
    amount = 8 * COST
    limits = [{**limit(amount), "enforcement": mode}]
    scene = await Scene(stage, {"spend_limits": limits}).build()
    later = await scene.rotate()
    await scene.is_counted()
    await scene.knows(later)
    more: dict[str, Any] = {"max_tokens": CALL.output} if mode == "HARD" else {}

    async def is_ready() -> bool:  # a HARD limit waits until all machines have told of their reservations
        return (await scene.call(scene.key, **more))[0] == 200

    await stage.until(is_ready, "the first call is admitted")
    statuses = await scene.call_at_once(scene.key, later, **more)
    while 200 in statuses and (last := (await scene.call(later, scene.slugs[1], **more))[0]) == 200:
        statuses[last] += 1
    assert set(statuses) <= {200, 429}
    assert statuses[429] > 0
    total = await scene.settled()
    assert total <= (amount if mode == "HARD" else amount + CALLERS * COST)
    assert total > 0
    for pid in stage.product.processes("redis-server"):
        with contextlib.suppress(ProcessLookupError):
            kill(pid)
    await stage.until(stage.all_parts_ready, "all processes run again")
    assert await scene.settled() == total, "it is built again from the events"
    other = await scene.other_key()
    await scene.knows(other)
    assert (await scene.call(other))[0] == 200, "the key's limit binds no other key"
