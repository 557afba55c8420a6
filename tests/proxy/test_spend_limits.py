"""Spend limits on the path of a call: what is reserved, refused, replaced by the cost, and returned exactly once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal

import pytest

from policy.limits.effective import Plan
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate
from policy.spend.limits import SpendLimit
from policy.spend.spend_book import SpendBook
from policy.spend.spend_hash import LIMB, spent_field
from proxy.accounting.reservations import LimitHit, Taken
from proxy.answers import EndCause, RefusingLimit
from proxy.errors import CountersUnavailableError, UpstreamUnreachableError
from tests.fakes.counters import FakeCounters, LaterCounters
from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig, now_ms
from tests.fakes.spend import FakeSpend, LaterSpend
from tests.fakes.upstream_client import answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

DAY_1 = SpendLimit(Unit.DAY, Decimal(1), "EUR")
ANSWER = b'{"model":"m","usage":{"prompt_tokens":1000,"completion_tokens":200}}'
COST = LIMB * (1000 * 3 + 200 * 15) // 1_000_000 + LIMB // 100
"""The cost of ANSWER at the rig's price, in 10^-12."""
UNIT = 10**22


def counting() -> FakeIncoming:
    incoming = asking(max_tokens=1)
    incoming.request_target = "/v1/messages/count_tokens"
    return incoming


def new_rig(*limits: SpendLimit, counters: FakeCounters | None = None, spend: FakeSpend | None = None) -> PathRig:
    """A slug of 3 and 15 EUR a million tokens and 0.01 EUR a call, and spend limits of its group."""
    rig = PathRig(counters=counters or FakeCounters(now_ms), spend=spend or FakeSpend(now_ms))
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 10))
    rig.directory.price("3", "15", "0.01")
    rig.directory.limit_spend(*(limits or (DAY_1,)))
    rig.spend.count(rig.directory.spend["g1"])
    return rig


def book(rig: PathRig) -> SpendBook:
    [only] = rig.spend.books.values()
    return only


def requests(rig: PathRig) -> int:
    """The day's requests that limits have counted."""
    hashes = [counts for one in rig.counters.books.values() for counts in one.groups.values()]
    return sum(counts.count((LimitType.REQUEST, Unit.DAY)) for counts in hashes)


def spend(rig: PathRig, units: int) -> None:
    book(rig).spent[spent_field("g1", Unit.DAY, now_ms())] = units


async def test_answered_call_reserves_its_cost_until_its_event_is_counted() -> None:
    rig = new_rig()
    rig.upstream.will(answer(ANSWER))
    assert (await rig.serve(asking())).status == 200
    [opened] = rig.journal.opened
    assert rig.spend.ended == {opened.event_key: COST}
    assert book(rig).reserved == {"g1": COST}
    rig.check_settled()


