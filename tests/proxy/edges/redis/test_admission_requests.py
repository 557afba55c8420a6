"""The commands that a compiled plan sends; a refusal is repeated from memory only while Redis would still refuse."""

import math
from asyncio import new_event_loop
from contextlib import closing
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from policy.limits.effective import Bound, limit_set, plan_of_limits
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.limits.settlement import Estimate, Reservation, Settlement
from policy.limits.take_numbers import NO_DEADLINE_MS, TakeStamp
from proxy.accounting.reservations import LimitHit, LimitStatus
from proxy.edges.redis.admission_requests import CompiledPlan, PlanPlace, Take, TakeTemplate
from proxy.edges.redis.counters import PLANS_KEPT, RedisCounters
from proxy.edges.redis.nodes.connection import RedisCommand, encode
from proxy.edges.redis.pending_takes import PendingTakes
from proxy.edges.redis.scripts import (
    Script,
    batch_size,
    number_of,
    pack_stamp,
    packed,
    settle_arguments,
)
from proxy.http_rules.headers import rate_limit_lines
from tests.proxy.edges.redis.scripted_nodes import ScriptedNodes, SentBatch, sent_batch
from tests.redis_counters import take_arguments

BOUND = Bound(Limit(LimitType.REQUEST, Unit.MINUTE, 5), "g", "g")
PLAN = plan_of_limits("acme/chat", "g", "tg:{g|acme/chat}", (BOUND.limit,))
NO_PLACE = partial(PlanPlace, free=lambda _place: None)
SCRIPT = Script(b"return 0", b"0" * 40)


def compiled() -> CompiledPlan:
    return CompiledPlan(PLAN, TakeTemplate(SCRIPT, 1000, "worker", lambda _take: None, NO_PLACE))


@given(
    sent_at=st.floats(0, 1e6),
    transit=st.floats(0, 0.05),
    hard_ms=st.integers(1, 90_000),
    asks_again_after=st.floats(0, 2),
)
@example(sent_at=1000.0009, transit=0.0, hard_ms=1, asks_again_after=0.0005)
@example(sent_at=1000.0009, transit=0.0, hard_ms=500, asks_again_after=0.4995)
def test_redis_would_refuse_what_is_refused_from_memory(
    sent_at: float, transit: float, hard_ms: int, asks_again_after: float
) -> None:
    plan = compiled()
    plan.cache_refusal(LimitHit(BOUND, hard_ms, hard_retry_after_ms=hard_ms), sent_at)
    asks_again_at = sent_at + transit + asks_again_after
    lifted_at_ms = math.floor((sent_at + transit) * 1000) + hard_ms  # Redis truncates its clock
    refused_from_memory = plan.refused_until > asks_again_at
    if refused_from_memory:
        assert math.floor(asks_again_at * 1000) < lifted_at_ms
        assert asks_again_at - sent_at <= 1


@given(retry_ms=st.integers(1, 90_000))
def test_soft_refusal_is_repeated_for_a_tenth_of_a_second_at_most(retry_ms: int) -> None:
    plan = compiled()
    assert plan.cache_refusal(LimitHit(BOUND, retry_ms), 100.0)
    assert plan.refused_until - 100.0 <= min(0.1, retry_ms / 1000)


def test_command_states_the_number_of_its_arguments() -> None:
    plan = compiled()
    stamp = pack_stamp(12_345, 7, 6)
    single = plan.encode([Estimate(7, 1234)], stamp)
    batch = plan.encode([Estimate(5), Estimate(9, 1234)], stamp)
    with_text = plan.encode([Estimate(5), Estimate(9, 1234)], stamp, with_text=True)
    arguments = take_arguments(PLAN, 1000, TakeStamp("worker", 7, 6, 12_345))
    assert single == encode(b"EVALSHA", SCRIPT.sha, b"1", PLAN.key.encode(), *arguments, b"0007", b"1234")
    assert b"\r\n$4\r\n0005\r\n" in batch
    for encoded, command in ((single, b"EVALSHA"), (batch, b"EVALSHA"), (with_text, b"EVAL")):
        parts = encoded.split(b"\r\n")
        assert int(parts[0][1:]) == encoded.count(b"\r\n$")
        assert parts[-3:] == [b"$4", b"1234", b""]
        assert parts[2] == command


def test_requests_of_a_batch_share_the_figures_and_hold_their_own_estimates() -> None:
    above = limit_set((Limit(LimitType.TOKEN, Unit.MINUTE, 1000),))
    plan = PLAN._replace(groups=("g", "root"), limits=(*PLAN.limits, above))
    compiled_plan = CompiledPlan(plan, TakeTemplate(SCRIPT, 1000, "worker", lambda _take: None, NO_PLACE))
    reply = [3000, 3, 0, 0, 0, 0, 1, 2, 60_000, 2, 900, 59_000, 7000]
    outcomes = compiled_plan.taken(reply, [Estimate(5), Estimate(90, 30), Estimate(5)])
    requests = LimitStatus(5, 2, 60_000)
    tokens = LimitStatus(1000, 900, 59_000)
    assert outcomes.keys() == {Estimate(5), Estimate(90, 30)}
    for estimate, one in outcomes.items():
        assert (one.requests, one.tokens, one.lines) == (requests, tokens, rate_limit_lines(requests, tokens))
        [returnable] = one.returnable
        [settled] = one.reservations
        assert (returnable,) == compiled_plan.reservations(7000, estimate)
        assert (settled.admitted_at_ms, settled.reserved_tokens, settled.margin_tokens) == (
            *(7000, estimate.expected, estimate.margin),
        )
        assert [group for group, _ in returnable.buckets] == ["g", "root"]
        assert [group for group, _ in settled.buckets] == ["root"]


