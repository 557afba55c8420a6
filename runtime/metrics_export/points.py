"""Prometheus metrics as OTLP points, by OpenTelemetry's rules for both: same names, labels are attributes.

A counter is a cumulative monotonic sum, a histogram has explicit bounds. Exemplars are not sent: Prometheus' have no
span.
"""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from runtime.metrics_export.streams import StreamStarts

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNITS = (("_seconds", "s"), ("_bytes", "By"))
_TOTAL = "_total"


class Points:
    """Makes points of a registry's metrics at one time, in batches, so that few of them are in memory at once."""

    def __init__(self, starts: StreamStarts, time_ns: int) -> None:
        self._starts = starts
        self._time_ns = time_ns

    def batches(self, families: Iterable[Family], most: int) -> Iterator[list[Metric]]:
        """Yield all points, up to `most` at a time. A metric with more is in several batches."""
        batch: list[Metric] = []
        room = most
        for family in families:
            points = self._points_of(family)
            while chunk := list(islice(points, room)):
                batch.append(_metric(family, chunk))
                room -= len(chunk)
                if not room:
                    yield batch
                    batch = []
                    room = most
        if batch:
            yield batch

    def _points_of(self, family: Family) -> Iterator[NumberDataPoint | HistogramDataPoint]:
        if family.type == "histogram":
            return self._histograms(family)
        return self._numbers(family)

    def _numbers(self, family: Family) -> Iterator[NumberDataPoint]:
        is_sum = family.type == "counter"
        if not is_sum and family.type != "gauge":
            raise ValueError(f"{family.name} is a {family.type}: expected a counter, a gauge or a histogram")
        for sample in family.samples:
            if is_sum and not sample.name.endswith(_TOTAL):  # when it was created
                continue
            start_ns = self._start_of(family, sample) if is_sum else 0
            yield NumberDataPoint(sample.labels, start_ns, self._time_ns, sample.value)

    def _histograms(self, family: Family) -> Iterator[HistogramDataPoint]:
        """Yield a point per set of labels. Its buckets come before its sum."""
        edges: list[float] = []
        counts: list[int] = [0]
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                edges.append(float(sample.labels["le"]))
                counts.append(int(sample.value))
            elif sample.name.endswith("_sum"):
                buckets = [above - below for below, above in pairwise(counts)]
                total = counts[-1]
                start_ns = self._starts.start_of((family.name, *sample.labels.values()), total)
                yield HistogramDataPoint(
                    attributes=sample.labels,
                    start_time_unix_nano=start_ns,
                    time_unix_nano=self._time_ns,
                    count=total,
                    sum=sample.value,
                    bucket_counts=buckets,
                    explicit_bounds=edges[:-1],
                    min=None,  # type: ignore[arg-type]  # not known; the field is optional in OTLP
                    max=None,  # type: ignore[arg-type]
                )
                edges = []
                counts = [0]

    def _start_of(self, family: Family, sample: Sample) -> int:
        return self._starts.start_of((family.name, *sample.labels.values()), sample.value)


def _metric(family: Family, points: list[NumberDataPoint | HistogramDataPoint]) -> Metric:
    name = family.name
    data: Sum | Gauge | Histogram
    if family.type == "histogram":
        data = Histogram(points, _CUMULATIVE)  # type: ignore[arg-type]
    elif family.type == "counter":
        data = Sum(points, _CUMULATIVE, is_monotonic=True)  # type: ignore[arg-type]
        name += _TOTAL
    else:
        data = Gauge(points)  # type: ignore[arg-type]
    return Metric(name, family.documentation, _unit_of(family), data)


def _unit_of(family: Family) -> str:
    """The unit in UCUM, by the end of the name where the family says none."""
    return family.unit or next((unit for ending, unit in _UNITS if family.name.endswith(ending)), "")
