"""HARD spend limits on the path of a call: the bound that is reserved, the cap that goes upstream, and the refusals."""

import asyncio
import json
import logging
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from policy.endpoints import Target
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.prices import Price, amount_text, token_prices
from policy.snapshot import PriceRow
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_book import SpendBook
from policy.spend.spend_hash import LIMB, UNITS_PER_PICO, amount_of_picos, spent_field
from proxy.accounting.slug_prices import SlugPrices
from proxy.answers import EndCause, RefusingLimit
from tests.fakes.directory import SLUG
from tests.fakes.path import PathRig, now_ms
from tests.fakes.spend import FakeSpend, LaterSpend
from tests.fakes.upstream_client import SSE, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing, asking

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
HARD_DAY = SpendLimit(Unit.DAY, Decimal(1), "EUR", SpendEnforcement.HARD)
INPUT = 3 * LIMB // 1_000_000
OUTPUT = 15 * LIMB // 1_000_000
PER_CALL = LIMB // 100
"""The rig's price, in 10^-12: of a token of input, of one of output, and of a call."""
ASSUMED = 8192
USED = b'{"model":"m","usage":{"prompt_tokens":%d,"completion_tokens":%d}}'
SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: SAID,
    COMPLETIONS: {"prompt": "hi"},
    MESSAGES: SAID,
    RESPONSES: {"input": "x"},
}
VENDOR_A = Target("VENDOR_A", secret_id="s1", target_model="their-model")
VENDOR_B = Target("VENDOR_B", secret_id="s1", target_model="their-model")
SERVER = Target("VENDOR_B_COMPATIBLE", base_url="https://x.test/v1", target_model="their-model")


def new_rig(
    *limits: SpendLimit, spend: FakeSpend | None = None, max_input: int | None = None, max_output: int | None = None
) -> PathRig:
    """A slug of 3 and 15 EUR a million tokens and 0.01 EUR a call, and spend limits of its group."""
    rig = PathRig(spend=spend or FakeSpend(now_ms))
    rig.directory.limit(Limit(LimitType.REQUEST, Unit.DAY, 10))
    its_price = Price(
        *(SLUG, 0, "EUR", token_prices(Decimal(3), Decimal(15)), Decimal("0.01")),
        max_input_tokens=max_input,
        max_output_tokens=max_output,
    )
    rig.directory.prices[SLUG] = SlugPrices(PriceRow(SLUG, "w1", (its_price,)))
    rig.directory.limit_spend(*(limits or (HARD_DAY,)))
    rig.spend.count(rig.directory.spend["g1"])
    return rig


def book(rig: PathRig) -> SpendBook:
    [only] = rig.spend.books.values()
    return only


def requests(rig: PathRig) -> int:
    """The day's requests that limits have counted."""
    hashes = [counts for one in rig.counters.books.values() for counts in one.groups.values()]
    return sum(counts.count((LimitType.REQUEST, Unit.DAY)) for counts in hashes)


def posted(path: str, **members: Any) -> FakeIncoming:
    return FakeIncoming(path).saying({"model": SLUG, **BODIES[path], **members})


def most_picos(incoming: FakeIncoming, output: int) -> int:
    """The most that a call with so much output can cost."""
    return (incoming.declared_bytes or 0) * INPUT + output * OUTPUT + PER_CALL


def leave(rig: PathRig, picos: int) -> None:
    """Have so much left of the day's amount."""
    book(rig).spent[spent_field("g1", Unit.DAY, now_ms())] = (LIMB - picos) * UNITS_PER_PICO


def sent(rig: PathRig) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes(rig.upstream.calls[-1].body))
    return body


async def in_flight(rig: PathRig, incoming: FakeIncoming) -> "asyncio.Task[None]":
    rig.upstream.will(asyncio.Event())
    task = asyncio.create_task(rig.pipeline.handle(incoming, FakeOutgoing()))
    await rig.upstream.wait_start.wait()
    return task


@pytest.mark.parametrize(
    ("members", "output"),
    [({"max_tokens": 100}, 100), ({"max_tokens": 100, "n": 3}, 300), ({}, ASSUMED), ({"max_tokens": -1}, ASSUMED)],
)
async def test_call_reserves_the_most_that_it_can_cost(members: dict[str, Any], output: int) -> None:
    rig = new_rig()
    incoming = asking(**members)
    task = await in_flight(rig, incoming)
    assert book(rig).reserved == {"g1": most_picos(incoming, output)}
    task.cancel()
    await asyncio.wait([task])
    rig.check_settled()