NUMBERS = st.integers(0, 2**53 - 1)
BUCKETS = st.lists(st.tuples(st.sampled_from(["g", "h", "root"]), st.integers(1, 4095)), unique_by=lambda one: one[0])
RESERVATIONS = st.builds(
    Reservation,
    st.just("tg:{g|acme/chat}"),
    BUCKETS.map(tuple),
    NUMBERS,
    NUMBERS,
    st.booleans(),
    NUMBERS,
    st.just(LimitType.TOKEN),
)


@given(st.lists(st.builds(Settlement, RESERVATIONS, NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=5))
def test_packed_batch_holds_each_settlement_with_its_buckets(batch: list[Settlement]) -> None:
    arguments = settle_arguments(batch, "worker", 1000)
    command = RedisCommand(encode(b"EVAL", SCRIPT.text, b"1", batch[0].reservation.key, *arguments), print)
    assert sent_batch(command) == SentBatch(b"EVAL", SCRIPT.text, b"@worker", 1000, batch)
    assert len(arguments) == len(set(arguments))
    assert [number_of(packed(settlement)) for settlement in batch] == [settlement.number for settlement in batch]


@given(st.builds(Settlement, RESERVATIONS, NUMBERS, NUMBERS, st.booleans()), st.lists(NUMBERS, max_size=6))
def test_packed_batch_of_one_plan_has_its_buckets_once(one: Settlement, numbers: list[int]) -> None:
    batch = [one, *(one._replace(number=number) for number in numbers)]
    arguments = settle_arguments(batch, "worker", 1000)
    command = RedisCommand(encode(b"EVAL", SCRIPT.text, b"1", one.reservation.key, *arguments), print)
    assert sent_batch(command) == SentBatch(b"EVAL", SCRIPT.text, b"@worker", 1000, batch)
    assert len(arguments) == 3 + len(one.reservation.buckets)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 700))
def test_a_batch_is_what_one_script_call_can_take(kinds: list[int], more: int) -> None:
    """Lua unpacks at most 4000 values."""
    some = [tuple((f"g{number}", 5) for number in range(count)) for count in (1, 2, 50, 2500)]
    buckets = [some[kind] for kind in [*kinds, *[kinds[-1]] * more]]
    size = batch_size(buckets)
    values = [7 + 2 * len(own) for own in buckets]
    assert size == 1 or sum(values[:size]) <= 4000
    assert size == len(buckets) or sum(values[: size + 1]) > 4000


async def test_number_of_compiled_plans_is_bounded() -> None:
    """The directory makes new plans all the time when more groups call than it keeps."""
    counters = RedisCounters("redis://127.0.0.1:1", "worker")
    plans = [PLAN._replace(group_id=f"grp_{number}") for number in range(2 * PLANS_KEPT)]
    for plan in plans:
        assert counters._compile(plan).plan is plan
        assert len(list(counters._plans.values())) <= PLANS_KEPT


def test_answered_number_stays_while_a_take_is_lost() -> None:
    """Redis forgets takes up to the answered number, so it must not pass a lost take before that is revoked."""
    nodes = ScriptedNodes()
    takes = PendingTakes(nodes, SCRIPT, "worker", print)
    plan = compiled()
    pending = [Take(plan, print) for _ in range(4)]
    for take in pending[:2]:
        takes.stamp(take, nodes.node)
    takes.connection_lost(pending[0])
    takes.answered(pending[1])
    assert takes.stamp(pending[2], nodes.node) == pack_stamp(NO_DEADLINE_MS, 3, 0)
    takes.redis_is_back()
    [revocation] = nodes.client.commands
    revocation.on_reply(revocation, [])
    takes.answered(pending[2])
    assert takes.stamp(pending[3], nodes.node) == pack_stamp(NO_DEADLINE_MS, 4, 3)


def test_a_revocation_answers_for_the_takes_up_to_its_number_only() -> None:
    """The connection to another server of the key may be lost while the revocation is under way."""
    nodes = ScriptedNodes()
    given_back: list[Reservation] = []
    takes = PendingTakes(nodes, SCRIPT, "worker", given_back.append)
    pending = [Take(compiled(), print) for _ in range(2)]
    with closing(new_event_loop()) as loop:
        answer = loop.create_future()
    for take in pending:
        take.calls.append((answer, Estimate(5)))
        takes.stamp(take, nodes.node)
    takes.connection_lost(pending[0])
    takes.redis_is_back()
    takes.connection_lost(pending[1])
    [first] = nodes.client.commands
    first.on_reply(first, [1000, 1, 1])
    takes.redis_is_back()
    [_, second] = nodes.client.commands
    second.on_reply(second, [2000, 2, 1])
    assert [reservation.admitted_at_ms for reservation in given_back] == [1000, 2000]
