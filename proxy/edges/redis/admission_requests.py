"""Admission requests as take.lua gets them: a plan encoded once, one command for one or many requests, the reply read.

It knows the script's arguments (`scripts.py`). It does not decide when to send, or what to do without Redis.

See docs/reference/limits.md#admission.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, compress
from math import inf
from operator import itemgetter, methodcaller
from typing import Any

from policy.limits.effective import Plan
from policy.limits.kinds import LimitType
from policy.limits.limit import Limit
from policy.limits.settlement import Buckets, Estimate, Reservation, reservations_of
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken, Tightest, closed_hit
from proxy.edges.redis.nodes.connection import NEVER, RedisCommand, encode, encode_argument
from proxy.edges.redis.nodes.redis_node import RedisNode
from proxy.edges.redis.scripts import STAMP_BYTES, Script, TakeLimits, take_limits, take_template
from proxy.http_rules.headers import duration_text, rate_limit_names
from runtime.redis.slots import slot_of

HARD_REFUSAL_MAX_MS = 1000
SOFT_REFUSAL_MAX_MS = 100


Answer = asyncio.Future[Taken | LimitHit]
"""The future that the caller of one call awaits."""
_answer_of = itemgetter(0)
_estimate_of = itemgetter(1)
_is_done = methodcaller("done")
_TOTAL = itemgetter(0, 1)
"""The figures of an estimate that a take sends for TOKEN limits."""
_STAMP = b"\xff" * STAMP_BYTES
"""Stands for a stamp. Nothing else in a command has as many such bytes: neither a number nor text."""


class Take(RedisCommand):
    """One call of take.lua, for all requests of one plan in one tick. If the reply is late, what it took is returned.

    `calls`: the answer and the estimate of each request. `node`: the server that it was sent to. `number`: see
    `pending_takes.py`.
    """

    __slots__ = ("calls", "compiled", "node", "number")

    node: RedisNode
    number: int

    def __init__(self, compiled: "CompiledPlan", on_reply: "Callable[[Take, Any], None]") -> None:
        self.compiled = compiled
        self.calls: list[tuple[Answer, Estimate]] = []
        self.on_reply = on_reply
        self.expires_at = NEVER  # the other attributes of a command are set when it is sent

    @property
    def estimates(self) -> Iterable[Estimate]:
        """The estimate of each request."""
        return map(_estimate_of, self.calls)

    @property
    def is_awaited(self) -> bool:
        """True while a caller waits for its answer."""
        return not all(map(_is_done, map(_answer_of, self.calls)))

    def forget_cancelled(self) -> None:
        """Leave out the callers that stopped waiting. Call it only before the command is sent."""
        if any(map(_is_done, map(_answer_of, self.calls))):
            self.calls = [call for call in self.calls if not call[0].done()]

    def on_late_reply(self, reply: Any) -> None:
        if isinstance(reply, list):
            self.on_reply(self, reply)

    def on_connection_lost(self) -> None:
        self.compiled.template.on_lost(self)


class PlanPlace:
    """The place that each call of a plan holds, in each of the groups that limit their calls in flight.

    `free`: called when one of these calls has ended.
    """

    __slots__ = ("_free", "groups", "key")

    def __init__(self, key: str, groups: Sequence[str], free: "Callable[[PlanPlace], None]") -> None:
        self.key = key
        self.groups = groups
        self._free = free

    def release(self) -> None:
        self._free(self)


class TakeTemplate:
    """The parts that all takes of a worker share. `on_lost`: called with a take whose connection was lost.

    `place`: makes the place of a plan's calls, from its key and the groups that limit them in flight.
    """

    def __init__(
        self,
        script: Script,
        lease_ms: int,
        incarnation: str,
        on_lost: Callable[[Take], None],
        place: Callable[[str, Sequence[str]], PlanPlace],
    ) -> None:
        self.script = script
        self.by_sha = encode_argument(b"EVALSHA") + encode_argument(script.sha)
        self.lease_ms = lease_ms
        self.incarnation = incarnation
        self.on_lost = on_lost
        self.place = place


class CompiledPlan:
    """A plan encoded for Redis, the take that this tick's requests join, and the last refusal while it is repeated."""

    __slots__ = ("_after_stamp", "_argument_count", "_before_stamp", "_buckets", "_closed", "_columns", "_further",
                 "_names", "_token_buckets", "place", "plan", "refusal", "refused_at", "refused_until",
                 "slot", "take", "template")  # fmt: skip

    def __init__(self, plan: Plan, template: TakeTemplate) -> None:
        self.plan = plan
        self.slot = slot_of(plan.key.encode())
        self.template = template
        self.take: Take | None = None
        self.refusal: LimitHit | None = None
        self.refused_until = 0.0
        self.place: PlanPlace | None = None
        self._closed: LimitHit | None = None
        self._columns: Sequence[LimitType] = ()
        self._further: Buckets = ()
        limits = take_limits(plan.limits)
        self._buckets = self._token_buckets = tuple(zip(plan.groups, limits.masks[0], strict=True))
        self._names = limits.names
        if not limits.is_usual:
            self._add_unusual(limits)
        # A command is: head (command, script), then what never changes around the stamp, then the estimates.
        arguments = take_template(plan, template.lease_ms, template.incarnation, _STAMP)
        command = encode(b"1", plan.key, *arguments)
        self._before_stamp, _, self._after_stamp = command[command.index(b"$") :].partition(_STAMP)
        self._argument_count = 4 + len(arguments)  # command, script, number of keys, key

    def _add_unusual(self, limits: TakeLimits) -> None:
        """Set what only plans have that refuse every call, or limit something else than requests and all tokens."""
        groups = self.plan.groups
        pairs = self._buckets
        self._buckets = self._token_buckets = tuple(compress(pairs, limits.masks[0]))
        if not all(limits.settled):
            self._token_buckets = tuple(compress(pairs, limits.settled))
        if limits.is_closed:
            self._closed = closed_hit(self.plan)
        if any(limits.in_flight):
            self.place = self.template.place(self.plan.key, tuple(compress(groups, limits.in_flight)))
        self._columns = limits.columns[1:]
        self._further = tuple(pair for own in limits.masks[1:] for pair in zip(groups, own, strict=True) if pair[1])
        self.forget_refusal()

    def encode(self, estimates: Iterable[Estimate], stamp: bytes, *, with_text: bool = False) -> bytes:
        """The command for any number of requests. `with_text`: for a Redis that has not loaded the script yet."""
        script = self.template.by_sha
        if with_text:
            script = encode_argument(b"EVAL") + encode_argument(self.template.script.text)
        figures = tuple(chain.from_iterable(map(_TOTAL if not self._further else self._figures, estimates)))
        digits = len(str(max(figures)))  # leading zeros make all of one length: one format for any number of them
        return (b"*%d\r\n%b%b%b%b" + b"$%d\r\n%%0%dd\r\n" % (digits, digits) * len(figures)) % (
            self._argument_count + len(figures),
            script,
            self._before_stamp,
            stamp,
            self._after_stamp,
            *figures,
        )

    def _figures(self, estimate: Estimate) -> tuple[int, ...]:
        """The figures of a request: the expected tokens and the margin of each column."""
        return *_TOTAL(estimate), *chain.from_iterable(map(estimate.of, self._columns))

    def reservations(self, admitted_at_ms: int, estimate: Estimate) -> tuple[Reservation, ...]:
        """The reservations of a request that was admitted at that time."""
        return self._reservations(self._buckets, admitted_at_ms, estimate)

    def _reservations(self, buckets: Buckets, admitted_at_ms: int, estimate: Estimate) -> tuple[Reservation, ...]:
        """The reservations of `buckets`, which are those of requests and TOKEN limits, and of the other types."""
        further = reservations_of(self.plan.key, self._further, admitted_at_ms, estimate) if self._further else ()
        if not buckets:
            return further
        own = Reservation(
            key=self.plan.key,
            buckets=buckets,
            admitted_at_ms=admitted_at_ms,
            reserved_tokens=estimate.expected,
            margin_tokens=estimate.margin,
        )
        return (own, *further)

    def taken(self, reply: list[int], estimates: Iterable[Estimate]) -> dict[Estimate, Taken]:
        """Return what a request of each estimate took. All get the limits' figures after the last request."""
        lines = self._lines_of(reply)
        tightest = partial(self.tightest, reply)
        by_estimate: dict[Estimate, Taken] = {}
        for estimate in set(estimates):
            returnable = self._reservations(self._buckets, reply[12], estimate)
            settled = returnable
            if self._token_buckets is not self._buckets:
                settled = self._reservations(self._token_buckets, reply[12], estimate)
            by_estimate[estimate] = Taken(settled, returnable, lines, tightest, self.place)
        return by_estimate

    def _lines_of(self, reply: list[int]) -> str:
        """Format the header fields of the tightest limits, as `rate_limit_lines` does."""
        _, _, _, _, _, _, request_place, requests, requests_ms, token_place, tokens, tokens_ms, _ = reply
        lines = ""
        if request_place:
            before, between = self._names.get(request_place) or self._names_at(request_place)
            lines = f"{before}{requests}{between}{duration_text(requests_ms)}\r\n"
        if token_place:
            before, between = self._names.get(token_place) or self._names_at(token_place)
            lines = f"{lines}{before}{tokens}{between}{duration_text(tokens_ms)}\r\n"
        return lines

    def _names_at(self, place: int) -> tuple[str, str]:
        """The names of the fields that tell of a limit. Few of a plan's limits are ever the tightest."""
        names = self._names[place] = _names(self.plan.bound(place - 1).limit)
        return names

    def tightest(self, reply: list[int]) -> Tightest:
        _, _, _, _, _, _, request_place, requests, requests_ms, token_place, tokens, tokens_ms, _ = reply
        return self._status(request_place, requests, requests_ms), self._status(token_place, tokens, tokens_ms)

    def _status(self, place: int, remaining: int, reset_ms: int) -> LimitStatus | None:
        """The status of a bound. `place`: the bound's, from 1; 0: there is none."""
        if not place:
            return None
        return LimitStatus(self.plan.bound(place - 1).limit.threshold, remaining, reset_ms, place - 1)

    def limit_hit(self, reply: list[int]) -> LimitHit:
        _, _, refused_by, retry_ms, counted_retry_ms, hard_retry_ms, *_ = reply
        bound = self.plan.bound(refused_by - 1)
        return LimitHit(bound, retry_ms, *self.tightest(reply), counted_retry_ms, hard_retry_ms)

    def cached_refusal(self, now: float) -> LimitHit | None:
        """The last refusal with its waits as of `now`. None if Redis has to be asked."""
        if self._closed is not None:
            return self._closed
        if self.refusal is None or self.refused_until <= now:
            return None
        return _aged(self.refusal, int((now - self.refused_at) * 1000))

    def forget_refusal(self) -> None:
        """Ask Redis again, unless a threshold of 0 refuses every call."""
        self.refused_until = 0.0 if self._closed is None else inf

    def cache_refusal(self, hit: LimitHit, sent_at: float) -> bool:
        """Repeat this refusal for a while without asking Redis. Returns whether a settlement or a returned reservation
        may lift it; such a refusal is repeated for 100 ms at most (docs/reference/limits.md#local-refusals).

        `sent_at` is earlier than Redis' clock in the reply, and Redis truncates its clock to the millisecond. So Redis
        would still refuse until `sent_at` + wait - 1 ms.
        """
        hard_retry_after_ms = hit.hard_retry_after_ms
        is_soft = hard_retry_after_ms == 0
        if is_soft:
            kept_ms = min(hit.retry_after_ms, SOFT_REFUSAL_MAX_MS)
        else:
            kept_ms = min(hard_retry_after_ms, HARD_REFUSAL_MAX_MS)
        self.refusal = hit
        self.refused_at = sent_at
        self.refused_until = sent_at + (kept_ms - 1) / 1000
        return is_soft


def _names(limit: Limit) -> tuple[str, str]:
    return rate_limit_names("requests" if limit.type is LimitType.REQUEST else "tokens", limit.threshold)


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