async def test_price_that_rises_before_the_deadline_is_reserved() -> None:
    rig = new_rig()
    dated = [
        Price(SLUG, valid_from_ms, "EUR", token_prices(Decimal(3), Decimal(output)), Decimal("0.01"))
        for valid_from_ms, output in ((0, 15), (now_ms() + 1_800_000, 45), (now_ms() + 3_600_000, 900))
    ]
    rig.directory.prices[SLUG] = SlugPrices(PriceRow(SLUG, "w1", tuple(dated)))
    incoming = asking(max_tokens=100)
    task = await in_flight(rig, incoming)
    assert book(rig).reserved == {"g1": most_picos(incoming, 3 * 100)}
    task.cancel()
    await asyncio.wait([task])


async def test_call_without_a_cap_gets_what_the_price_says_at_most() -> None:
    rig = new_rig(max_output=500)
    rig.upstream.will(answer(USED % (1, 1)))
    outgoing = await rig.serve(asking())
    assert sent(rig)["max_completion_tokens"] == 500
    assert outgoing.header("x-tollgate-output-cap") is None, "it is no lower than what is reserved"


async def test_body_whose_cap_fits_is_not_changed() -> None:
    bodies = []
    for limit in (HARD_DAY, replace(HARD_DAY, enforcement=SpendEnforcement.SOFT)):
        rig = new_rig(limit)
        rig.upstream.will(answer(USED % (1, 1)))
        outgoing = await rig.serve(asking(max_tokens=100))
        assert outgoing.header("x-tollgate-output-cap") is None
        bodies.append(bytes(rig.upstream.calls[-1].body))
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("own", [None, 9000])
@pytest.mark.parametrize(
    ("path", "target", "member"),
    [
        (CHAT, VENDOR_B, "max_tokens"),
        (CHAT, SERVER, "max_tokens"),
        (COMPLETIONS, VENDOR_B, "max_tokens"),
        (MESSAGES, VENDOR_A, "max_tokens"),
        (RESPONSES, VENDOR_B, "max_output_tokens"),
        (CHAT, VENDOR_A, "max_tokens"),
        (RESPONSES, VENDOR_A, "max_tokens"),
        (MESSAGES, VENDOR_B, "max_completion_tokens"),
        (MESSAGES, SERVER, "max_tokens"),
        (RESPONSES, SERVER, "max_output_tokens"),
    ],
)
async def test_cap_is_lowered_to_what_is_left_in_every_dialect(
    path: str, target: Target, member: str, own: int | None, streaming: bool
) -> None:
    rig = new_rig()
    rig.directory.add_slug(SLUG, target)
    own_name = "max_output_tokens" if path == RESPONSES else "max_tokens"
    members: dict[str, Any] = {} if own is None else {own_name: own}
    incoming = posted(path, **members, **({"stream": True} if streaming else {}))
    leave(rig, most_picos(incoming, 40) + OUTPUT - 1)
    rig.upstream.will(answer(b'{"error":{"message":"no"}}', 500))
    outgoing = await rig.serve(incoming)
    body = sent(rig)
    if (path, target, own) == (CHAT, VENDOR_B, None):
        member = "max_completion_tokens"
    caps = {name: body[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body}
    assert caps == {member: 40}
    assert outgoing.header("x-tollgate-output-cap") == "40"
    rig.check_settled()


async def test_lowered_answers_end_within_what_is_reserved() -> None:
    rig = new_rig()
    incoming = asking(n=3, max_tokens=1000)
    leave(rig, most_picos(incoming, 3 * 20))
    rig.upstream.will(answer(USED % (30, 60)))
    outgoing = await rig.serve(incoming)
    assert (sent(rig)["max_tokens"], outgoing.header("x-tollgate-output-cap")) == (20, "20")
    assert list(rig.spend.ended.values()) == [30 * INPUT + 60 * OUTPUT + PER_CALL]
    assert rig.meters.spend_overruns == 0


async def test_thinking_budget_is_left_whole() -> None:
    rig = new_rig()
    rig.directory.add_slug(SLUG, VENDOR_A)
    incoming = posted(MESSAGES, max_tokens=4000, thinking={"type": "enabled", "budget_tokens": 2000})
    leave(rig, most_picos(incoming, 2016))
    rig.upstream.will(answer(USED % (1, 1)))
    assert (await rig.serve(incoming)).header("x-tollgate-output-cap") == "2016"
    assert sent(rig)["max_tokens"] == 2016
    leave(rig, most_picos(incoming, 2016) - 1 + sum(rig.spend.ended.values()))
    assert (await rig.serve(incoming.saying(sent(rig) | {"model": SLUG, "max_tokens": 4000}))).status == 429


async def test_call_that_does_not_fit_now_is_refused_as_by_a_soft_limit() -> None:
    rig = new_rig()
    incoming = asking()
    leave(rig, most_picos(incoming, 16) - 1)
    outgoing = await rig.serve(incoming)
    message = "Spend limit exceeded: 1.00 EUR per DAY"
    assert (outgoing.status, outgoing.json) == (429, {"error": message, "error_code": "SPEND_LIMIT_EXCEEDED"})
    assert rig.meters.decisions == [("refused", "SPEND", "DAY")]
    assert requests(rig) == 0, "what limits took is returned"
    rig.check_settled()


async def test_reservations_refuse_for_a_minute_at_most() -> None:
    rig = new_rig()
    book(rig).reserved["g1"] = LIMB
    outgoing = await rig.serve(asking())
    assert outgoing.json["error_code"] == "SPEND_LIMIT_EXCEEDED"
    assert 1 <= int(outgoing.header("retry-after") or 0) <= 60


async def test_call_that_no_window_could_hold_is_a_400() -> None:
    month = SpendLimit(Unit.MONTH, Decimal("0.01"), "EUR", SpendEnforcement.HARD)
    rig = new_rig(HARD_DAY, month)
    incoming = asking()
    outgoing = await rig.serve(incoming)
    assert (outgoing.status, outgoing.json["error_code"]) == (400, "ABOVE_SPEND_LIMIT")
    cost = amount_text(amount_of_picos(most_picos(incoming, 16)))
    assert f"up to {cost} EUR" in outgoing.json["error"]
    assert "a spend limit is 0.01 EUR per MONTH" in outgoing.json["error"]
    limit = RefusingLimit("g1", "SPEND", "MONTH", "0.01")
    assert rig.meters.calls[-1].end_cause == EndCause("above_spend_limit", limit)
    assert not rig.spend.takes
    rig.check_settled()


async def test_soft_limit_beside_a_hard_one_makes_no_400() -> None:
    soft = SpendLimit(Unit.MONTH, Decimal("0.001"), "EUR")
    rig = new_rig(HARD_DAY, soft)
    rig.upstream.will(answer(USED % (1, 1)))
    assert (await rig.serve(asking())).status == 200


PICTURE = {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}]}


