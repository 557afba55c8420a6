"""Spend limits on the whole product: who is refused and when, and that what is spent is what is billed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from policy.billing import Tokens
from policy.prices import date_text
from tests.journeys.conftest import Stage
from tests.journeys.product import kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import Question, answer_question

CALL = Tokens(input=1_000, output=100, cached_input=400)
COST = Decimal("0.00268")
"""The cost of CALL: 600 * 2 + 400 * 0.5 + 100 * 8 millionths, and 0.00048 for the call."""
PRICE = {
    "currency": "EUR",
    "input_per_million": "2",
    "cached_input_per_million": "0.5",
    "output_per_million": "8",
    "per_call": "0.00048",
}
CALLERS = 20


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


def limit(amount: Decimal | str, unit: str = "DAY") -> dict[str, str]:
    return {"unit": unit, "amount": str(amount), "currency": "EUR", "enforcement": "SOFT"}


async def priced_slug(stage: Stage) -> None:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    price = {"slug": stage.slug, "valid_from": date_text(0), **PRICE}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)


async def group(stage: Stage, name: str, limits: Sequence[dict[str, str]], **hierarchy: str) -> str:
    body = {
        "metadata": {"external_entity_id": f"{stage.name}-{name}"},
        "models": [{"slug": stage.slug}],
        "hierarchy": hierarchy,
        "spend_limits": list(limits),
    }
    created = await stage.operator.call("POST", "/v1/gateway/groups", body)
    return str(created["id"])


async def call(stage: Stage, key: str, tokens: Tokens = CALL, pause_ms: int = 0) -> tuple[int, Any, dict[str, str]]:
    body = {"model": stage.slug, "messages": [{"role": "user", "content": Question(tokens, 1, pause_ms).text()}]}
    url = stage.product.proxy + "/v1/chat/completions"
    async with stage.session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
        return answer.status, await answer.json(), dict(answer.headers)


async def billed(stage: Stage, *names: str) -> Decimal:
    """The cost of all events of these groups."""
    total = Decimal(0)
    for name in names:
        events = await stage.operator.events(f"{stage.name}-{name}", stage.began, 1000, include="details")
        total += sum(Decimal(event["cost"]["amount"]) for event in events)
    return total


async def spend(stage: Stage, group_id: str) -> list[Any]:
    answer = await stage.operator.call("GET", f"/v1/gateway/groups/{group_id}/spend")
    return list(answer["items"])


async def settled(stage: Stage, group_id: str, amount: Decimal) -> list[Any]:
    """The group's spend, once it shows this amount as spent and nothing as reserved."""
    items: list[Any] = []

    async def is_settled() -> bool:
        nonlocal items
        status, answer = await stage.operator.ask("GET", f"/v1/gateway/groups/{group_id}/spend")
        items = answer.get("items", [])
        return status == 200 and all(Decimal(one["spent"]) == amount and not Decimal(one["reserved"]) for one in items)

    await stage.until(is_settled, f"spent {amount}, reserved 0")
    return items


async def is_counted(stage: Stage, group_id: str) -> None:
    """Wait until the tree of a new limit is counted: calls before that are not held against it."""

    async def counts() -> bool:
        status, _ = await stage.operator.ask("GET", f"/v1/gateway/groups/{group_id}/spend")
        return status == 200

    await stage.until(counts, "the tree's spend is counted")


