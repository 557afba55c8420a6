"""Prepaid balances on the path of a call: what is reserved, whose balance the event names, and the refusals."""

import asyncio
import json
import logging
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from policy.billing import BillingEvent
from policy.limits.alerts import ReachedLimit
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.spend.balances import Balance
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_book import SpendBook
from policy.spend.spend_hash import LIMB, UNITS_PER_PICO, spent_field
from proxy.accounting.recovery import Ledger, join_events
from proxy.answers import EndCause, RefusingLimit
from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig, now_ms
from tests.fakes.spend import FakeSpend, LaterSpend
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

BALANCE = Balance("EUR", Decimal(1))
NAME = "g0*"
"""The name of the balance in the hash."""
HARD_DAY = SpendLimit(Unit.DAY, Decimal(1), "EUR", SpendEnforcement.HARD)
SOFT_DAY = SpendLimit(Unit.DAY, Decimal(1), "EUR")
INPUT = 3 * LIMB // 1_000_000
OUTPUT = 15 * LIMB // 1_000_000
PER_CALL = LIMB // 100
"""The rig's price, in 10^-12: of a token of input, of one of output, and of a call."""
EXHAUSTED = "The prepaid balance has no credit left for this call; ask for a top-up"
USED = b'{"model":"m","usage":{"prompt_tokens":%d,"completion_tokens":%d}}'


def new_rig(*limits: SpendLimit, balance: Balance = BALANCE, spend: FakeSpend | None = None) -> PathRig:
    """A slug of 3 and 15 EUR a million tokens and 0.01 EUR a call, and a balance of the group above the caller's."""
    rig = PathRig(spend=spend or FakeSpend(now_ms))
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 10))
    rig.directory.price("3", "15", "0.01")
    rig.directory.prepay(balance, *limits)
    rig.spend.count(rig.directory.spend["g1"])
    return rig


def book(rig: PathRig) -> SpendBook:
    [only] = rig.spend.books.values()
    return only


def requests(rig: PathRig) -> int:
    """The day's requests that limits have counted."""
    hashes = [counts for one in rig.counters.books.values() for counts in one.groups.values()]
    return sum(counts.count((LimitType.REQUEST, Unit.DAY)) for counts in hashes)


def most_picos(incoming: FakeIncoming, output: int) -> int:
    """The most that a call with so much output can cost."""
    return (incoming.declared_bytes or 0) * INPUT + output * OUTPUT + PER_CALL


def draw(rig: PathRig, picos: int = LIMB) -> None:
    """Have so much drawn from the balance."""
    book(rig).spent[spent_field(NAME, None, 0)] = picos * UNITS_PER_PICO


async def test_call_reserves_the_most_that_it_can_cost_until_its_cost_is_known() -> None:
    rig = new_rig()
    incoming = asking(max_tokens=100)
    rig.upstream.will(asyncio.Event())
    task = asyncio.create_task(rig.pipeline.handle(incoming, FakeOutgoing()))
    await rig.upstream.wait_start.wait()
    assert book(rig).reserved == dict.fromkeys(("g1", NAME), most_picos(incoming, 100))
    task.cancel()
    await asyncio.wait([task])
    rig.check_settled()


async def test_answered_call_keeps_its_cost_reserved_until_its_event_is_counted() -> None:
    rig = new_rig()
    rig.upstream.will(answer(USED % (1000, 200)))
    assert (await rig.serve(asking())).status == 200
    cost = 1000 * INPUT + 200 * OUTPUT + PER_CALL
    assert list(rig.spend.ended.values()) == [cost]
    assert book(rig).reserved == {"g1": cost, NAME: cost}
    rig.check_settled()


async def test_event_names_the_group_whose_balance_it_draws_from() -> None:
    rig = new_rig()
    rig.upstream.will(answer(USED % (1, 1)))
    await rig.serve(asking())
    assert [opened.balance_group for opened in rig.journal.opened] == ["g0"]


async def test_event_of_a_call_that_draws_from_no_balance_names_none() -> None:
    rig = new_rig()
    rig.directory.limit_spend(HARD_DAY)
    rig.spend.count(rig.directory.spend["g1"])
    rig.upstream.will(answer(USED % (1, 1)))
    assert (await rig.serve(asking())).status == 200
    assert [opened.balance_group for opened in rig.journal.opened] == [""]


async def test_balance_that_is_drawn_is_a_402_that_clients_do_not_retry() -> None:
    rig = new_rig()
    draw(rig)
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json) == (402, {"error": EXHAUSTED, "error_code": "BALANCE_EXHAUSTED"})
    assert outgoing.header("retry-after") is None
    assert outgoing.header("x-ratelimit-limit-requests") == "10"
    assert requests(rig) == 0, "what limits took is returned"
    assert rig.meters.decisions == [("refused", "BALANCE", "")]
    assert rig.meters.limits_reached == [ReachedLimit("w1", "g0", slug="", type="", unit="", deposited="1.00")]
    assert [call.cause for call in rig.meters.calls] == ["balance"]
    assert not rig.journal.opened
    rig.check_settled()


async def test_balance_that_calls_in_flight_hold_is_not_told_as_drawn() -> None:
    rig = new_rig()
    book(rig).reserved[NAME] = LIMB
    assert (await rig.serve(asking())).json["error_code"] == "BALANCE_EXHAUSTED"
    assert rig.meters.limits_reached == []