@pytest.mark.parametrize(
    ("path", "members", "max_input", "missing"),
    [
        (CHAT, PICTURE, None, "max_input_tokens"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305"}]}, 9, "tools.0.max_uses"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, 9, "max_tool_calls"),
        ("/v1/audio/speech", {"input": "hi"}, None, "max_output_tokens"),
    ],
)
async def test_call_without_a_bound_is_a_402_that_names_what_is_missing(
    path: str, members: dict[str, Any], max_input: int | None, missing: str
) -> None:
    rig = new_rig(max_input=max_input)
    outgoing = await rig.serve(FakeIncoming(path).saying({"model": SLUG, **BODIES.get(path, {}), **members}))
    assert (outgoing.status, outgoing.json["error_code"]) == (402, "UNPRICED")
    assert missing in outgoing.json["error"]
    assert (requests(rig), rig.spend.takes) == (0, [])


@pytest.mark.parametrize(
    ("path", "members"),
    [
        (CHAT, '"max_tokens":90000,"max_tokens":10'),
        (CHAT, '"n":50,"n":1'),
        (CHAT, '"max_tok\\u0065ns":90000,"max_tokens":10'),
        (MESSAGES, '"tools":[{"type":"web_search_20250305","type":"custom","name":"x"}]'),
        (COMPLETIONS, '"prompt":["a","b"],"prompt":"a"'),
        (COMPLETIONS, '"Prompt":["a","b"]'),
        (CHAT, '"Tools":[{"type":"web_search"}]'),
    ],
)
@pytest.mark.parametrize("more_bytes", [0, 20_000])
async def test_body_that_servers_could_read_differently_is_a_400(path: str, members: str, more_bytes: int) -> None:
    rig = new_rig()
    own = json.dumps({"model": SLUG, **BODIES[path], "user": "a" * more_bytes})[1:]
    outgoing = await rig.serve(FakeIncoming(path).saying(b"{%b,%b" % (members.encode(), own.encode())))
    assert outgoing.status == 400, outgoing.json
    assert not rig.spend.takes
    rig.check_settled()


@pytest.mark.parametrize("target", [SERVER, VENDOR_B])
async def test_cap_in_the_vendors_name_is_sent_as_servers_of_others_know_it(target: Target) -> None:
    rig = new_rig()
    rig.directory.add_slug(SLUG, target)
    rig.upstream.will(answer(USED % (1, 1)))
    await rig.serve(asking(max_completion_tokens=50))
    body = sent(rig)
    assert body["max_completion_tokens"] == 50
    assert body.get("max_tokens") == (None if target is VENDOR_B else 50)


@pytest.mark.parametrize("currency", [None, "USD"])
async def test_slug_without_a_price_in_the_currency_is_a_402(currency: str | None) -> None:
    rig = new_rig()
    rig.directory.prices.clear()
    if currency:
        rig.directory.price("3", "15", currency=currency)
    outgoing = await rig.serve(asking())
    assert outgoing.status == 402
    assert f"{SLUG} has no price in EUR" in outgoing.json["error"]


async def test_limit_that_cannot_be_decided_is_a_503_and_takes_nothing() -> None:
    rig = new_rig()
    rig.spend.may_reserve = False
    outgoing = await rig.serve(asking())
    assert (outgoing.status, outgoing.json["error_code"]) == (503, "LIMITS_UNAVAILABLE")
    assert rig.meters.decisions == [("unavailable", "", "")]
    assert requests(rig) == 0
    rig.check_settled()


async def test_count_of_tokens_reserves_nothing() -> None:
    rig = new_rig()
    incoming = posted(MESSAGES)
    incoming.request_target = "/v1/messages/count_tokens"
    assert (await rig.serve(incoming)).status == 200
    assert book(rig).reserved == {"g1": 0}
    rig.check_settled()


async def test_report_above_the_reservation_is_billed_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    rig = new_rig()
    incoming = asking(max_tokens=10)
    rig.upstream.will(answer(USED % (9, 5000)))
    with caplog.at_level(logging.WARNING):
        await rig.serve(incoming)
    assert rig.meters.spend_overruns == 1
    assert list(rig.spend.ended.values()) == [9 * INPUT + 5000 * OUTPUT + PER_CALL]
    [line] = [record.getMessage() for record in caplog.records if "reserved" in record.getMessage()]
    reserved = amount_text(amount_of_picos(most_picos(incoming, 10)))
    assert f"slug {SLUG}: 0.085027 of {reserved} EUR" in line


def words(count: int, **usage: Any) -> bytes:
    """A frame of so many tokens of text."""
    delta = {"choices": [{"index": 0, "delta": {"content": "word " * count}}]}
    return b"data: %b\n\n" % json.dumps({"id": "c", "object": "chat.completion.chunk", **delta, **usage}).encode()


@pytest.mark.parametrize(("enforcement", "billed"), [(SpendEnforcement.SOFT, 2000), (SpendEnforcement.HARD, 40)])
async def test_counted_output_is_never_above_what_was_reserved(enforcement: SpendEnforcement, billed: int) -> None:
    rig = new_rig(replace(HARD_DAY, enforcement=enforcement))
    rig.upstream.will(answer(headers=SSE, pieces=[words(2000), b"data: [DONE]\n\n"]))
    await rig.serve(asking(max_tokens=20, n=2, stream=True))
    [closed] = rig.journal.closed
    assert closed.source == "COUNTED"
    assert closed.tokens.output == billed
    assert rig.meters.spend_overruns == 0
    [(_, progressed), *_] = rig.journal.progressed
    assert progressed.output == closed.tokens.output, "what a dead worker's call would be billed"
    rig.check_settled()


async def test_counted_input_is_never_above_what_was_reserved() -> None:
    rig = new_rig(max_input=30)
    rig.upstream.will(answer(headers=SSE, pieces=[words(2), b"data: [DONE]\n\n"]))
    await rig.serve(asking(messages=[{"role": "user", "content": "word " * 200}], max_tokens=20, stream=True))
    [closed] = rig.journal.closed
    assert closed.tokens.input == 30
    assert rig.meters.spend_overruns == 0


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
