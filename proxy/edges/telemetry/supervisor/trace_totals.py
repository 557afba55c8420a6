"""Sums of the workers' reports on traces: exemplars of histograms' buckets, and spans by outcome."""

from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.samples import Exemplar


class TraceTotals:
    """The newest exemplar per bucket, and the spans of all workers by outcome. Empty while traces are off."""

    def __init__(self) -> None:
        self._exemplars: dict[tuple[str, int], Exemplar] = {}
        self._spans: dict[str, int] = {}

    def add(self, traces: dict[str, Any]) -> None:
        """Add what a worker sent."""
        for histogram, bucket, trace_id, value, at_s in traces["exemplars"]:
            self._exemplars[histogram, bucket] = Exemplar({"trace_id": trace_id}, value, at_s)
        for outcome, count in traces["spans"].items():
            self._spans[outcome] = self._spans.get(outcome, 0) + count

    def exemplar(self, histogram: str, bucket: int) -> Any:
        """An `Exemplar`, or None."""
        return self._exemplars.get((histogram, bucket))

    def spans(self) -> Metric:
        about = "Spans by what became of them: exported, failed (not taken by the collector), dropped (queue full)"
        family = CounterMetricFamily("tollgate_trace_spans", about, labels=["outcome"])
        for outcome, count in list(self._spans.items()):
            family.add_metric([outcome], count)
        return family
