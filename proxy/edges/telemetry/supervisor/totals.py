"""Adds up the counts of all workers, dead ones included, and renders them as Prometheus text.

Counters only grow while the supervisor lives; gauges are sums over the living workers. The numbers of
`external_entity_id` and `model_slug` values are bounded; further values count as `_other`. Series of deleted slugs are
removed once every scraper has seen their last value.

See docs/reference/metrics.md.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import accumulate
from operator import add
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from policy.prices import amount_of
from proxy.edges.telemetry.metrics import DURATION_BOUNDS_S, FIRST_BYTE_BOUNDS_S, OVERHEAD_BOUNDS_S, REDIS_BOUNDS_S
from proxy.edges.telemetry.supervisor.async_metrics import AsyncMetrics
from proxy.edges.telemetry.supervisor.bounded_labels import BoundedLabels
from proxy.edges.telemetry.supervisor.gen_ai_metrics import GenAiMetrics
from proxy.edges.telemetry.supervisor.trace_totals import TraceTotals
from runtime.metrics_text import ALL_WORKSPACES, rendered

PROVIDER_OVERRUN = "provider"
"""The reason of an overrun of HARD spend limits or balances that proxies see. Control counts the others."""

QUIET_S = 300.0
"""The time without calls after which a slug's series may be removed: longer than any scrape interval."""
TOKEN_KINDS = ("uncached_input", "cached_input", "output")
_HISTOGRAMS = {
    "duration": ("tollgate_request_duration_seconds", "From the request's head to the answer's end", DURATION_BOUNDS_S),
    "overhead": ("tollgate_overhead_seconds", "Time spent in the gateway, not in the upstream", OVERHEAD_BOUNDS_S),
    "first_byte": ("tollgate_time_to_first_byte_seconds", "From the head to the first byte", FIRST_BYTE_BOUNDS_S),
    "redis": ("tollgate_redis_round_trip_seconds", "One admission step in Redis", REDIS_BOUNDS_S),
}
_GAUGES = {
    "in_flight": ("tollgate_inflight_requests", "Requests being answered now"),
    "parked": ("tollgate_parked_requests", "Requests that wait for a replica now"),
    "held_bytes": ("tollgate_held_bytes", "Bytes of requests and unstreamed answers in the workers' memory now"),
}