async def test_call_above_all_that_was_paid_in_is_a_402_and_not_told_as_drawn() -> None:
    """A limit's amount would be a 400. A balance may be topped up."""
    rig = new_rig(balance=replace(BALANCE, deposited=Decimal("0.005")))
    outgoing = await rig.serve(asking(max_tokens=1))
    assert (outgoing.status, outgoing.json["error_code"]) == (402, "BALANCE_EXHAUSTED")
    assert rig.meters.decisions == [("refused", "BALANCE", "")]
    assert rig.meters.limits_reached == []
    rig.check_settled()


@pytest.mark.parametrize("limit", [HARD_DAY, SOFT_DAY])
async def test_spend_limits_refuse_before_the_balance(limit: SpendLimit) -> None:
    rig = new_rig(limit)
    draw(rig)
    book(rig).spent[spent_field("g1", Unit.DAY, now_ms())] = LIMB * UNITS_PER_PICO
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (429, "SPEND_LIMIT_EXCEEDED")


@pytest.mark.parametrize("limit", [HARD_DAY, SOFT_DAY])
async def test_balance_refuses_what_spend_limits_admit(limit: SpendLimit) -> None:
    rig = new_rig(limit)
    draw(rig)
    assert (await rig.serve(asking())).json["error_code"] == "BALANCE_EXHAUSTED"
    assert rig.meters.calls[-1].end_cause == EndCause("balance", RefusingLimit("g0", "BALANCE", "", ""))
    assert set(book(rig).reserved.values()) <= {0}


async def test_limits_refuse_before_the_balance() -> None:
    rig = new_rig()
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 0))
    draw(rig)
    assert (await rig.serve(asking())).json["error_code"] == "RATE_LIMITED"
    assert rig.meters.limits_reached == [] or rig.meters.limits_reached[0].type == "REQUEST"
    rig.check_settled()


async def test_output_cap_is_lowered_to_what_is_left() -> None:
    rig = new_rig()
    incoming = asking(max_tokens=5000)
    draw(rig, LIMB - most_picos(incoming, 70))
    rig.upstream.will(answer(USED % (1, 1)))
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, outgoing.header("x-tollgate-output-cap")) == (200, "70")
    assert b'"max_tokens": 70' in bytes(rig.upstream.calls[-1].body).replace(b'":7', b'": 7')


@pytest.mark.parametrize("currency", [None, "USD"])
async def test_slug_without_a_price_in_the_balances_currency_is_a_402(currency: str | None) -> None:
    rig = new_rig()
    rig.directory.prices.clear()
    if currency:
        rig.directory.price("3", "15", currency=currency)
    outgoing = await rig.serve(asking())
    message = f"{SLUG} has no price in EUR, and a spend limit or prepaid balance binds; ask the operator to set one"
    assert (outgoing.status, outgoing.json) == (402, {"error": message, "error_code": "UNPRICED"})
    assert (requests(rig), rig.spend.takes) == (0, [])


async def test_call_without_a_bound_is_a_402() -> None:
    rig = new_rig()
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": "https://x"}}]
    outgoing = await rig.serve(asking(messages=[{"role": "user", "content": parts}]))
    assert (outgoing.status, outgoing.json["error_code"]) == (402, "UNPRICED")
    assert "prepaid balance" in outgoing.json["error"]


async def test_balance_that_cannot_be_decided_is_a_503_and_takes_nothing() -> None:
    rig = new_rig()
    rig.spend.may_reserve = False
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (503, "LIMITS_UNAVAILABLE")
    assert rig.meters.decisions == [("unavailable", "", "")]
    assert requests(rig) == 0
    rig.check_settled()


async def test_report_above_the_reservation_is_billed_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    rig = new_rig()
    rig.upstream.will(answer(USED % (9, 5000)))
    with caplog.at_level(logging.WARNING):
        await rig.serve(asking(max_tokens=10))
    assert rig.meters.spend_overruns == 1
    assert list(rig.spend.ended.values()) == [9 * INPUT + 5000 * OUTPUT + PER_CALL]
    [line] = [record.getMessage() for record in caplog.records if "reserved" in record.getMessage()]
    assert "prepaid balance" in line


async def test_call_of_a_worker_that_dies_draws_from_the_balance_that_it_reserved_in() -> None:
    rig = new_rig()
    rig.upstream.will(asyncio.Event())
    task = asyncio.create_task(rig.pipeline.handle(asking(max_tokens=10), FakeOutgoing()))
    await rig.upstream.wait_start.wait()
    ledger = Ledger()
    [record] = rig.journal.open_records
    assert ledger.feed(record, [], 1000) == (len(record), False)
    [event] = map(json.loads, join_events(ledger.orphans()))
    assert BillingEvent.from_wire(event).balance_group == "g0"
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("later", [0, 3])
async def test_call_cancelled_in_any_turn_of_its_admission_returns_both_takes_once(turns: int, later: int) -> None:
    rig = new_rig(spend=LaterSpend(now_ms, later))
    rig.upstream.will(asyncio.Event())
    task = asyncio.create_task(rig.pipeline.handle(asking(), FakeOutgoing()))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    for _ in range(later + 2):
        await asyncio.sleep(0)
    rig.check_settled()
    assert len(rig.spend.ended) == requests(rig) <= len(rig.upstream.calls)
    assert set(book(rig).reserved.values()) <= {0}