async def test_call_reserves_its_expected_cost_while_it_is_in_flight() -> None:
    rig = new_rig()
    rig.upstream.will(asyncio.Event())
    incoming = asking(max_tokens=100)
    size = incoming.declared_bytes
    assert size is not None
    task = asyncio.create_task(rig.pipeline.handle(incoming, FakeOutgoing()))
    await rig.upstream.wait_start.wait()
    assert book(rig).reserved == {"g1": (-(-size // 4) * 3 + 100 * 15) * LIMB // 1_000_000 + LIMB // 100}
    task.cancel()
    await asyncio.wait([task])
    rig.check_settled()


@pytest.mark.parametrize("status", [400, 500])
async def test_call_that_was_answered_with_an_error_costs_nothing(status: int) -> None:
    rig = new_rig()
    rig.upstream.will(answer(b'{"error":"no"}', status))
    await rig.serve(asking())
    assert list(rig.spend.ended.values()) == [0]
    assert book(rig).reserved == {"g1": 0}


async def test_call_that_was_never_sent_returns_what_it_took() -> None:
    rig = new_rig()
    rig.upstream.will(UpstreamUnreachableError())
    assert (await rig.serve(asking())).status == 503
    assert (book(rig).reserved, book(rig).reservations, rig.spend.ended) == ({"g1": 0}, {}, {})
    rig.check_settled()


async def test_spent_amount_refuses_until_the_day_ends() -> None:
    rig = new_rig()
    spend(rig, UNIT)
    outgoing = await rig.serve(asking())
    message = "Spend limit exceeded: 1.00 EUR per DAY"
    assert (outgoing.status, outgoing.json) == (429, {"error": message, "error_code": "SPEND_LIMIT_EXCEEDED"})
    left_s = (86_400_000 - now_ms() % 86_400_000) / 1000
    assert abs(int(outgoing.header("retry-after") or 0) - left_s) < 60
    assert requests(rig) == 0, "what limits took is returned"
    assert rig.meters.decisions == [("refused", "SPEND", "DAY")]
    assert rig.meters.calls[-1].end_cause == EndCause("spend_limit", RefusingLimit("g1", "SPEND", "DAY", "1.00"))
    assert not rig.journal.opened
    rig.check_settled()


async def test_reservations_refuse_for_a_minute_at_most() -> None:
    rig = new_rig()
    book(rig).reserved["g1"] = LIMB
    outgoing = await rig.serve(asking())
    assert outgoing.json["error_code"] == "SPEND_LIMIT_EXCEEDED"
    assert 1 <= int(outgoing.header("retry-after") or 0) <= 60


async def test_limits_refuse_before_spend_limits_and_return_what_those_took() -> None:
    rig = new_rig()
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 0))
    outgoing = await rig.serve(asking())
    assert outgoing.json["error_code"] == "RATE_LIMITED"
    assert book(rig).reserved == {"g1": 0}
    rig.check_settled()
    spend(rig, UNIT)
    assert (await rig.serve(asking())).json["error_code"] == "RATE_LIMITED"


@pytest.mark.parametrize("currency", [None, "USD"])
async def test_slug_without_a_price_in_the_currency_is_refused_before_all_limits(currency: str | None) -> None:
    rig = new_rig()
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 0))
    rig.directory.prices.clear()
    if currency:
        rig.directory.price("3", "15", currency=currency)
    outgoing = await rig.serve(asking())
    message = f"{SLUG} has no price in EUR, and a spend limit or prepaid balance binds; ask the operator to set one"
    assert (outgoing.status, outgoing.json) == (402, {"error": message, "error_code": "UNPRICED"})
    assert not rig.spend.takes


async def test_tree_that_nobody_counts_admits_and_reserves_nothing() -> None:
    rig = new_rig()
    rig.spend.books.clear()
    rig.upstream.will(answer(ANSWER))
    assert (await rig.serve(asking())).status == 200
    rig.check_settled()


async def test_count_of_tokens_reserves_nothing_and_is_refused_while_nothing_is_left() -> None:
    rig = new_rig()
    assert (await rig.serve(counting())).status == 200  # answered here: it leaves no event
    assert (rig.spend.ended, len(rig.spend.given_back)) == ({}, 1)
    assert book(rig).reserved == {"g1": 0}
    spend(rig, UNIT)
    assert (await rig.serve(counting())).json["error_code"] == "SPEND_LIMIT_EXCEEDED"
    rig.check_settled()


class BrokenCounters(FakeCounters):
    """Counters without Redis that say so in a later turn."""

    async def take(self, plan: Plan, estimate: Estimate, further: Sequence[Plan] = ()) -> Taken | LimitHit:
        await asyncio.sleep(0)
        raise CountersUnavailableError


async def test_call_that_limits_cannot_decide_returns_what_spend_limits_took() -> None:
    rig = new_rig(counters=BrokenCounters(now_ms))
    assert (await rig.serve(asking())).json["error_code"] == "LIMITS_UNAVAILABLE"
    assert rig.meters.decisions == [("unavailable", "", "")]
    assert book(rig).reserved == {"g1": 0}
    rig.check_settled()


class BrokenSpend(FakeSpend):
    """A bug of ours."""

    def ask(self, plan: object, event_key: str, picos: int, least: int = 0) -> Awaitable[object]:  # type: ignore[override]
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(RuntimeError("a bug"))
        return answer


async def test_call_that_spend_limits_fail_returns_what_limits_took() -> None:
    rig = new_rig(spend=BrokenSpend(now_ms))
    assert (await rig.serve(asking())).status == 502
    assert requests(rig) == 0


@pytest.mark.parametrize("turns", range(10))
@pytest.mark.parametrize("later", [0, 1, 3])
@pytest.mark.parametrize("counters", [FakeCounters, LaterCounters])
async def test_call_cancelled_in_any_turn_of_its_admission_returns_both_takes_once(
    turns: int, later: int, counters: Callable[[Callable[[], int]], FakeCounters]
) -> None:
    rig = new_rig(counters=counters(now_ms), spend=LaterSpend(now_ms, later))
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
