"""Admission requests as take.lua gets them: a plan encoded once, one command for one or many requests, the reply read.

It knows the script's arguments (`scripts.py`). It does not decide when to send, or what to do without Redis.

See docs/reference/limits.md#admission.
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
from proxy.edges.redis.nodes.connection import NEVER, RedisCommand, encode_argument
from proxy.edges.redis.nodes.node import Node
from proxy.edges.redis.scripts import STAMP_BYTES, Script, take_template
from proxy.http_rules.headers import rate_limit_lines
from runtime.redis.slots import slot_of

HARD_REFUSAL_MAX_MS = 1000
SOFT_REFUSAL_MAX_MS = 100


AdmissionRequest = tuple["asyncio.Future[Taken | LimitHit]", int]
"""One call that asks for admission: the future that its caller awaits, and its estimate. A bare tuple, because a class
of ours would cost each call a frame."""


class Take(RedisCommand):
    """One call of take.lua, for one request or more of one plan. What it took is returned even if the reply is late.

    `node`: the server that it was sent to. `number`: see `pending_takes.py`.
    """

    __slots__ = ("compiled", "node", "number", "requests")

    node: Node
    number: int

    def __init__(
        self, compiled: "CompiledPlan", requests: Sequence[AdmissionRequest], on_reply: "Callable[[Take, Any], None]"
    ) -> None:
        self.compiled = compiled
        self.requests = requests
        self.on_reply = on_reply
        self.expires_at = NEVER  # the other attributes of a command are set when it is sent

    def on_late_reply(self, reply: Any) -> None:
        if isinstance(reply, list):
            self.on_reply(self, reply)

    def on_connection_lost(self) -> None:
        self.compiled.template.on_lost(self)


@dataclass(frozen=True, slots=True)
class TakeTemplate:
    """What all takes of a worker have in common. `on_lost`: called with a take whose connection was lost."""

    script: Script
    lease_ms: int
    incarnation: str
    on_lost: Callable[[Take], None]


class CompiledPlan:
    """A plan encoded for Redis, the requests that wait for the flush, and the last refusal while it is repeated."""

    __slots__ = ("_after_stamp", "_argument_count", "_before_stamp", "_buckets", "_by_sha", "_thresholds",
                 "_token_buckets", "is_tier", "plan", "refusal", "refused_at", "refused_until", "slot",
                 "template", "waiting")  # fmt: skip

    def __init__(self, plan: Plan, template: TakeTemplate, is_tier: bool) -> None:
        self.plan = plan
        self.slot = slot_of(plan.key.encode())
        self.template = template
        self.is_tier = is_tier
        self.waiting: list[AdmissionRequest] = []
        self.refusal: LimitHit | None = None
        self.refused_at = 0.0
        self.refused_until = 0.0
        self._buckets = _all_buckets(plan)
        self._token_buckets = _token_buckets(self._buckets)
        self._thresholds = (0, *(bound.limit.threshold for bound in plan.bounds))
        # A command is: head (command, script), then what never changes around the stamp, then the estimates.
        stamp = b"\0" * STAMP_BYTES
        layout, values, *names = take_template(plan.bounds, template.lease_ms, template.incarnation, stamp)
        self._argument_count = 6 + len(names)  # command, script, number of keys, key, layout, values
        before_stamp = b"".join(map(encode_argument, (b"1", plan.key.encode(), layout)))
        self._before_stamp = before_stamp + encode_argument(values).removesuffix(stamp + b"\r\n")
        self._after_stamp = b"\r\n" + b"".join(map(encode_argument, names))
        self._by_sha = encode_argument(b"EVALSHA") + encode_argument(template.script.sha)

    def encode(self, requests: Sequence[AdmissionRequest], stamp: bytes, *, with_text: bool = False) -> bytes:
        """The command for any number of requests. `with_text`: for a Redis that has not loaded the script yet."""
        script = self._by_sha
        if with_text:
            script = encode_argument(b"EVAL") + encode_argument(self.template.script.text)
        estimates = b"".join([b"$%d\r\n%d\r\n" % (len(str(estimate)), estimate) for _, estimate in requests])
        return b"*%d\r\n%b%b%b%b%b" % (
            self._argument_count + len(requests),
            script,
            self._before_stamp,
            stamp,
            self._after_stamp,
            estimates,
        )

    def reservation(self, admitted_at_ms: int, estimate: int) -> Reservation:
        """Everything that a request took that was admitted at that time."""
        return Reservation(
            key=self.plan.key, buckets=self._buckets, admitted_at_ms=admitted_at_ms, reserved_tokens=estimate
        )

    def taken(self, reply: list[int], requests: Sequence[AdmissionRequest]) -> dict[int, Taken]:
        """What these requests took, by their estimate. All of them get the limits' figures after the last one."""
        now, tightest = reply[0], self._tightest(reply)
        lines = rate_limit_lines(*tightest)
        taken: dict[int, Taken] = {}
        for _, estimate in requests:
            if estimate in taken:
                continue
            everything = self.reservation(now, estimate)
            settled: tuple[Reservation, ...] = (everything,)
            returnable = settled
            if self._token_buckets is not self._buckets:
                settled = (everything._replace(buckets=self._token_buckets),) if self._token_buckets else ()
            taken[estimate] = Taken(settled, *tightest, returnable, lines)
        return taken

    def _tightest(self, reply: list[int]) -> tuple[LimitStatus | None, LimitStatus | None]:
        _, _, _, _, _, _, request_place, requests, requests_ms, token_place, tokens, tokens_ms = reply
        thresholds = self._thresholds
        return (
            LimitStatus(thresholds[request_place], requests, requests_ms, request_place - 1) if request_place else None,
            LimitStatus(thresholds[token_place], tokens, tokens_ms) if token_place else None,
        )

    def limit_hit(self, reply: list[int]) -> LimitHit:
        _, _, refused_by, retry_ms, counted_retry_ms, hard_retry_ms, *_ = reply
        bound = self.plan.bounds[refused_by - 1]
        return LimitHit(bound, retry_ms, *self._tightest(reply), counted_retry_ms, hard_retry_ms)

    def cached_refusal(self, now: float) -> LimitHit | None:
        """The last refusal with its waits as of `now`. None if Redis has to be asked."""
        if self.refusal is None or self.refused_until <= now:
            return None
        return _aged(self.refusal, int((now - self.refused_at) * 1000))

    def cache_refusal(self, hit: LimitHit, sent_at: float) -> bool:
        """Repeat this refusal for a while without asking Redis. Returns whether a settlement or a returned reservation
        may lift it; such a refusal is repeated for 100 ms at most (docs/reference/limits.md#local-refusals).

        `sent_at` is earlier than Redis' clock in the reply, and Redis truncates its clock to the millisecond. So Redis
        would still refuse until `sent_at` + wait - 1 ms.
        """
        hard_retry_after_ms = hit.hard_retry_after_ms
        is_soft = self.is_tier or hard_retry_after_ms == 0
        if is_soft:
            kept_ms = min(hit.retry_after_ms, SOFT_REFUSAL_MAX_MS)
        else:
            kept_ms = min(hard_retry_after_ms, HARD_REFUSAL_MAX_MS)
        self.refusal = hit
        self.refused_at = sent_at
        self.refused_until = sent_at + (kept_ms - 1) / 1000
        return is_soft


def _all_buckets(plan: Plan) -> tuple[tuple[str, int], ...]:
    """All buckets that a take of `plan` takes from."""
    limits: dict[str, list[Limit]] = {}
    for bound in plan.bounds:
        limits.setdefault(bound.counting_group, []).append(bound.limit)
    return tuple((group, kind_mask(bound)) for group, bound in limits.items())


def _token_buckets(buckets: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The buckets that a dispatched call settles: those with TOKEN limits. Its request stays counted."""
    token_buckets = tuple(bucket for bucket in buckets if bucket[1] & TOKEN_KINDS)
    return buckets if token_buckets == buckets else token_buckets


def _aged(hit: LimitHit, elapsed_ms: int) -> LimitHit:
    """The same refusal `elapsed_ms` later."""
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
