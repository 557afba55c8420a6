"""Checks of one plan as they travel: the plan compiled to bytes once, the call that carries checks, the reply read.

It knows the scripts' form (`scripts.py`) and the exchange's nouns; not when to send, nor what to do without Redis.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from policy.limits.counter_layout import TOKEN_KINDS, kind_mask
from policy.limits.effective import Plan
from policy.limits.limit import Limit
from policy.limits.settlement import Reservation
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis.connection import NEVER, RedisCommand, encode_part
from proxy.edges.redis.scripts import STAMP_BYTES, Script, take_template

HARD_REFUSAL_MAX_MS = 1000
SOFT_REFUSAL_MAX_MS = 100


class Take(RedisCommand):
    """One call of take.lua: its take is given back however late the reply is. `number`: see `pending_takes.py`."""

    __slots__ = ("number",)

    number: int

    def late(self, reply: Any) -> None:
        if isinstance(reply, list):
            self.done(self, reply)


class AdmissionRequest(Take):
    """One request that wants in, and who waits to hear; on the wire a call of its own, unless many travel as one."""

    __slots__ = ("answer", "compiled", "estimate")

    def __init__(
        self,
        compiled: "CompiledPlan",
        estimate: int,
        answer: "asyncio.Future[Taken | LimitHit]",
        done: "Callable[[AdmissionRequest, Any], None]",
    ) -> None:
        self.compiled = compiled
        self.estimate = estimate
        self.answer = answer
        self.done = done
        self.expires_at = NEVER  # the rest of a call is set when it is sent

    def lost(self) -> None:
        self.compiled.form.lose(self.number, (self,))


class AdmissionBatch(Take):
    """One call of take.lua for many checks of a plan."""

    __slots__ = ("checks",)

    def __init__(self, checks: list[AdmissionRequest], done: "Callable[[AdmissionBatch, Any], None]") -> None:
        super().__init__(b"", done)
        self.checks = checks

    def lost(self) -> None:
        self.checks[0].compiled.form.lose(self.number, self.checks)


@dataclass(frozen=True, slots=True)
class TakeTemplate:
    """What is the same in all takes of a worker. `lose`: told of number and checks of a take whose connection went."""

    script: Script
    lease_ms: int
    incarnation: str
    lose: Callable[[int, Sequence[AdmissionRequest]], None]


class CompiledPlan:
    """A plan in the form that is sent, what it holds when granted, and its last refusal while that still stands."""

    __slots__ = ("_alone", "_begin", "_buckets", "_end", "_parts", "_taken", "_thresholds", "form", "is_tier", "plan",
                 "refusal", "refused_at", "refused_until", "waiting")  # fmt: skip

    def __init__(self, plan: Plan, form: TakeTemplate, is_tier: bool) -> None:
        self.plan = plan
        self.form = form
        self.is_tier = is_tier
        self.waiting: list[AdmissionRequest] = []
        self.refusal: LimitHit | None = None
        self.refused_at = 0.0
        self.refused_until = 0.0
        self._taken = _held(plan)
        self._buckets = _settled(self._taken)
        self._thresholds = (0, *(bound.limit.threshold for bound in plan.bounds))
        # A command's pieces: its head and script differ, then what is always the same, around the stamp; the estimates.
        stamp = b"\0" * STAMP_BYTES
        layout, values, *names = take_template(plan.bounds, form.lease_ms, form.incarnation, stamp)
        self._parts = 6 + len(names)  # command, script, count of keys, key, layout, values
        begin = b"".join(map(encode_part, (b"1", plan.key.encode(), layout)))
        self._begin = begin + encode_part(values).removesuffix(stamp + b"\r\n")
        self._end = b"\r\n" + b"".join(map(encode_part, names))
        self._alone = self._head(b"EVALSHA", form.script.sha, 1) + self._begin

    def _head(self, command: bytes, script: bytes, estimates: int) -> bytes:
        return b"*%d\r\n%b%b" % (self._parts + estimates, encode_part(command), encode_part(script))

    def request(self, estimate: int, stamp: bytes) -> bytes:
        """The command for one check."""
        digits = b"%d" % estimate
        return b"%b%b%b$%d\r\n%b\r\n" % (self._alone, stamp, self._end, len(digits), digits)

    def merged_request(self, checks: Sequence[AdmissionRequest], stamp: bytes, *, with_text: bool = False) -> bytes:
        """The command for any number of checks; `with_text`: for a Redis that does not know the script yet."""
        script = self.form.script
        named = (b"EVAL", script.text) if with_text else (b"EVALSHA", script.sha)
        estimates = b"".join([encode_part(b"%d" % check.estimate) for check in checks])
        return b"%b%b%b%b%b" % (self._head(*named, len(checks)), self._begin, stamp, self._end, estimates)

    def reservation(self, at_ms: int, estimate: int) -> Reservation:
        """All that a check took that was admitted then."""
        return Reservation(key=self.plan.key, buckets=self._taken, admitted_at_ms=at_ms, reserved_tokens=estimate)

    def taken(self, reply: list[int], estimate: int) -> Taken:
        now, _, _, _, _, _, request_place, requests, requests_ms, token_place, tokens, tokens_ms = reply
        thresholds, buckets = self._thresholds, self._buckets
        reservations: tuple[Reservation, ...] = (
            Reservation(key=self.plan.key, buckets=self._taken, admitted_at_ms=now, reserved_tokens=estimate),
        )
        taken = reservations
        if buckets is not self._taken:
            reservations = (
                (Reservation(key=self.plan.key, buckets=buckets, admitted_at_ms=now, reserved_tokens=estimate),)
                if buckets
                else ()
            )
        return Taken(
            reservations,
            LimitStatus(thresholds[request_place], requests, requests_ms, request_place - 1) if request_place else None,
            LimitStatus(thresholds[token_place], tokens, tokens_ms) if token_place else None,
            taken,
        )

    def refused(self, reply: list[int]) -> LimitHit:
        _, _, refused_by, retry_ms, counted_retry_ms, hard_retry_ms, *_ = reply
        status = self.taken(reply, 0)
        bound = self.plan.bounds[refused_by - 1]
        return LimitHit(bound, retry_ms, status.requests, status.tokens, counted_retry_ms, hard_retry_ms)

    def repeated(self, now: float) -> LimitHit | None:
        """The last refusal, as it is to be told now; None when it is time to ask again."""
        if self.refusal is None or self.refused_until <= now:
            return None
        return _aged(self.refusal, int((now - self.refused_at) * 1000))

    def remember(self, hit: LimitHit, asked_at: float) -> bool:
        """Repeat this refusal from memory for a while; returns whether a settlement or a give-back may lift it.

        `asked_at` is before Redis looked at its clock, and Redis truncates its clock to the millisecond: one that many
        milliseconds later, less one, Redis would still refuse. A refusal that a refund or a give-back elsewhere can
        lift is repeated for a tenth of a second at most.
        """
        hard_retry_after_ms = hit.hard_retry_after_ms
        is_soft = self.is_tier or hard_retry_after_ms == 0
        if is_soft:
            kept_ms = min(hit.retry_after_ms, SOFT_REFUSAL_MAX_MS)
        else:
            kept_ms = min(hard_retry_after_ms, HARD_REFUSAL_MAX_MS)
        self.refusal = hit
        self.refused_at = asked_at
        self.refused_until = asked_at + (kept_ms - 1) / 1000
        return is_soft


def _held(plan: Plan) -> tuple[tuple[str, int], ...]:
    """All buckets that a take of `plan` takes from."""
    limits: dict[str, list[Limit]] = {}
    for bound in plan.bounds:
        limits.setdefault(bound.counting_group, []).append(bound.limit)
    return tuple((group, kind_mask(bound)) for group, bound in limits.items())


def _settled(taken: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """What the end of a dispatched call has to put right: groups with TOKEN limits. Its request counts as it is."""
    settled = tuple(bucket for bucket in taken if bucket[1] & TOKEN_KINDS)
    return taken if settled == taken else settled


def _aged(hit: LimitHit, elapsed_ms: int) -> LimitHit:
    """The same refusal, told later."""
    return LimitHit(
        hit.bound,
        max(1, hit.retry_after_ms - elapsed_ms),
        _aged_status(hit.requests, elapsed_ms),
        _aged_status(hit.tokens, elapsed_ms),
        max(0, hit.counted_retry_after_ms - elapsed_ms),
        max(0, hit.hard_retry_after_ms - elapsed_ms),
    )


def _aged_status(status: LimitStatus | None, elapsed_ms: int) -> LimitStatus | None:
    if status is None:
        return None
    return LimitStatus(status.limit, status.remaining, max(0, status.reset_ms - elapsed_ms))
