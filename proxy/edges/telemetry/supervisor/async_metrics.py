"""Metrics of this machine's asynchronous requests, and of the present state of the shared queue.

The counts are sums over the machine's workers. The gauges are read from the queue at each scrape, so every machine
exports the same; while the queue does not answer there are none. The labels are bounded.

See docs/reference/metrics.md.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.async_requests.queues import QueueOverview, QueueUnavailableError
from proxy.async_requests.requests import PRIORITIES, DeploymentFigures, DeploymentRef
from proxy.edges.telemetry.async_counts import ATTEMPT_BOUNDS_S, QUEUED_BOUNDS_S
from proxy.edges.telemetry.supervisor.bounded_labels import OTHER, BoundedLabels

READ_TIMEOUT_S = 0.8
"""The longest wait of a scrape for the queue."""
QUIET_S = 300.0
"""The time for which a deployment without requests keeps its series: longer than any scrape interval."""
_LABELS = ("workspace", "model_id", "deployment_id")
_HISTOGRAMS = {
    "queued": ("tollgate_async_time_in_queue_seconds", "From acceptance to the first attempt's start", QUEUED_BOUNDS_S),
    "attempt": ("tollgate_async_attempt_seconds", "From an attempt's start to its end", ATTEMPT_BOUNDS_S),
}

Labels = tuple[str, ...]


class _Sums:
    """The figures of the deployments that share a set of labels: usually one."""

    def __init__(self) -> None:
        self.queued: Counter[int] = Counter()
        self.in_progress = 0
        self.oldest_s = 0.0

    def add(self, figures: DeploymentFigures) -> None:
        self.queued.update(figures.queued)
        self.in_progress += figures.in_progress
        self.oldest_s = max(self.oldest_s, figures.oldest_queued_s or 0.0)


class AsyncMetrics(Collector):
    """Metrics of asynchronous requests. `add` and `read` run on the event loop; `collect` renders, in a thread."""

    def __init__(self, max_deployments: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.queue: QueueOverview | None = None
        """The shared queue; None if this machine serves no asynchronous requests."""
        self.exists: Callable[[str], bool] = lambda deployment_id: True
        """Returns whether policy still has the deployment."""
        self._clock = clock
        self._labels = BoundedLabels(max_deployments)
        self._seen_at_s: dict[Labels, float] = {}
        self._requests: Counter[Labels] = Counter()
        self._attempts: Counter[str] = Counter()
        self._deliveries: Counter[str] = Counter()
        self._histograms = {name: ([0] * (len(bounds) + 1), [0.0]) for name, (_, _, bounds) in _HISTOGRAMS.items()}
        self._figures: dict[Labels, _Sums] | None = None

    def add(self, counts: dict[str, Any]) -> None:
        """Add what a worker counted since it last sent. `counts` may be empty."""
        if not counts:
            return
        for workspace, model_id, deployment_id, status, count in counts["requests"]:
            labels = self._seen(DeploymentRef(workspace, model_id, deployment_id))
            self._requests[*labels, status] += count
        self._attempts.update(counts["attempts"])
        self._deliveries.update(counts["deliveries"])
        for name, (buckets, total) in counts["histograms"].items():
            sums, totals = self._histograms[name]
            sums[:] = map(int.__add__, sums, buckets)
            totals[0] += total

    async def read(self) -> None:
        """Take the queue's figures. There are none if it does not answer in time."""
        if self.queue is None:
            return
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                rows = await self.queue.overview()
        except (TimeoutError, QueueUnavailableError):
            self._figures = None
            return
        sums: defaultdict[Labels, _Sums] = defaultdict(_Sums)
        for figures in rows:
            sums[self._seen(figures.deployment)].add(figures)
        self._forget()
        self._figures = {labels: sums[labels] for labels in self._seen_at_s}  # zeros of those that had some lately

    def _seen(self, deployment: DeploymentRef) -> Labels:
        """The labels of a deployment that has requests now. Notes the time."""
        id = self._labels.bounded(deployment.workspace_id, deployment.deployment_id)
        labels = (deployment.workspace_id, OTHER if id == OTHER else deployment.model_id, id)
        self._seen_at_s[labels] = self._clock()
        return labels

    def _forget(self) -> None:
        """End the gauges of deployments without requests, and the counts of those that were deleted."""
        before_s = self._clock() - QUIET_S
        for labels in [labels for labels, seen_at_s in self._seen_at_s.items() if seen_at_s < before_s]:
            del self._seen_at_s[labels]
        for key in [key for key in self._requests if key[:3] not in self._seen_at_s and key[2] != OTHER]:
            if not self.exists(key[2]):
                del self._requests[key]
        self._labels.keep((key[0], key[2]) for key in (*self._seen_at_s, *self._requests))

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        about = "Requests that have ended, by their final status"
        requests = CounterMetricFamily("tollgate_async_requests", about, labels=[*_LABELS, "status"])
        for labels, count in list(self._requests.items()):
            requests.add_metric(labels, count)
        yield requests
        yield _by_outcome("tollgate_async_attempts", "Attempts that ended", self._attempts)
        yield _by_outcome("tollgate_async_webhook_deliveries", "Deliveries to webhooks", self._deliveries)
        for key, (name, about, bounds) in _HISTOGRAMS.items():
            counts, total = self._histograms[key]
            edges = [*(str(bound) for bound in bounds), "+Inf"]
            buckets = list(zip(edges, accumulate(counts), strict=True))
            yield HistogramMetricFamily(name, about, buckets=buckets, sum_value=total[0])

    def _gauges(self) -> Iterator[Metric]:
        all_figures = self._figures
        if all_figures is None:
            return
        queued = GaugeMetricFamily("tollgate_async_queued", "Requests that are QUEUED", labels=[*_LABELS, "priority"])
        running = GaugeMetricFamily("tollgate_async_in_progress", "Requests that are IN_PROGRESS", labels=_LABELS)
        oldest = GaugeMetricFamily(
            "tollgate_async_oldest_queued_seconds", "Age of the oldest request that is QUEUED", labels=_LABELS
        )
        for labels, figures in all_figures.items():
            for priority in PRIORITIES:
                queued.add_metric([*labels, str(priority)], figures.queued[priority])
            running.add_metric(labels, figures.in_progress)
            oldest.add_metric(labels, figures.oldest_s)
        yield from (queued, running, oldest)


def _by_outcome(name: str, about: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=["outcome"])
    for outcome, count in list(counts.items()):
        family.add_metric([outcome], count)
    return family
