"""What a compiled plan sends, and that a refusal is repeated from memory only while Redis would repeat it too."""

import math
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from policy.limits.effective import Bound, Plan
from policy.limits.limit import Limit, LimitType, Unit
from policy.limits.settlement import Reservation, Settlement
from policy.limits.take_numbers import NO_DEADLINE_MS, TakeStamp
from proxy.accounting.reservations import LimitHit
from proxy.edges.redis.admission_requests import AdmissionRequest, CompiledPlan, TakeTemplate
from proxy.edges.redis.connection import RedisCommand, encode
from proxy.edges.redis.counters import PLANS_KEPT, RedisCounters
from proxy.edges.redis.pending_takes import PendingTakes
from proxy.edges.redis.scripts import Script, SettleTemplate, settle_arguments, stamp_bytes, take_arguments

BOUND = Bound(Limit(LimitType.REQUEST, Unit.MINUTE, 5), "g", "g")
PLAN = Plan("acme/chat", "g", "tg:{g|acme/chat}", (BOUND,))
SCRIPT = Script(b"return 0", b"0" * 40)


def compiled(*, is_tier: bool = False) -> CompiledPlan:
    return CompiledPlan(PLAN, TakeTemplate(SCRIPT, 1000, "worker", lambda _number, _checks: None), is_tier)


@given(
    asked_at=st.floats(0, 1e6),
    on_the_way=st.floats(0, 0.05),
    hard_ms=st.integers(1, 90_000),
    asks_again_after=st.floats(0, 2),
)
@example(asked_at=1000.0009, on_the_way=0.0, hard_ms=1, asks_again_after=0.0005)
@example(asked_at=1000.0009, on_the_way=0.0, hard_ms=500, asks_again_after=0.4995)
def test_what_is_refused_from_memory_redis_would_refuse(
    asked_at: float, on_the_way: float, hard_ms: int, asks_again_after: float
) -> None:
    plan = compiled()
    plan.remember(LimitHit(BOUND, hard_ms, hard_retry_after_ms=hard_ms), asked_at)
    asks_again_at = asked_at + on_the_way + asks_again_after
    lifted_at_ms = math.floor((asked_at + on_the_way) * 1000) + hard_ms  # Redis truncates its clock
    refused_from_memory = plan.refused_until > asks_again_at
    if refused_from_memory:
        assert math.floor(asks_again_at * 1000) < lifted_at_ms
        assert asks_again_at - asked_at <= 1


@given(retry_ms=st.integers(1, 90_000), hard_ms=st.integers(0, 90_000))
def test_a_refusal_that_may_be_lifted_elsewhere_is_repeated_for_a_tenth_of_a_second(
    retry_ms: int, hard_ms: int
) -> None:
    tier, tokens = compiled(is_tier=True), compiled()
    assert tier.remember(LimitHit(BOUND, retry_ms, hard_retry_after_ms=hard_ms), 100.0)
    assert tokens.remember(LimitHit(BOUND, retry_ms), 100.0)
    for plan in (tier, tokens):
        assert plan.refused_until - 100.0 <= min(0.1, retry_ms / 1000)


def test_a_request_counts_its_parts() -> None:
    plan = compiled()
    checks = [AdmissionRequest(plan, estimate, None, print) for estimate in (5, 1234)]  # type: ignore[arg-type]  # nobody waits
    stamp = stamp_bytes(7, 6, 12_345)
    alone, merged = plan.request(1234, stamp), plan.merged_request(checks, stamp)
    with_text = plan.merged_request(checks, stamp, with_text=True)
    assert plan.merged_request(checks[1:], stamp) == alone
    arguments = take_arguments(PLAN.bounds, 1000, TakeStamp("worker", 7, 6, 12_345))
    assert alone == encode(b"EVALSHA", SCRIPT.sha, b"1", PLAN.key.encode(), *arguments, b"1234")
    for request, command in ((alone, b"EVALSHA"), (merged, b"EVALSHA"), (with_text, b"EVAL")):
        parts = request.split(b"\r\n")
        assert int(parts[0][1:]) == request.count(b"\r\n$")
        assert parts[-3:] == [b"$4", b"1234", b""]
        assert parts[2] == command


NUMBERS = st.integers(0, 2**53 - 1)
RESERVATIONS = st.builds(
    Reservation, st.just("tg:{g|acme/chat}"), st.just((("g", 5), ("root", 9))), NUMBERS, NUMBERS, st.booleans()
)


@given(st.lists(st.builds(Settlement, RESERVATIONS, NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=5))
def test_settlements_that_hold_the_same_buckets_are_sent_alike_in_either_way(batch: list[Settlement]) -> None:
    reservation = batch[0].reservation
    request = SettleTemplate(SCRIPT, reservation.key, "worker", reservation.buckets, 1000).request(batch)
    arguments = settle_arguments(batch, "worker", 1000)
    assert request == encode(b"EVALSHA", SCRIPT.sha, b"1", reservation.key.encode(), *arguments)


async def test_plans_that_are_made_anew_are_not_all_kept() -> None:
    """Where more groups call than the directory can know, it makes plans anew for as long as they call."""
    counters = RedisCounters("redis://127.0.0.1:1", "worker")
    plans = [replace(PLAN, group_id=f"grp_{number}") for number in range(2 * PLANS_KEPT)]
    for plan in plans:
        assert counters._compile(plan).plan is plan
        assert len(counters._plans) <= PLANS_KEPT


class CollectingWire:
    """Sends nothing."""

    def __init__(self) -> None:
        self.calls: list[RedisCommand] = []

    def call(self, call: RedisCommand) -> None:
        self.calls.append(call)


def test_nothing_counts_as_answered_while_a_lost_take_is_not_accounted_for() -> None:
    """Redis forgets what ran below the answered number: the lost one must still be found there."""
    wire = CollectingWire()
    takes = PendingTakes(wire, SCRIPT, "worker", print)  # type: ignore[arg-type]  # a wire by shape
    plan = compiled()
    checks = [AdmissionRequest(plan, 5, None, print) for _ in range(4)]  # type: ignore[arg-type]  # nobody waits
    for check in checks[:2]:
        takes.stamp(check)
    takes.lose(1, checks[:1])
    takes.heard(2)
    assert takes.stamp(checks[2]) == stamp_bytes(3, 0, NO_DEADLINE_MS)
    takes.redis_is_back()
    [revocation] = wire.calls
    revocation.done(revocation, [])
    takes.heard(3)
    assert takes.stamp(checks[3]) == stamp_bytes(4, 3, NO_DEADLINE_MS)
