"""Checks of one plan as they travel: the plan compiled to bytes once, the call that carries checks, the reply read.

It knows the scripts' form (`scripts.py`) and the exchange's nouns; not when to send, nor what to do without Redis.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from policy.buckets import parts_of
from policy.effective import Plan
from policy.limits import Limit, LimitType
from policy.settlement import Hold
from proxy.edges.redis_connection import NEVER, Call, encode, encode_part
from proxy.edges.scripts import Script, take_arguments
from proxy.exchange import Grant, LimitHit, Standing

HARD_REFUSAL_MAX_MS = 1000
SOFT_REFUSAL_MAX_MS = 100


class _Take(Call):
    """One call of take.lua: what it took must be given back, however late it is heard of."""

    __slots__ = ()

    def late(self, reply: Any) -> None:
        if isinstance(reply, list):
            self.done(self, reply)


class Check(_Take):
    """One request that wants in, and who waits to hear; on the wire a call of its own, unless many travel as one."""

    __slots__ = ("answer", "compiled", "estimate")

    def __init__(
        self,
        compiled: "CompiledPlan",
        estimate: int,
        answer: "asyncio.Future[Grant | LimitHit]",
        done: "Callable[[Check, Any], None]",
    ) -> None:
        self.compiled = compiled
        self.estimate = estimate
        self.answer = answer
        self.done = done
        self.expires_at = NEVER  # the rest of a call is set when it is sent


class MergedChecks(_Take):
    """One call of take.lua for many checks of a plan."""

    __slots__ = ("checks",)

    def __init__(self, request: bytes, checks: list[Check], done: "Callable[[MergedChecks, Any], None]") -> None:
        super().__init__(request, done)
        self.checks = checks


class CompiledPlan:
    """A plan in the form that is sent, what it holds when granted, and its last refusal while that still stands."""

    __slots__ = ("_arguments", "_buckets", "_head", "_script", "_thresholds", "is_tier", "plan", "refusal",
                 "refused_at", "refused_until", "waiting")  # fmt: skip

    def __init__(self, plan: Plan, script: Script, lease_ms: int, is_tier: bool) -> None:
        self.plan = plan
        self.is_tier = is_tier
        self.waiting: list[Check] = []
        self.refusal: LimitHit | None = None
        self.refused_at = 0.0
        self.refused_until = 0.0
        self._script = script
        self._buckets = _held(plan, with_requests=is_tier)
        self._thresholds = (0, *(bound.limit.threshold for bound in plan.bounds))
        self._arguments = (b"1", plan.key.encode(), *take_arguments(plan.bounds, lease_ms))
        # One check's command up to its estimate, which comes last and is counted.
        self._head = encode(b"EVALSHA", script.sha, *self._arguments, b"").removesuffix(encode_part(b""))

    def request(self, estimate: int) -> bytes:
        """The command for one check."""
        digits = b"%d" % estimate
        return b"%b$%d\r\n%b\r\n" % (self._head, len(digits), digits)

    def merged_request(self, checks: Sequence[Check], *, with_text: bool = False) -> bytes:
        """The command for any number of checks; `with_text`: for a Redis that does not know the script yet."""
        script = (b"EVAL", self._script.text) if with_text else (b"EVALSHA", self._script.sha)
        return encode(*script, *self._arguments, *(b"%d" % check.estimate for check in checks))

    def grant(self, reply: list[int], estimate: int) -> Grant:
        now, _, _, _, _, request_place, requests, requests_ms, token_place, tokens, tokens_ms = reply
        thresholds = self._thresholds
        return Grant(
            (Hold(self.plan.key, self._buckets, now, estimate),) if self._buckets else (),
            Standing(thresholds[request_place], requests, requests_ms) if request_place else None,
            Standing(thresholds[token_place], tokens, tokens_ms) if token_place else None,
        )

    def refused(self, reply: list[int]) -> LimitHit:
        _, _, refused_by, retry_ms, hard_retry_ms, *_ = reply
        standing = self.grant(reply, 0)
        bound = self.plan.bounds[refused_by - 1]
        return LimitHit(bound, retry_ms, standing.requests, standing.tokens, hard_retry_ms)

    def repeated(self, now: float) -> LimitHit | None:
        """The last refusal, as it is to be told now; None when it is time to ask again."""
        if self.refusal is None or self.refused_until <= now:
            return None
        return _aged(self.refusal, int((now - self.refused_at) * 1000))

    def remember(self, hit: LimitHit, asked_at: float) -> bool:
        """Repeat this refusal from memory for a while; returns whether a settlement may lift it.

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


def _held(plan: Plan, *, with_requests: bool) -> tuple[tuple[str, int], ...]:
    """What a grant of `plan` holds: its TOKEN limits; its REQUEST limits too where they may have to be given back."""
    limits: dict[str, list[Limit]] = {}
    for bound in plan.bounds:
        if with_requests or bound.limit.type is LimitType.TOKEN:
            limits.setdefault(bound.counting_group, []).append(bound.limit)
    return tuple((group, parts_of(bound)) for group, bound in limits.items())


def _aged(hit: LimitHit, elapsed_ms: int) -> LimitHit:
    """The same refusal, told later."""
    return LimitHit(
        hit.bound,
        max(1, hit.retry_after_ms - elapsed_ms),
        _aged_standing(hit.requests, elapsed_ms),
        _aged_standing(hit.tokens, elapsed_ms),
        max(0, hit.hard_retry_after_ms - elapsed_ms),
    )


def _aged_standing(standing: Standing | None, elapsed_ms: int) -> Standing | None:
    if standing is None:
        return None
    return Standing(standing.limit, standing.remaining, max(0, standing.reset_ms - elapsed_ms))
