"""Counts what one worker does and sends the counts to the supervisor within 100 ms. Has ended calls logged meanwhile.

Counts are dropped once they are sent, so a worker's memory does not grow with label values. The supervisor adds them
up in `totals.py`. Decision 0005 says why these are not prometheus_client's multiprocess files.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from policy.limits.alerts import ReachedLimit
from policy.traffic import BUCKETS, FIRST_BYTE_BOUNDS_MS
from proxy.accounting.request_report import RequestReport
from proxy.accounting.reservations import LimitDecision
from proxy.accounting.slug_prices import Tariff
from proxy.capacity.worker_capacity import Capacity
from proxy.edges.telemetry.async_counts import AsyncCounts
from proxy.edges.telemetry.gen_ai_counts import GenAiCounts
from proxy.edges.telemetry.histogram_counts import HistogramCounts
from proxy.edges.telemetry.listed_calls import ListedCalls
from proxy.edges.telemetry.spend_counts import add_parts, no_sums, spend_of

FLUSH_AFTER_S = 0.1
COUNT_AFTER_CALLS = 64
"""The number of calls that are queued and then counted and logged together, which is cheaper than one by one."""

DURATION_BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0,
)  # fmt: skip
OVERHEAD_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
FIRST_BYTE_BOUNDS_S = tuple(bound_ms / 1000 for bound_ms in FIRST_BYTE_BOUNDS_MS)
REDIS_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
_duration_of = attrgetter("duration_s")
_ours_of = attrgetter("ours_s")


class CountsSink(Protocol):
    """Takes the counts. In a worker this is the channel to the supervisor."""

    @property
    def congested(self) -> bool: ...

    def counted(self, counts: dict[str, Any]) -> None: ...


class WorkerMetrics:
    """Counts what happens in one worker. Calls are queued, and counted and logged several at a time.

    A timer sends the counts every `FLUSH_AFTER_S` while there are any, or calls in flight. An idle worker has none.
    """

    def __init__(
        self,
        sink: CountsSink,
        log_calls: Callable[[Sequence[RequestReport]], None] | None = None,
        listed: ListedCalls | None = None,
        gen_ai: GenAiCounts | None = None,
    ) -> None:
        """`log_calls`: writes the access log; `listed`: makes rows of the list of requests. None in a process that
        serves no calls. `gen_ai`: None unless metrics are sent by OTLP."""
        self.async_requests = AsyncCounts(self.send_soon)
        """Counts of asynchronous requests."""
        self.traces: Callable[[], dict[str, Any]] | None = None
        """Returns what to send of traces; None while they are off."""
        self._sink = sink
        self._log_calls = log_calls
        self._listed = listed
        self._gen_ai = gen_ai
        self._loop = asyncio.get_running_loop()
        self._finished_calls: list[RequestReport] = []
        self._round_trips: list[float] = []
        self.redis_round_trip: Callable[[float], None] = self._round_trips.append
        """Queues how long Redis took, in seconds. It is counted with the calls that it was for."""
        self._decided: list[LimitDecision] = []
        self.limit_decision: Callable[[LimitDecision], None] = self._decided.append
        """Queues the decision on a call. It is counted when the call has finished."""
        self._reached: dict[ReachedLimit, None] = {}
        self._calls: dict[tuple[tuple[str, str, str], int, Tariff | None], tuple[list[int], list[int]]] = {}
        """The counts of calls by labels, status and tariff: `SUMS`, and the buckets in which times to first byte are
        counted."""
        self._first_bytes: dict[tuple[str, str], list[int]] = {}
        """Buckets of times to first byte, of answers that are no errors, by workspace and slug. Those of errors are in
        `_histograms`, which gets these, too, when counts are sent."""
        self._decisions: Counter[LimitDecision] = Counter()
        self._unreported: dict[str, int] = {}
        self._decided_alone = 0
        self._overrun_tokens = 0
        self._spend_overruns = 0
        self._clock_steps: list[tuple[str, int]] = []
        self._histograms = {
            "duration": HistogramCounts(DURATION_BOUNDS_S),
            "overhead": HistogramCounts(OVERHEAD_BOUNDS_S),
            "first_byte": HistogramCounts(FIRST_BYTE_BOUNDS_S),
            "redis": HistogramCounts(REDIS_BOUNDS_S),
        }
        self._capacity: Capacity | None = None
        self._in_flight_sent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def watch(self, capacity: Capacity) -> None:
        """Read the gauges from `capacity`."""
        self._capacity = capacity
        capacity.on_busy = self.send_soon

    def finished(self, call: RequestReport) -> None:
        self._finished_calls.append(call)
        if self._timer is None:
            self.send_soon()
        if len(self._finished_calls) >= COUNT_AFTER_CALLS:
            self._count()

    def limit_reached(self, limit: ReachedLimit) -> None:
        """Note a limit or balance whose use leaves no room. It is sent with the decision that it refused a call."""
        self._reached[limit] = None

    def usage_not_reported(self, reason: str) -> None:
        self._unreported[reason] = self._unreported.get(reason, 0) + 1

    def reservation_overrun(self, tokens: int) -> None:
        """Count the tokens by which a call's cost was above the most that was reserved for it."""
        self._overrun_tokens += tokens

    def spend_overrun(self) -> None:
        """Count a call that cost more than a HARD spend limit or balance reserved, as its provider reported."""
        self._spend_overruns += 1

    def redis_clock_stepped(self, server: str, by_ms: int) -> None:
        """Note that a Redis server's clock stepped. It is sent with the round trip in which that was noticed."""
        self._clock_steps.append((server, by_ms))

    def decided_alone(self) -> None:
        """Count a limit check that was decided without Redis, as TOLLGATE_LIMITS_ON_REDIS_LOSS allows."""
        self._decided_alone += 1

    def flush(self, *, is_last: bool = False) -> None:
        """Send what was counted since the last flush, unless the channel is congested."""
        self._count()
        if not self._sink.congested:
            counts = self._take_counts()
            if self._listed is not None:
                counts["requests"] = self._listed.drain(to_the_end=is_last)
            self._sink.counted(counts)

    def send_soon(self) -> None:
        """Have what is counted sent within `FLUSH_AFTER_S`."""
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(FLUSH_AFTER_S, self._flush_if_changed)

    def close(self) -> None:
        """Stop the timer and send the last counts."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.flush(is_last=True)

    def _flush_if_changed(self) -> None:
        self._timer = None
        self._count()
        if self._has_changed():
            self.flush()
        is_listing = self._listed is not None and self._listed.has_calls
        if is_listing or self._in_flight() or self._has_changed():  # if the channel is congested
            self.send_soon()

    def _has_changed(self) -> bool:
        """Return whether there are counts to send, or the number of calls in flight is another one."""
        counted = self._calls or self._decisions or self._decided_alone or self._histograms["redis"].sum
        is_due = self._listed is not None and self._listed.is_due
        return bool(counted or is_due or self.async_requests) or self._in_flight() != self._in_flight_sent

    def _in_flight(self) -> int:
        return self._capacity.in_flight if self._capacity is not None else 0

    def _count(self) -> None:
        """Count the queued calls, round trips and decisions, and log the calls."""
        self._decisions.update(self._decided)
        self._decided.clear()
        self._histograms["redis"].observe(self._round_trips)
        self._round_trips.clear()
        if ended := self._finished_calls.copy():
            self._finished_calls.clear()
            self._count_calls(ended)
            if self._log_calls is not None:
                self._log_calls(ended)
            if self._listed is not None:
                self._listed.add(ended)
            if self._gen_ai is not None:
                self._gen_ai.add(ended)

    def _count_calls(self, ended: list[RequestReport]) -> None:
        calls = self._calls
        histograms = self._histograms
        for call in ended:
            bill = call.bill
            tariff = None
            # What is billed has a route.
            if bill is not None and (prices := call.route.prices) is not None:  # type: ignore[union-attr]
                tariff = prices.tariff(call.ended_at_ms, bill.details.service_tier, bill.tokens.input)
            row = calls.get((call.labels.counted, call.status, tariff))
            sums, first_bytes = row if row is not None else self._uncounted(call, tariff)
            sums[0] += 1
            if bill is not None:
                inputs, outputs, cached_inputs = bill.tokens
                sums[1] += inputs - cached_inputs
                sums[2] += cached_inputs
                sums[3] += outputs
                sums[4] += 1
                if tariff is not None:
                    add_parts(sums, bill, is_count=call.is_count)
            if (first_byte_s := call.first_byte_s) is not None:
                first_bytes[bisect_left(FIRST_BYTE_BOUNDS_S, first_byte_s)] += 1
        histograms["duration"].observe(list(map(_duration_of, ended)))
        histograms["overhead"].observe(list(map(_ours_of, ended)))
        histograms["first_byte"].sum += sum([call.first_byte_s or 0.0 for call in ended])

    def _uncounted(self, call: RequestReport, tariff: Tariff | None) -> tuple[list[int], list[int]]:
        """Add and return the counts for calls like this one."""
        workspace_id, _entity_id, slug = call.labels.counted
        buckets = self._histograms["first_byte"].counts
        if call.status < 400:
            buckets = self._first_bytes.setdefault((workspace_id, slug), [0] * BUCKETS)
        counted = self._calls[call.labels.counted, call.status, tariff] = (no_sums(), buckets)
        return counted

    def _take_counts(self) -> dict[str, Any]:
        """Take the counts and empty their containers. New ones would lie in a burst's memory, and hold it (0052)."""
        first_byte = self._histograms["first_byte"].counts
        for bucket, calls in enumerate(map(sum, zip(*self._first_bytes.values(), strict=True))):
            first_byte[bucket] += calls
        alone = self._decided_alone
        self._decided_alone = 0
        overrun = self._overrun_tokens
        self._overrun_tokens = 0
        spend_overruns = self._spend_overruns
        self._spend_overruns = 0
        clock_steps = self._clock_steps.copy()
        self._clock_steps.clear()
        capacity = self._capacity
        sheds = {}
        gauges = {"in_flight": 0, "parked": 0, "held_bytes": 0}
        if capacity is not None:
            sheds = capacity.taken_sheds()
            gauges = {
                "in_flight": capacity.in_flight,
                "parked": capacity.parked,
                "held_bytes": capacity.held_bytes,
            }
        self._in_flight_sent = gauges["in_flight"]
        counts = {
            "calls": [[*labels, status, *sums[:4]] for (labels, status, _), (sums, _buckets) in self._calls.items()],
            "spend": [one for key, (sums, _buckets) in self._calls.items() for one in spend_of(*key, sums)],
            "first_bytes": [[*key, buckets] for key, buckets in self._first_bytes.items() if any(buckets)],
            "decisions": [[*key, count] for key, count in self._decisions.items()],
            "limits_reached": [[*limit] for limit in self._reached],
            "unreported": self._unreported.copy(),
            "decided_alone": alone,
            "overrun_tokens": overrun,
            "spend_overruns": spend_overruns,
            "clock_steps": clock_steps,
            "histograms": {name: one.drain() for name, one in self._histograms.items() if any(one.counts)},
            "sheds": [[*key, count] for key, count in sheds.items()],
            "gauges": gauges,
            "async": self.async_requests.drain(),
        }
        if self.traces is not None:
            counts["traces"] = self.traces()
        if self._gen_ai is not None:
            counts["gen_ai"] = self._gen_ai.drain()
        for container in (self._calls, self._first_bytes, self._decisions, self._reached, self._unreported):
            container.clear()
        return counts
