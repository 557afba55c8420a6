"""Prometheus metrics as OTLP points: names, units, values, start times, batches."""

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family

from runtime.metrics_export.points import Points
from runtime.metrics_export.streams import StreamStarts

BEGAN_NS = 1_000


def export(starts: StreamStarts, now_ns: int, families: Iterable[Family], most: int = 100) -> list[list[Any]]:
    return list(Points(starts, starts.begin(now_ns)).batches(families, most))


def only_point(batches: list[list[Any]]) -> Any:
    [[metric]] = batches
    [point] = metric.data.data_points
    return point


def counted(value: float, *labels: str) -> Family:
    family = CounterMetricFamily("calls", "", labels=["slug"])
    for label in labels or ("a",):
        family.add_metric([label], value)
    return family


def test_counter_gauge_and_histogram_keep_their_names_and_values() -> None:
    registry = CollectorRegistry()
    Counter("calls_total", "All calls", ["slug"], registry=registry).labels("a/b").inc(3)
    Gauge("held_bytes", "Held", registry=registry).set(2.5)
    histogram = Histogram("wait_seconds", "Waits", registry=registry, buckets=(1, 5))
    for value in (0.5, 1, 7):
        histogram.observe(value)
    [[calls, memory, waits]] = export(StreamStarts(BEGAN_NS), 2_000, registry.collect())
    assert (calls.name, calls.unit, calls.description, calls.data.is_monotonic) == (
        "calls_total",
        "",
        "All calls",
        True,
    )
    [point] = calls.data.data_points
    assert (point.attributes, point.value, point.start_time_unix_nano, point.time_unix_nano) == (
        *({"slug": "a/b"}, 3, BEGAN_NS, 2_000),
    )
    assert (memory.name, memory.unit, memory.data.data_points[0].value) == ("held_bytes", "By", 2.5)
    assert (waits.name, waits.unit) == ("wait_seconds", "s")
    [point] = waits.data.data_points
    assert (point.explicit_bounds, point.bucket_counts, point.count, point.sum) == ([1, 5], [2, 0, 1], 3, 8.5)


def test_a_series_starts_when_the_registry_was_read_without_it() -> None:
    starts = StreamStarts(BEGAN_NS)
    export(starts, 2_000, [counted(5)])
    export(starts, 3_000, [counted(6)])
    [[metric]] = export(starts, 4_000, [counted(7, "a", "b")])
    assert [point.start_time_unix_nano for point in metric.data.data_points] == [BEGAN_NS, 3_000]


def test_a_series_that_was_removed_or_began_again_is_a_new_stream() -> None:
    starts = StreamStarts(BEGAN_NS)
    export(starts, 2_000, [counted(5)])
    export(starts, 3_000, [])
    assert only_point(export(starts, 4_000, [counted(9)])).start_time_unix_nano == 3_000
    assert only_point(export(starts, 5_000, [counted(2)])).start_time_unix_nano == 4_000
    assert only_point(export(starts, 6_000, [counted(2)])).start_time_unix_nano == 4_000


def test_times_of_points_never_go_back_with_the_clock() -> None:
    starts = StreamStarts(BEGAN_NS)
    times = [only_point(export(starts, now, [counted(1)])).time_unix_nano for now in (2_000, 500, 600, 3_000)]
    assert times == [2_000, 2_001, 2_002, 3_000]


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_batches_hold_every_point_once(most: int) -> None:
    labels = [str(number) for number in range(7)]
    families = [counted(1, *labels), counted(2, *labels)]
    batches = export(StreamStarts(BEGAN_NS), 2_000, families, most)
    sizes = [sum(len(metric.data.data_points) for metric in batch) for batch in batches]
    assert sum(sizes) == 14
    assert all(size == most for size in sizes[:-1])
    points = [point for batch in batches for metric in batch for point in metric.data.data_points]
    assert [point.attributes["slug"] for point in points] == labels * 2


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^build is a info: expected"):
        export(StreamStarts(BEGAN_NS), 2_000, [InfoMetricFamily("build", "", {"a": "b"})])
