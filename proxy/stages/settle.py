"""Step 7: close the books, then tell. However the call ended, once, and without ever waiting.

`book` runs before the last byte leaves: the journal's `close`, and the true figure into the buckets. `tell` runs after:
metrics and the access log. Both are synchronous on purpose: they run in cancelled tasks.
"""

import logging
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter, time_ns
from typing import Protocol

from policy.billing import Tokens
from policy.limits.settlement import Settlement
from proxy.accounting.recovery import CloseCall
from proxy.accounting.reservations import Taken
from proxy.exchange import Call

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 1.0
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

    def give_back(self, taken: Taken) -> None:
        """Return all that was taken for a call that was never dispatched. Enqueues; never raises."""
        ...


class OutputEstimates(Protocol):
    """How much output a call of (group, slug) brings."""

    def record(self, group_id: str, slug: str, output_tokens: int) -> None: ...


@dataclass(slots=True)
class RequestReport:
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

    def usage_not_reported(self, reason: str) -> None:
        """An answer was billed by what was delivered. `reason`: `missing`, or `rejected` as not believed."""
        ...

    def finished(self, call: RequestReport) -> None: ...


class AccessLog(Protocol):
    """Where the lines go."""

    def record(self, call: RequestReport) -> None:
        """Enqueues; never raises, never waits."""
        ...


@dataclass(frozen=True, slots=True)
class SettleDependencies:
    """What settle works with."""

    journal: Journal
    counters: Counters
    output_estimates: OutputEstimates
    meters: Meters
    access_log: AccessLog


class Settle:
    """Ends calls."""

    def __init__(self, parts: SettleDependencies) -> None:
        self._journal = parts.journal
        self._counters = parts.counters
        self._output_estimates = parts.output_estimates
        self._meters = parts.meters
        self._access_log = parts.access_log
        self._rejections = _Rejections()

    def book(self, call: Call) -> None:
        """True up the buckets and record the billing event. A second time does nothing."""
        admitted = call.admitted
        if admitted is None or call.booked:
            return
        call.booked = True
        reported = call.reader.reported.tokens if call.reader is not None else None
        call.billed = tokens = reported if reported is not None else self._unreported(call)
        reservations, counters = admitted.taken.reservations, self._counters
        # What is given back is not settled: a replay of the journal finds no number that it could settle.
        numbers = tuple(map(counters.next_number, map(_key_of, reservations))) if call.dispatched else ()
        try:
            if call.opened:
                now_ms = time_ns() // 1_000_000
                self._journal.close(CloseCall(admitted.event_key, call.status, tokens, now_ms, numbers))
        finally:
            if call.dispatched:
                for reservation, number in zip(reservations, numbers, strict=True):
                    counters.settle(Settlement(reservation, number, tokens.input + tokens.output))
            else:
                counters.give_back(admitted.taken)
        if reported is not None:
            plan = admitted.routed.plan
            self._output_estimates.record(plan.group_id, plan.slug, tokens.output)

    def _unreported(self, call: Call) -> Tokens:
        """What is billed when the provider has reported nothing that is believed: what was delivered, else zero."""
        if call.reader is None or call.delivered is None:
            return Tokens()
        reported = call.reader.reported
        if reported.rejected:
            self._rejections.note(reported.rejected, call.routed.plan.slug if call.routed is not None else "")
        if not call.answered:
            return Tokens()
        self._meters.usage_not_reported("rejected" if reported.rejected else "missing")
        return call.delivered.tokens(reported.input)

    def tell(self, call: Call) -> None:
        """Count and log. Requests made with a group's key carry its label, whatever came of them."""
        arrived, identified, incoming = call.arrived, call.identified, call.incoming
        key, group = (identified.key, identified.group) if identified is not None else (None, None)
        duration_s = perf_counter() - incoming.received_at
        ours_s = duration_s - call.upstream_s - incoming.body_wait_s - call.outgoing.room_wait_s
        finished = RequestReport(  # by place: names cost as much again
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


class _Rejections:
    """Says in the log that reports were not believed, once in `LOG_INTERVAL_S`."""

    def __init__(self) -> None:
        self._unsaid = 0
        self._not_before = 0.0

    def note(self, why: str, slug: str) -> None:
        self._unsaid += 1
        if (now := perf_counter()) < self._not_before:
            return
        log.warning(
            "Usage report not believed (slug %s: %s; %d such reports since the last line). These calls are billed by"
            " what was delivered. Mend the target's server, or raise TOLLGATE_MAX_REPORTED_TOKENS if it is right.",
            *(slug, why, self._unsaid),
        )
        self._unsaid, self._not_before = 0, now + LOG_INTERVAL_S
