"""Step 7: close the books, then tell. However the call ended, once, and without ever waiting.

`book` runs before the last byte leaves: the journal's `close`, and the true figure into the buckets. `tell` runs after:
metrics and the access log. Both are synchronous on purpose: they run in cancelled tasks.
"""

from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter, time_ns
from typing import Protocol

from policy.billing import Tokens
from policy.settlement import Settlement
from proxy.exchange import Admitted, Call
from proxy.grants import Grant
from proxy.recovery import CloseCall

_key_of = attrgetter("key")


class Journal(Protocol):
    """Where a call's end is written down."""

    def close(self, call: CloseCall) -> None: ...


class Counters(Protocol):
    """The buckets."""

    def next_number(self, key: str) -> int: ...

    def settle(self, settlement: Settlement) -> None:
        """Enqueues; never raises."""
        ...

    def give_back(self, grant: Grant) -> None:
        """Return all that was taken for a call that was never dispatched. Enqueues; never raises."""
        ...


class Expectations(Protocol):
    """How much output a call of (group, slug) brings."""

    def record(self, group_id: str, slug: str, output_tokens: int) -> None: ...


@dataclass(slots=True)
class Finished:
    """One ended request as metrics and access log tell of it; what never became known is "", None or 0.

    Nothing secret: of a key its prefix, of a target nothing.
    """

    ended_at_ms: int
    request_id: str
    method: str
    path: str
    status: int
    cause: str
    workspace_id: str
    external_entity_id: str
    group_id: str
    key_prefix: str
    slug: str
    request_bytes: int
    response_bytes: int
    tokens: Tokens | None
    duration_s: float
    ours_s: float
    """What was ours of the duration: neither the upstream's time nor the caller's."""
    upstream_s: float
    first_byte_s: float | None


class Meters(Protocol):
    """The metrics."""

    def finished(self, call: Finished) -> None: ...


class AccessLog(Protocol):
    """Where the lines go."""

    def record(self, call: Finished) -> None:
        """Enqueues; never raises, never waits."""
        ...


@dataclass(frozen=True, slots=True)
class SettleParts:
    """What settle works with."""

    journal: Journal
    counters: Counters
    expectations: Expectations
    meters: Meters
    access_log: AccessLog


class Settle:
    """Ends calls."""

    def __init__(self, parts: SettleParts) -> None:
        self._journal = parts.journal
        self._counters = parts.counters
        self._expectations = parts.expectations
        self._meters = parts.meters
        self._access_log = parts.access_log

    def book(self, call: Call) -> None:
        """True up the buckets and record the billing event. A second time does nothing."""
        admitted = call.admitted
        if admitted is None or call.booked:
            return
        call.booked = True
        reported = call.reader.tokens if call.reader is not None else None
        call.billed = tokens = reported if reported is not None else unreported_tokens(call, admitted)
        holds, counters = admitted.grant.holds, self._counters
        # What is given back is not settled: a replay of the journal finds no number that it could settle.
        numbers = tuple(map(counters.next_number, map(_key_of, holds))) if call.dispatched else ()
        try:
            if call.opened:
                now_ms = time_ns() // 1_000_000
                self._journal.close(CloseCall(admitted.event_key, call.status, tokens, now_ms, numbers))
        finally:
            if call.dispatched:
                for hold, number in zip(holds, numbers, strict=True):
                    counters.settle(Settlement(hold, number, tokens.input + tokens.output))
            else:
                counters.give_back(admitted.grant)
        if reported is not None:
            plan = admitted.routed.plan
            self._expectations.record(plan.group_id, plan.slug, tokens.output)

    def tell(self, call: Call) -> None:
        """Count and log. Requests made with a group's key carry its label, whatever came of them (spec 8.2)."""
        arrived, identified, incoming = call.arrived, call.identified, call.incoming
        key, group = (identified.key, identified.group) if identified is not None else (None, None)
        duration_s = perf_counter() - incoming.received_at
        ours_s = duration_s - call.upstream_s - incoming.body_wait_s - call.outgoing.room_wait_s
        finished = Finished(  # by place: names cost as much again
            time_ns() // 1_000_000,
            arrived.request_id if arrived is not None else "",
            incoming.method,
            arrived.path if arrived is not None else "",
            call.status,
            call.cause,
            key.workspace_id if key is not None else "",
            group.external_entity_id if group is not None else "",
            key.group_id or "" if key is not None else "",
            key.prefix if key is not None else "",
            call.routed.plan.slug if call.routed is not None else "",
            call.request_bytes,
            call.outgoing.sent_bytes,
            call.billed if call.opened else None,
            duration_s,
            ours_s if ours_s > 0 else 0.0,
            call.upstream_s,
            call.first_byte_s,
        )
        self._access_log.record(finished)
        self._meters.finished(finished)


def unreported_tokens(call: Call, admitted: Admitted) -> Tokens:
    """What is billed when the provider has reported nothing: the estimate once anything was answered, else zero
    (decisions 7)."""
    return admitted.estimate if call.answered else Tokens()
