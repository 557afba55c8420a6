"""The customer's usage page beside its limits: the use that a limit shows is in the totals, and both in the bill.

So is what a spend limit shows as spent.
"""

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from policy.billing import Tokens
from policy.limits.kinds import LimitType
from policy.prices import date_text
from tests.journeys.conftest import Stage
from tests.journeys.product import models
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import Question, answer_question
from tests.waiting import eventually

TYPES = (LimitType.REQUEST, LimitType.TOKEN, LimitType.UNCACHED_INPUT_TOKEN, LimitType.OUTPUT_TOKEN)
LIMITS = [(type, unit, 1_000_000) for type in TYPES for unit in ("DAY", "MONTH")]
CALLS = {
    "top": (Tokens(input=7_000, output=900, cached_input=5_000),),
    "middle": (Tokens(input=1_000, output=200, cached_input=300), Tokens(input=50, output=1, cached_input=0)),
    "lower": (Tokens(input=400, output=30, cached_input=400), Tokens(input=6, output=0, cached_input=2)),
}
"""The calls of each level's key. Any of these sums tells whose calls are in it."""
PRICE = {"currency": "EUR", "input_per_million": "2", "cached_input_per_million": "0.5", "output_per_million": "8"}
SPEND_LIMITS = [{"unit": unit, "amount": "50.00", "currency": "EUR"} for unit in ("DAY", "MONTH")]


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    """Reports the tokens that the call asks for."""
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


async def keys_of_tree(stage: Stage, mode: str) -> dict[str, str]:
    """Create a tree of three levels, whose middle one has all usage and spend limits. Return a key of each level."""
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    price = {"slug": stage.slug, "valid_from": date_text(0), **PRICE}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)
    keys: dict[str, str] = {}
    hierarchy = {"limit_enforcement": mode}
    for level in CALLS:
        entries = models(stage.slug, *(LIMITS if level == "middle" else ()))
        group = await stage.operator.group(f"{stage.name}-{level}", entries, **hierarchy)
        if level == "middle":
            await stage.operator.call("PATCH", f"/v1/gateway/groups/{group}", {"spend_limits": SPEND_LIMITS})
        hierarchy = {"parent_group_id": group}
        keys[level] = await stage.operator.key(group)
    return keys


async def billed(stage: Stage, *levels: str) -> list[Tokens]:
    """The tokens of all billing events of these levels, once there are as many as calls."""
    counts = [
        event["tokens"]
        for level in levels
        for event in await stage.events_of(f"{stage.name}-{level}", len(CALLS[level]))
    ]
    return [
        Tokens(input=one["inputTokens"], output=one["outputTokens"], cached_input=one["cachedInputTokens"])
        for one in counts
    ]


def amounts_of(calls: Sequence[Tokens]) -> dict[str, int]:
    """The use of a limit of each type by these calls."""
    return {type: len(calls) if type == LimitType.REQUEST else sum(map(type.amount, calls)) for type in TYPES}


def cost_of(calls: Sequence[Tokens]) -> Decimal:
    """The cost of these calls, in EUR."""
    halves = sum(4 * (one.input - one.cached_input) + one.cached_input + 16 * one.output for one in calls)
    return Decimal(halves) / 2_000_000


def amounts_in(totals: Any) -> dict[str, int]:
    """The use of a limit of each type by the calls in these totals of the page."""
    inputs = totals["uncached_input_tokens"] + totals["cached_input_tokens"]
    amounts = (totals["calls"], inputs + totals["output_tokens"], totals["uncached_input_tokens"])
    return dict(zip(TYPES, (*amounts, totals["output_tokens"]), strict=True))


def uses_of(page: Any) -> dict[tuple[str, str], int]:
    """The use that the page shows of each limit, by type and unit."""
    return {(limit["type"], limit["unit"]): limit["current_usage"] for limit in page["limits"]}


async def settled_page(stage: Stage, key: str, calls: Sequence[Tokens]) -> Any:
    """The data of the usage page in a session of this key, once its limits show the use by these calls."""
    amounts = amounts_of(calls)
    headers = {"Origin": stage.product.control}
    url = stage.product.control + "/console"
    async with stage.session.post(f"{url}/session", json={"api_key": key}, headers=headers) as answer:
        assert answer.status == 204, await answer.text()
        headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
    page: Any = {"limits": [], "spend_limits": []}

    async def is_settled() -> bool:
        nonlocal page
        async with stage.session.get(f"{url}/usage/data", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            page = await answer.json()
        uses = {(type, unit): amounts[type] for type, unit, _ in LIMITS}
        return uses_of(page) == uses and {one["spent"] for one in page["spend_limits"]} == {str(cost_of(calls))}

    await eventually(is_settled, lambda: f"limits use {amounts}: {page}", every_s=0.2)
    return page


@pytest.mark.parametrize(("mode", "counted"), [("CASCADING", ("middle", "lower")), ("INDEPENDENT", ("middle",))])
async def test_used_part_of_each_limit_equals_the_totals_of_the_usage_page_and_the_billed_tokens(
    stage: Stage, mode: str, counted: tuple[str, ...]
) -> None:
    keys = await keys_of_tree(stage, mode)
    for level, calls in CALLS.items():
        for tokens in calls:
            await stage.ask(keys[level], messages=[{"role": "user", "content": Question(tokens, 1, 0).text()}])
    own = amounts_of(await billed(stage, "middle"))
    whole = amounts_of(await billed(stage, "middle", "lower"))
    assert whole == amounts_of([*CALLS["middle"], *CALLS["lower"]])

    page = await settled_page(stage, keys["middle"], await billed(stage, *counted))
    (of_slug,) = page["slugs"]
    assert of_slug["slug"] == stage.slug
    for totals in (page["totals"]["day"], page["totals"]["month"], of_slug):
        assert (amounts_in(totals), amounts_in(totals["with_groups_below"])) == (own, whole)
    for limit in page["limits"]:
        totals = page["totals"][limit["unit"].lower()]
        same_calls = totals["with_groups_below"] if mode == "CASCADING" else totals
        assert limit["current_usage"] == amounts_in(same_calls)[limit["type"]], limit
    assert [one["unit"] for one in page["spend_limits"]] == ["DAY", "MONTH"]
    for limit in page["spend_limits"]:
        totals = page["totals"][limit["unit"].lower()]
        same_calls = totals["with_groups_below"] if mode == "CASCADING" else totals
        assert same_calls["cost"] == {"EUR": limit["spent"]}, limit