class MetricTotals(Collector):
    """Adds up what workers send. `readings` gives the supervisor's own gauges at each scrape."""

    def __init__(
        self,
        max_entities: int,
        readings: Callable[[], Iterable[tuple[str, str, float]]],
        max_slugs: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readings = readings
        self._clock = clock
        self._entities = BoundedLabels(max_entities)
        self._slugs = BoundedLabels(max_slugs)
        self._called_at_s: dict[str, float] = {}  # by slug
        self._requests: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._tokens: dict[tuple[str, ...], list[int]] = {}
        """The sums of each of `TOKEN_KINDS`."""
        self._spend: defaultdict[tuple[str, ...], int] = defaultdict(int)
        """Whole units of `policy.prices.Rates`, so that sums are exact."""
        self._unpriced: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._decisions: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._sheds: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._unreported: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._decided_alone = 0
        self._overrun_tokens = 0
        self._spend_overruns = 0
        self._histograms = {name: ([0] * (len(bounds) + 1), [0.0]) for name, (_, _, bounds) in _HISTOGRAMS.items()}
        self._gauges: dict[int, dict[str, float]] = {}
        self._traces = TraceTotals()
        self._gen_ai = GenAiMetrics(max_slugs)
        self.async_requests = AsyncMetrics(max_slugs, clock)
        """The metrics of asynchronous requests, rendered with these."""
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(self.async_requests)

    def include(self, metrics: Collector) -> None:
        """Render these too. They must not change while they are rendered."""
        self._registry.register(metrics)

    @property
    def exported(self) -> tuple[Collector, ...]:
        """All that is sent by OTLP."""
        return self._registry, self._gen_ai

    def add(self, worker: int, counts: dict[str, Any]) -> None:
        """Add what `worker` counted since it last sent, and replace its gauges."""
        now_s = self._clock()
        for workspace, entity, model_slug, status, calls, *tokens in counts["calls"]:
            slug = self._slugs.bounded(workspace, model_slug)
            if slug == model_slug != "":
                self._called_at_s[slug] = now_s
            where = (workspace, self._entities.bounded(workspace, entity), slug)
            self._requests[*where, str(status)] += calls
            if any(tokens):
                sums = self._tokens.get(where)
                self._tokens[where] = tokens if sums is None else list(map(add, sums, tokens))
        for workspace, entity, model_slug, currency, calls, units in counts["spend"]:
            slug = self._slugs.bounded(workspace, model_slug)
            if currency:
                self._spend[workspace, self._entities.bounded(workspace, entity), slug, currency] += int(units)
            else:
                self._unpriced[workspace, slug] += calls
        for *labels, count in counts["decisions"]:
            self._decisions[tuple(labels)] += count
        for *labels, count in counts["sheds"]:
            self._sheds[tuple(labels)] += count
        for reason, count in counts["unreported"].items():
            self._unreported[reason,] += count
        self._decided_alone += counts["decided_alone"]
        self._overrun_tokens += counts["overrun_tokens"]
        self._spend_overruns += counts["spend_overruns"]
        for name, (buckets, total) in counts["histograms"].items():
            sums, totals = self._histograms[name]
            sums[:] = map(int.__add__, sums, buckets)
            totals[0] += total
        self._gauges[worker] = counts["gauges"]
        if "traces" in counts:
            self._traces.add(counts["traces"])
        self.async_requests.add(counts["async"])
        self._gen_ai.add(counts.get("gen_ai", ()))

    def forget_gauges(self, worker: int) -> None:
        """Drop the gauges of a worker that died. Its counts stay."""
        self._gauges.pop(worker, None)

    def quiet_slugs(self) -> set[str]:
        """Slugs that were not called for a while. Their series may be removed if the slugs were deleted."""
        before_s = self._clock() - QUIET_S
        return {slug for slug, called_at_s in self._called_at_s.items() if called_at_s <= before_s}

    def forget_slugs(self, slugs: Set[str]) -> None:
        """Remove these slugs' series, and free the label values that only they used."""
        for series, place in ((self._requests, 2), (self._tokens, 2), (self._spend, 2), (self._unpriced, 1)):
            for key in [key for key in series if key[place] in slugs]:
                del series[key]
        self._gen_ai.forget_slugs(slugs)
        for slug in slugs:
            self._called_at_s.pop(slug, None)
        self._entities.keep((workspace, entity) for workspace, entity, _, _ in self._requests)
        self._slugs.keep((workspace, slug) for workspace, _, slug, _ in self._requests)

    def text(self, accept: str = "", workspace: str = ALL_WORKSPACES) -> tuple[bytes, str]:
        """The metrics of one workspace or of all, and their content type, as an Accept field wants them.

        May run in a thread beside `add`: it works on copies.
        """
        return rendered(self._registry, accept, workspace)

    def collect(self) -> Iterator[Metric]:
        labels = ["workspace", "external_entity_id", "model_slug"]
        yield _counter(
            "platform_model_api_inference_requests", "Inference requests", [*labels, "status_code"], self._requests
        )
        tokens = {
            (*where, kind): count
            for where, sums in list(self._tokens.items())
            for kind, count in zip(TOKEN_KINDS, sums, strict=True)
            if count
        }
        yield _counter("platform_model_api_tokens", "Tokens; the kinds add up", [*labels, "kind"], tokens)
        about = "The cost of the calls that were billed, by the operator's prices"
        spend = {key: float(amount_of(units)) for key, units in list(self._spend.items())}
        yield _counter("tollgate_spend", about, [*labels, "currency"], spend)
        about = "Calls that were billed through a slug without a price"
        yield _counter("tollgate_unpriced_calls", about, ["workspace", "model_slug"], self._unpriced)
        yield _counter("tollgate_limit_decisions", "Admissions", ["outcome", "type", "unit"], self._decisions)
        about = "Calls answered 529, by the resource that had run out and its scope (worker, workspace or key)"
        yield _counter("tollgate_shed_requests", about, ["resource", "scope"], self._sheds)
        about = "Answers billed by what was delivered, because usage was missing or implausible"
        yield _counter("tollgate_usage_not_reported", about, ["reason"], self._unreported)
        about = "Limit checks that workers decided by their shares while Redis was unreachable"
        yield _counter("tollgate_local_limit_decisions", about, [], {(): self._decided_alone})
        about = "Tokens of calls beyond what they were taken to cost at most when they were admitted"
        yield _counter("tollgate_reservation_overrun_tokens", about, [], {(): self._overrun_tokens})
        about = "Calls that cost more than hard spend limits or balances had reserved for them, by the reason"
        yield _counter("tollgate_spend_overrun", about, ["reason"], {(PROVIDER_OVERRUN,): self._spend_overruns})
        for key, (name, about, bounds) in _HISTOGRAMS.items():
            counts, total = self._histograms[key]
            edges = [*(str(bound) for bound in bounds), "+Inf"]
            exemplars = [self._traces.exemplar(key, bucket) for bucket in range(len(edges))]
            family = HistogramMetricFamily(name, about)
            family.add_metric([], list(zip(edges, accumulate(counts), exemplars, strict=True)), total[0])
            yield family
        yield self._traces.spans()
        for name, about, value in (*self._summed_gauges(), *self._readings()):
            yield GaugeMetricFamily(name, about, value=value)

    def _summed_gauges(self) -> Iterator[tuple[str, str, float]]:
        by_worker = list(self._gauges.values())
        for key, (name, about) in _GAUGES.items():
            yield name, about, sum(gauges.get(key, 0) for gauges in by_worker)


def _counter(name: str, about: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, value in list(values.items()):
        family.add_metric(key, value)
    return family
