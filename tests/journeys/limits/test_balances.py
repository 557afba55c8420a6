"""Prepaid balances on the whole product: who draws from which, every refusal, and nothing drawn above the credit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.journeys.billing.test_restore import back_up, restore
from tests.journeys.conftest import Stage
from tests.journeys.hard_chaos.callers import CAP_HEADER
from tests.journeys.hard_chaos.machines import flush
from tests.journeys.hard_chaos.orders import Order
from tests.journeys.hard_chaos.vendor import CHAT, MESSAGES, RESPONSES, OddVendor
from tests.journeys.limits.balance_scene import GROUPS, BalanceFigures, BalanceScene, balance_scene_of
from tests.journeys.limits.hard_scene import (
    LOSSES,
    PRICE,
    WHOLE,
    asked_by_sdk,
    capped,
    kill_redis_and_its_data,
    open_call,
    refused_while_open,
)
from tests.journeys.product import kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.timeout(180)
COST = Decimal("0.01601")
"""The cost of `call_of_16`."""


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    vendor = OddVendor()
    async with ScriptedUpstream(default=vendor.answer, port=own_port()) as upstream:
        yield upstream
    assert vendor.faults == []


async def call_of_16(scene: BalanceScene, key: str = "", ending: str = "told") -> tuple[int, str]:
    """Make a call that can be capped no lower; return the status and the error code."""
    order = Order(input=10, output=WHOLE, ending=ending)
    status, answer, _ = await scene.call(order, key=key, cap=16)
    return status, answer.get("error_code", "")


async def is_exhausted(scene: BalanceScene, key: str = "") -> None:
    """Call until the balance refuses."""

    async def look() -> bool:
        status, code = await call_of_16(scene, key)
        assert (status, code) in ((200, ""), (402, "BALANCE_EXHAUSTED"), (503, "LIMITS_UNAVAILABLE"))
        return status == 402

    await scene.stage.until(look, "the balance is exhausted")


async def is_answered(scene: BalanceScene, key: str = "") -> None:
    async def look() -> bool:
        status, code = await call_of_16(scene, key)
        assert status in (200, 402, 503), (status, code)
        return status == 200

    await scene.stage.until(look, "a call is answered")


# --- caps and refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "stop", "stream"), capped(1))
async def test_cap_is_lowered_to_the_credit_that_is_left_then_calls_are_402(
    stage: Stage, path: str, stop: str, stream: bool
) -> None:
    scene = await balance_scene_of(stage, "0.2")
    text = Order(input=10, output=WHOLE).text()
    reason, headers = await asked_by_sdk(scene, path, text, stream=stream)
    assert reason == stop
    assert headers[CAP_HEADER] == "199", "0.2 less a millionth for each byte of the body"
    rest = Decimal("0.2") - Decimal("0.19901")
    assert await scene.settled_balance() == BalanceFigures(Decimal("0.2"), Decimal("0.19901"), Decimal(0), rest)
    status, answer, refused = await scene.call(Order(output=1), path, cap=4_000)
    assert (status, answer["error_code"]) == (402, "BALANCE_EXHAUSTED"), answer
    assert "balance" in str(answer)
    assert scene.group_id not in str(answer)
    assert "Retry-After" not in refused


def counting_client(module: Any, calls: list[str]) -> Any:
    """An HTTP client of an SDK that records each request."""

    async def note(request: Any) -> None:
        calls.append(str(request.url))

    return module.DefaultAsyncHttpxClient(event_hooks={"request": [note]})


async def test_sdks_raise_their_error_of_status_402_and_do_not_retry(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "0.02")
    await is_exhausted(scene)
    calls: list[str] = []
    url = stage.product.proxy
    message: Any = {"role": "user", "content": Order(output=1).text()}
    async with openai.AsyncOpenAI(
        base_url=url + "/v1", api_key=scene.key, max_retries=2, http_client=counting_client(openai, calls)
    ) as client:
        with pytest.raises(openai.APIStatusError) as chat:
            await client.chat.completions.create(model=scene.slug(CHAT), messages=[message], max_tokens=16)
        with pytest.raises(openai.APIStatusError) as responses:
            await client.responses.create(model=scene.slug(RESPONSES), input=message["content"], max_output_tokens=16)
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key=scene.key, max_retries=2, http_client=counting_client(anthropic, calls)
    ) as claude:
        with pytest.raises(anthropic.APIStatusError) as messages:
            await claude.messages.create(model=scene.slug(MESSAGES), messages=[message], max_tokens=16)
    for raised in (chat.value, responses.value, messages.value):
        assert raised.status_code == 402
        assert "BALANCE_EXHAUSTED" in raised.response.text
        assert "balance" in raised.response.text
    assert len(calls) == 3


async def test_balance_comes_behind_limits_and_its_refusal_counts_against_none(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "0.02")
    limit = {"type": "REQUEST", "unit": "DAY", "threshold": 5}
    spend_limit = {"unit": "DAY", "amount": "0.5", "currency": "EUR", "enforcement": "HARD"}
    models = [{"slug": scene.slug(CHAT), "usage_limits": [limit]}]
    changes = {"models": models, "spend_limits": [spend_limit]}
    await stage.operator.call("PATCH", f"{GROUPS}/{scene.group_id}", changes)
    await is_exhausted(scene)
    key = await stage.operator.key(scene.group_id)  # who knows it knows the limits

    async def is_known() -> bool:
        return await call_of_16(scene, key) == (402, "BALANCE_EXHAUSTED")

    await stage.until(is_known, "the new key is refused for the balance")
    for _ in range(10):
        await stage.until(is_known, "the limit has room again: refused calls were given back")
    changes["spend_limits"] = [spend_limit | {"amount": "0"}]
    await stage.operator.call("PATCH", f"{GROUPS}/{scene.group_id}", changes)

    async def is_limited() -> bool:
        status, code = await call_of_16(scene)
        assert (status, code) in ((402, "BALANCE_EXHAUSTED"), (429, "SPEND_LIMIT_EXCEEDED"), (400, "ABOVE_SPEND_LIMIT"))
        return status != 402

    await stage.until(is_limited, "the spend limit refuses first")


async def test_call_of_a_slug_without_a_price_is_402_unpriced(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "1")
    price = PRICE | {"slug": scene.slug(CHAT), "currency": "USD"}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)

    async def is_unpriced() -> bool:
        status, code = await call_of_16(scene)
        return (status, code) == (402, "UNPRICED")

    await stage.until(is_unpriced, "a call without a price in the balance's currency is refused")


# --- who draws from which --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["CASCADING", "INDEPENDENT"])
async def test_calls_draw_from_the_nearest_balance_up_their_path(stage: Stage, mode: str) -> None:
    scene = BalanceScene(stage, Decimal("0.5"))
    await scene.make_slugs()
    root = await scene.member("root", limit_enforcement=mode)
    team = await scene.member("team", parent_group_id=root)
    low = await scene.member("low", parent_group_id=team)
    other = await scene.member("other", parent_group_id=root)
    await scene.credit("0.5", "r", root)
    await scene.credit("0.04", "t", team)
    keys = {name: await stage.operator.key(id) for name, id in (("low", low), ("team", team), ("other", other))}
    for key in keys.values():
        await scene.is_admitted(key)
    assert await call_of_16(scene, keys["low"]) == (200, "")
    assert await call_of_16(scene, keys["team"]) == (200, "")
    await is_exhausted(scene, keys["low"])
    assert await call_of_16(scene, keys["team"]) == (402, "BALANCE_EXHAUSTED")
    assert await call_of_16(scene, keys["other"]) == (200, "")
    rest = await scene.settled_balance("low", "team", group_id=team)
    assert rest == BalanceFigures(Decimal("0.04"), 2 * COST, Decimal(0), Decimal("0.04") - 2 * COST)
    rest = await scene.settled_balance("other", group_id=root)
    assert rest == BalanceFigures(Decimal("0.5"), COST, Decimal(0), Decimal("0.5") - COST)
    status, answer = await stage.operator.ask("GET", f"{GROUPS}/{other}/balance")
    assert status == 404, answer


async def test_top_up_is_live_and_a_reference_counts_once(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "0.02")
    await is_exhausted(scene)
    first = await scene.credit("0.02", "second")
    await is_answered(scene)
    assert await scene.credit("0.02", "second") == first
    status, answer = await scene.try_credit("0.03", "second")
    assert status == 409, answer
    status, answer = await scene.try_credit("1", "third", currency="USD")
    assert status == 409, answer
    assert (await scene.settled_balance()).credited == Decimal("0.04")
    credits = [entry["reference"] for entry in await scene.entries() if entry["type"] == "CREDIT"]
    assert sorted(credits) == ["first", "second"]


async def test_group_with_credit_left_is_deleted_only_when_it_is_forfeited(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "1")
    await is_answered(scene)
    await scene.settled_balance()
    path = f"{GROUPS}/{scene.group_id}"
    status, answer = await stage.operator.ask("DELETE", path)
    assert status == 409, answer
    assert "forfeit" in str(answer)
    assert await call_of_16(scene) == (200, "")
    status, answer = await stage.operator.ask("DELETE", path, forfeit="true")
    assert status == 200, answer
    status, answer = await stage.operator.ask("GET", path + "/balance")
    assert status == 404, answer


# --- races -----------------------------------------------------------------------------------------------------------


async def test_callers_who_race_for_the_last_credit_never_draw_more(stage: Stage) -> None:
    """None ends before all others are decided on. There is room for three."""
    scene = await balance_scene_of(stage, "0.05")
    await scene.settled_balance()
    gate = stage.upstream.gate
    gate.close()
    before = gate.arrivals
    calls = [asyncio.create_task(call_of_16(scene, ending="waits")) for _ in range(30)]

    async def is_decided() -> bool:
        return sum(call.done() for call in calls) + gate.arrivals - before == len(calls)

    try:
        await stage.until(is_decided, "each call is refused or waits at the vendor")
        figures = await scene.balance()
        assert figures is not None
        assert 0 <= figures.available < COST
    finally:
        gate.open()
        ends = Counter(await asyncio.gather(*calls))
    assert ends == {(200, ""): 3, (402, "BALANCE_EXHAUSTED"): 27}
    assert (await scene.settled_balance()).available == Decimal("0.05") - 3 * COST


async def test_withdrawal_takes_only_what_no_call_has_reserved(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "0.2")
    async with open_call(scene):
        status, answer = await scene.try_credit("-0.1", "back")
        assert status == 409, answer
        assert "available" in str(answer)
    rest = (await scene.settled_balance()).available
    assert rest == Decimal("0.00099")
    status, answer = await scene.try_credit(-rest - Decimal("0.00001"), "back")
    assert status == 409, answer
    withdrawal = await scene.credit(-rest, "back")
    assert await scene.credit(-rest, "back") == withdrawal
    figures = await scene.settled_balance()
    assert (figures.credited, figures.available) == (Decimal("0.19901"), Decimal(0))
    assert (await call_of_16(scene))[0] == 402
    await scene.credit("0.1", "again")
    await is_answered(scene)


async def test_withdrawals_and_calls_at_once_take_no_more_than_the_credit(stage: Stage) -> None:
    scene = await balance_scene_of(stage, "0.3")

    async def withdraw(number: int) -> Decimal:
        status, answer = await scene.try_credit("-0.02", f"back-{number}")
        assert status in (200, 409), (status, answer)
        return Decimal("0.02") if status == 200 else Decimal(0)

    async def call() -> int:
        status, code = await call_of_16(scene)
        assert status in (200, 402), (status, code)
        return status

    calls = [asyncio.create_task(call()) for _ in range(40)]
    withdrawn = sum(await asyncio.gather(*(withdraw(number) for number in range(10))), Decimal(0))
    answered = Counter(await asyncio.gather(*calls))[200]
    figures = await scene.settled_balance()
    expected = Decimal("0.3") - withdrawn
    assert figures == BalanceFigures(expected, answered * COST, Decimal(0), expected - answered * COST)
    assert figures.available >= 0


# --- what is lost ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
async def test_what_is_drawn_and_reserved_survives_a_loss_of_redis(killable_stage: Stage, loss: str) -> None:
    stage = killable_stage
    scene = await balance_scene_of(stage, "0.3")
    await is_answered(scene)
    drawn = await scene.settled_balance()
    async with open_call(scene) as task:
        await refused_while_open(scene)
        if "emptied" in loss:
            await flush(stage.product)
        if "killed" in loss:
            for pid in stage.product.processes("redis-server"):
                kill(pid)
        for _ in range(3):
            await refused_while_open(scene)
        await scene.ready()
        await refused_while_open(scene)
    assert task.result()[0] == 200
    figures = await scene.settled_balance()
    assert figures.credited == Decimal("0.3")
    assert figures.spent > drawn.spent
    assert 0 <= figures.available < COST
    await is_exhausted(scene)


@pytest.mark.parametrize("victim", ["proxy.worker", pytest.param("-m proxy --", marks=pytest.mark.soak)])
async def test_call_of_a_dead_process_draws_once(killable_stage: Stage, victim: str) -> None:
    """The journal is all that knows of it when Redis is emptied meanwhile."""
    stage = killable_stage
    scene = await balance_scene_of(stage, "0.2")
    async with open_call(scene):
        for pid in stage.product.processes(victim):
            kill(pid)
        await kill_redis_and_its_data(stage)
        await scene.ready()
    await scene.is_admitted()
    figures = await scene.settled_balance()
    assert 0 <= figures.available <= Decimal("0.2")
    answered = 0

    async def is_used_up() -> bool:
        nonlocal answered
        status, code = await call_of_16(scene)
        assert status in (200, 402), (status, code)
        answered += status == 200
        return status == 402

    await stage.until(is_used_up, "what is left is used up")
    assert (await scene.settled_balance()).spent == figures.spent + answered * COST


async def test_restored_database_admits_nothing_until_later_credits_are_posted_again(
    killable_stage: Stage, tmp_path: Path
) -> None:
    stage = killable_stage
    product = stage.product
    scene = await balance_scene_of(stage, "0.02")
    copy = tmp_path / "backup.db"
    back_up(product.data / "control.db", copy)
    await is_exhausted(scene)
    await scene.credit("0.1", "later")
    for _ in range(4):
        await is_answered(scene)
    before = await scene.settled_balance()
    calls = len(await scene.events())
    assert product.stop() == 0, product.log_tail()
    restore(copy, product.data / "control.db")
    product.start()
    await scene.is_admitted()
    await stage.events_of(f"{stage.name}-prepaid", calls)
    owed = await scene.settled_balance()
    assert owed == BalanceFigures(Decimal("0.02"), before.spent, Decimal(0), Decimal("0.02") - before.spent)
    assert owed.available < 0
    assert await call_of_16(scene) == (402, "BALANCE_EXHAUSTED")
    await scene.credit("0.1", "later")
    await is_answered(scene)
    assert (await scene.settled_balance()).credited == before.credited


# --- prices ----------------------------------------------------------------------------------------------------------


async def test_price_that_is_changed_later_changes_no_draw(killable_stage: Stage) -> None:
    """Control counts the tree anew by the new prices."""
    stage = killable_stage
    scene = await balance_scene_of(stage, "0.1")
    await is_answered(scene)
    before = await scene.settled_balance()
    price = PRICE | {"slug": scene.slug(CHAT), "output_per_million": "2000"}
    await stage.operator.call("PUT", "/v1/gateway/prices", price)

    async def is_raised() -> bool:
        costs = [Decimal(event["cost"]["amount"]) for event in await scene.events()]
        return sum(costs) > before.spent

    await stage.until(is_raised, "lists show the new price")
    await flush(stage.product)
    await scene.is_admitted()
    figures: Any = await stage.until(scene.balance, "the balance is counted again")
    assert figures.spent == before.spent
    draws = [Decimal(entry["amount"]) for entry in await scene.entries() if entry["type"] == "DRAW"]
    assert -sum(draws) == before.spent