@pytest.mark.parametrize("mode", ["CASCADING", "INDEPENDENT"])
async def test_limit_admits_what_it_says_refuses_the_rest_and_shows_what_is_billed(stage: Stage, mode: str) -> None:
    await priced_slug(stage)
    top = await group(stage, "top", [limit("50", "MONTH"), limit(3 * COST)], limit_enforcement=mode)
    low = await group(stage, "low", [], parent_group_id=top)
    top_key, low_key = await stage.operator.key(top), await stage.operator.key(low)
    await is_counted(stage, top)
    callers = [low_key, top_key, low_key] if mode == "CASCADING" else [low_key, low_key, low_key, top_key]
    for key in callers:
        status, answer, _ = await call(stage, key)
        assert status == 200, answer
    for key in (low_key, top_key) if mode == "CASCADING" else (low_key,):
        status, answer, headers = await call(stage, key)
        assert (status, answer["error_code"]) == (429, "SPEND_LIMIT_EXCEEDED"), answer
        assert all(word in str(answer) for word in ("DAY", "0.00804", "EUR"))
        assert top not in str(answer)
        assert 1 <= int(headers["Retry-After"]) <= 86_400
    names = ("top", "low") if mode == "CASCADING" else ("low",)
    counting_group = top if mode == "CASCADING" else low
    by_unit = {one["unit"]: one for one in await settled(stage, counting_group, 3 * COST)}
    assert await billed(stage, *names) == 3 * COST
    assert {one["source_group"] for one in by_unit.values()} == {top}
    assert Decimal(by_unit["DAY"]["remaining"]) == 0
    assert Decimal(by_unit["MONTH"]["remaining"]) == 50 - 3 * COST
    status, _, headers = await call(stage, low_key)
    assert status == 429
    await stage.operator.call("PATCH", f"/v1/gateway/groups/{top}", {"spend_limits": [limit(4 * COST)]})

    async def is_admitted() -> bool:
        return (await call(stage, low_key))[0] == 200

    await stage.until(is_admitted, "a raised limit admits")


async def test_callers_at_once_spend_at_most_the_amount_and_what_was_in_flight(stage: Stage) -> None:
    await priced_slug(stage)
    id = await group(stage, "one", [limit(5 * COST)])
    key = await stage.operator.key(id)
    await is_counted(stage, id)
    answers = [status for status, _, _ in await asyncio.gather(*_calls(stage, key))]
    while answers[-1] == 200 or answers.count(200) < 5:
        answers.append((await call(stage, key))[0])
    assert set(answers) == {200, 429}
    spent = answers.count(200) * COST
    assert 5 * COST <= spent <= (5 + CALLERS) * COST
    (item,) = await settled(stage, id, spent)
    assert Decimal(item["remaining"]) == 5 * COST - spent
    assert await billed(stage, "one") == spent


def _calls(stage: Stage, key: str) -> list[Any]:
    return [call(stage, key, pause_ms=20) for _ in range(CALLERS)]


async def test_slug_without_a_price_in_the_currency_is_refused(stage: Stage) -> None:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    id = await group(stage, "one", [limit("1")])
    key = await stage.operator.key(id)
    status, answer, _ = await call(stage, key)
    assert (status, answer["error_code"]) == (402, "UNPRICED"), answer
    price = {"slug": stage.slug, "valid_from": date_text(0), **PRICE, "currency": "USD"}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)
    assert (await call(stage, key))[0] == 402
    await stage.operator.call("PUT", "/v1/gateway/prices", {**price, "currency": "EUR"})

    async def is_admitted() -> bool:
        return (await call(stage, key))[0] == 200

    await stage.until(is_admitted, "a price in the currency admits")


async def test_spent_is_what_is_billed_after_workers_and_redis_died(killable_stage: Stage) -> None:
    stage = killable_stage
    await priced_slug(stage)
    id = await group(stage, "one", [limit("1"), limit("2", "MONTH")])
    key = await stage.operator.key(id)
    await is_counted(stage, id)
    for victim in ("proxy.worker", "redis-server"):
        calls = [asyncio.create_task(call(stage, key, pause_ms=200)) for _ in range(CALLERS)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for pid in stage.product.processes(victim):
            with contextlib.suppress(ProcessLookupError):
                kill(pid)
        await asyncio.gather(*calls, return_exceptions=True)
        await stage.until(stage.all_parts_ready, "all processes run again")
    calls_after = [await call(stage, key) for _ in range(3)]
    assert {status for status, _, _ in calls_after} == {200}

    async def equals_billed() -> bool:
        status, answer = await stage.operator.ask("GET", f"/v1/gateway/groups/{id}/spend")
        if status != 200:
            return False
        total = await billed(stage, "one")
        return total > 3 * COST and {Decimal(one["spent"]) for one in answer["items"]} == {total}

    await stage.until(equals_billed, "spent equals billed")
