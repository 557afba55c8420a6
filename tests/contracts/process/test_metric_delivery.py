"""Metrics on their way to a real collector: delivery, every kind of outage, recovery, the end of the process."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector as Source

from runtime.collector.http_session import MAX_ANSWER_BYTES
from runtime.collector.resource import resource_at
from runtime.metrics_export import export
from runtime.metrics_export.export import MetricExport
from runtime.metrics_export.settings import MetricExportSettings
from tests.collector import Collector, collector
from tests.ports import own_port
from tests.waiting import eventually

OFTEN = MetricExportSettings(interval_s=0.01)
PROTOBUF = {"content-type": "application/x-protobuf"}
REJECTING = ExportMetricsServiceResponse(partial_success=ExportMetricsPartialSuccess(rejected_data_points=1))


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20sesame")
        yield running


class Process:
    """A process with one counter."""

    def __init__(self, settings: MetricExportSettings = OFTEN) -> None:
        registry = CollectorRegistry()
        self.calls = Counter("calls_total", "", registry=registry)
        self.export = MetricExport(settings, resource_at("tollgate-test", 1234), (registry,))
        registry.register(self.export.counts)

    @property
    def outcomes(self) -> dict[str, float]:
        [family] = self.export.counts.collect()
        return {sample.labels["outcome"]: sample.value for sample in family.samples}

    async def failures(self, count: int) -> None:
        """Export until so many have failed."""
        while self.outcomes["failed"] < count:
            await self.export.export()


@pytest.fixture
async def process(collecting: Collector) -> AsyncIterator[Process]:
    yield Process()
    collecting.going_on.set()


def values_of(collecting: Collector) -> list[float]:
    return [point.value for point in collecting.points if point.name == "calls_total"]


async def test_metrics_reach_the_collector_with_resource_and_credential(
    process: Process, collecting: Collector
) -> None:
    process.calls.inc(3)
    await process.export.export()
    point = collecting.latest("calls_total")
    assert point is not None
    assert (point.kind, point.value) == ("sum", 3)
    assert point.resource["service.name"] == "tollgate-test"
    assert point.resource["service.instance.id"] == f"{point.resource['host.name']}:1234"
    assert collecting.requests[0]["authorization"] == "Bearer sesame"
    assert process.outcomes == {"exported": 1, "failed": 0}


async def test_exports_go_on_at_the_interval_and_sums_grow_in_one_stream(
    process: Process, collecting: Collector
) -> None:
    task = asyncio.create_task(process.export.run())
    for number in (1, 2, 3):
        process.calls.inc()
        await eventually(lambda: number in values_of(collecting), "an export")  # noqa: B023
    task.cancel()
    points = [point for point in collecting.points if point.name == "calls_total"]
    assert len({point.start_ns for point in points}) == 1
    assert [point.time_ns for point in points] == sorted({point.time_ns for point in points})


def answers_503(collecting: Collector) -> None:
    collecting.status = 503
    collecting.fields = {"retry-after": "3600"}


def answers_429(collecting: Collector) -> None:
    collecting.status = 429
    collecting.fields = {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}


def redirects(collecting: Collector) -> None:
    collecting.status = 301
    collecting.fields = {"location": "https://elsewhere.example/"}


def answers_html(collecting: Collector) -> None:
    collecting.answer = b"<h1>It works!</h1>"
    collecting.fields = {"content-type": "text/html; charset=utf-8"}


def answers_rubbish(collecting: Collector) -> None:
    collecting.answer = b"\xff" * 100
    collecting.fields = PROTOBUF


def rejects_a_part(collecting: Collector) -> None:
    collecting.answer = REJECTING.SerializeToString()
    collecting.fields = PROTOBUF


def answers_endlessly(collecting: Collector) -> None:
    collecting.answer = b"\xff" * (MAX_ANSWER_BYTES + 1)
    collecting.fields = {**PROTOBUF, "content-length": str(10**12)}


FAULTS: list[tuple[Callable[[Collector], None], str]] = [
    (answers_503, "it answered 503"),
    (answers_429, "it answered 429"),
    (redirects, "it answered 301"),
    (answers_html, "it answered with a page of HTML"),
    (answers_rubbish, "its answer is no protobuf"),
    (rejects_a_part, "it rejected a part of them"),
    (answers_endlessly, "its answer is no protobuf"),
]


@pytest.mark.parametrize(("fault", "cause"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
async def test_a_fault_is_counted_and_logged_once_and_afterwards_sums_are_complete(
    fault: Callable[[Collector], None],
    cause: str,
    process: Process,
    collecting: Collector,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    fault(collecting)
    for failures in (1, 2):
        process.calls.inc(5)
        await process.failures(failures)
    collecting.status = 200
    collecting.answer = b""
    collecting.fields = {}
    process.calls.inc()
    await process.export.export()
    point = collecting.latest("calls_total")
    assert point is not None
    assert point.value == 11
    began, ended = caplog.messages
    assert f"({cause})" in began
    assert "tollgate_metric_exports_total{outcome=failed}" in began
    assert "takes metrics again" in ended
    assert "sesame" not in caplog.text
    assert process.outcomes["failed"] == 2


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:{port}", "no connection"),
        ("http://user:hunter2@127.0.0.1:{port}", "no connection"),
        ("http://collector.invalid:4318", "its host name does not resolve"),
        ("{tls}", "the TLS handshake failed"),
    ],
)
async def test_a_collector_that_cannot_be_reached_is_told_of_once_without_its_url(
    url: str,
    cause: str,
    collecting: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = url.format(port=own_port(), tls=collecting.url.replace("http:", "https:"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    process = Process()
    await process.failures(2)
    [line] = caplog.messages
    assert f"({cause})" in line
    assert "hunter2" not in caplog.text
    assert "sesame" not in caplog.text


async def test_a_collector_that_never_answers_has_one_thread_and_delays_the_end_by_a_bounded_time(
    process: Process, collecting: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting.going_on.clear()
    before = threading.active_count()
    task = asyncio.create_task(process.export.run())
    await eventually(lambda: collecting.requests, "an export is being sent")
    threads = threading.active_count()
    assert threads <= before + 2, "the exporter's, and the collector's that holds it"
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    monkeypatch.setattr(export, "LAST_EXPORT_S", 0.01)
    await process.export.close()
    [line] = caplog.messages
    assert "did not take the last metrics" in line
    assert len(collecting.requests) == 1, "the last export waits for the one that hangs, in its thread"


class Broken(Source):
    """A source with a bug."""

    def collect(self) -> Iterator[Metric]:
        raise RuntimeError("a bug")


async def test_a_bug_in_a_source_is_logged_and_stops_nothing_that_ends(
    collecting: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    await MetricExport(OFTEN, resource_at("tollgate-test", 1234), (Broken(),)).close()
    [line] = caplog.messages
    assert "could not be exported" in line
    assert not collecting.requests


async def test_the_last_figures_are_sent_at_the_end(collecting: Collector) -> None:
    process = Process(MetricExportSettings(interval_s=3600))
    process.calls.inc(7)
    await process.export.close()
    point = collecting.latest("calls_total")
    assert point is not None
    assert point.value == 7
