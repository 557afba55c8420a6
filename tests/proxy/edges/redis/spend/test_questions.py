"""Calls as take.lua gets them, and its refusals."""

import asyncio

import hiredis

from policy.spend.spend_hash import pack_amount
from proxy.accounting.spend_taken import GUESS_MS, SpendHit
from proxy.edges.redis.scripts import Script
from proxy.edges.redis.spend.questions import CALLS_MOST, CompiledSpendPlan, SpendTake
from proxy.edges.redis.spend.scripts import take_template
from tests.contracts.redis.spend_world import INCARNATION, hard, limits, plan_of

PLAN = plan_of(("team", limits(day="2")), ("root", limits(month="1")))
SCRIPT = Script(b"return 1", b"a" * 40)


def compiled() -> CompiledSpendPlan:
    return CompiledSpendPlan(PLAN, SCRIPT, INCARNATION)


async def test_a_take_has_the_calls_that_are_still_awaited() -> None:
    take = SpendTake(compiled(), lambda _take, _reply: None)
    answers = [asyncio.get_running_loop().create_future() for _ in range(3)]
    take.calls = [(answer, f"key-{place}", place, 0) for place, answer in enumerate(answers)]
    answers[1].cancel()
    take.order_calls()
    for with_text, script in ((False, [b"EVALSHA", SCRIPT.sha]), (True, [b"EVAL", SCRIPT.text])):
        reader = hiredis.Reader()
        reader.feed(take.encode(with_text=with_text))
        arguments = [*take_template(PLAN, INCARNATION), b"pkey-0", pack_amount(0), b"pkey-2", pack_amount(2)]
        assert reader.gets() == [*script, b"1", PLAN.key.encode(), *arguments]


async def test_calls_that_hard_limits_bind_have_two_amounts_and_the_least_come_first() -> None:
    plan = plan_of(("root", hard(day="1")))
    take = SpendTake(CompiledSpendPlan(plan, SCRIPT, INCARNATION), lambda _take, _reply: None)
    loop = asyncio.get_running_loop()
    take.calls = [(loop.create_future(), key, 9, least) for key, least in (("much", 9), ("none", 0), ("some", 1))]
    take.order_calls()
    reader = hiredis.Reader()
    reader.feed(take.encode())
    calls = [b"pnone", pack_amount(0) + pack_amount(9), b"psome", pack_amount(1) + pack_amount(9)]
    assert reader.gets()[-6:] == [*calls, b"pmuch", pack_amount(9) + pack_amount(9)]


async def test_a_take_of_more_calls_than_a_command_holds_is_split_in_order() -> None:
    take = SpendTake(compiled(), lambda _take, _reply: None)
    answer = asyncio.get_running_loop().create_future()
    take.calls = [(answer, f"key-{place}", place, 0) for place in range(CALLS_MOST + 2)]
    first = take.split()
    assert [picos for _, _, picos, _ in first.calls] == list(range(CALLS_MOST))
    assert [picos for _, _, picos, _ in take.calls] == [CALLS_MOST, CALLS_MOST + 1]
    assert first.plan is take.plan


def test_a_refusal_names_its_bound_and_how_long_it_lasts() -> None:
    assert compiled().hit([0, 2, 0]) == SpendHit(PLAN.bounds[1], GUESS_MS, False)
    assert compiled().hit([0, 1, 5_000]) == SpendHit(PLAN.bounds[0], 5_000, True)
    assert compiled().hit([3, 1, -5, b"epoch", b""]) == SpendHit(PLAN.bounds[0], GUESS_MS, False)


def test_a_refusal_behind_all_limits_is_of_the_balance() -> None:
    plan = plan_of(("team", limits(day="2")), ("root", limits(month="1")), deposits={"root": "5"})
    compiled = CompiledSpendPlan(plan, SCRIPT, INCARNATION)
    assert compiled.hit([0, 2, 0, b"epoch"]) == SpendHit(plan.bounds[1], GUESS_MS, False)
    assert plan.balance is not None
    assert compiled.hit([0, 3, 1, b"epoch"]) == SpendHit(plan.balance, 1, True)
    assert compiled.hit([0, 3, 0, b"epoch"]) == SpendHit(plan.balance, GUESS_MS, False)
