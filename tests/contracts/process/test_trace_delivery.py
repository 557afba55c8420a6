"""Spans on their way to a real collector: delivery, outages, the bound of what waits, the end of the process."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from runtime.tracing.provider import Tracing
from runtime.tracing.settings import TraceSettings
from tests.collector import Collector, collector
from tests.ports import own_port
from tests.waiting import eventually

SMALL = TraceSettings(max_queue_spans=20, max_batch_spans=10, delay_ms=10)


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20sesame")
        yield running


@pytest.fixture
async def tracing(collecting: Collector) -> AsyncIterator[Tracing]:
    traces = Tracing(SMALL, "tollgate-test", {"service.instance.id": "one"})
    yield traces
    collecting.going_on.set()
    await traces.close()


def end_spans(traces: Tracing, count: int) -> None:
    for _ in range(count):
        traces.tracer.start_span("work").end()


async def test_spans_reach_the_collector_with_resource_and_credential(tracing: Tracing, collecting: Collector) -> None:
    end_spans(tracing, 3)
    await eventually(lambda: len(collecting.spans) == 3, "3 spans")
    assert {span.resource["service.name"] for span in collecting.spans} == {"tollgate-test"}
    assert {span.resource["service.instance.id"] for span in collecting.spans} == {"one"}
    assert collecting.requests[0]["authorization"] == "Bearer sesame"
    await eventually(lambda: tracing.counts.waiting == 0, "nothing waits")
    assert tracing.counts.drain() == {"exported": 3, "failed": 0, "dropped": 0}
    assert tracing.counts.drain() == {"exported": 0, "failed": 0, "dropped": 0}


async def test_the_environments_service_name_wins(collecting: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-eu")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=live")
    traces = Tracing(SMALL, "tollgate-test", {})
    end_spans(traces, 1)
    await traces.close()
    [span] = collecting.spans
    assert (span.resource["service.name"], span.resource["deployment.environment.name"]) == ("gateway-eu", "live")


async def test_a_collector_that_hangs_delays_nothing_and_all_beyond_the_bound_is_counted(
    tracing: Tracing, collecting: Collector
) -> None:
    collecting.going_on.clear()
    end_spans(tracing, 1)
    await eventually(lambda: collecting.requests, "a batch is being sent")
    end_spans(tracing, 1000)
    assert tracing.counts.waiting == SMALL.max_queue_spans
    assert tracing.counts.totals() == {"exported": 0, "failed": 0, "dropped": 1001 - SMALL.max_queue_spans}
    collecting.going_on.set()
    await eventually(lambda: tracing.counts.waiting == 0, "the rest is sent")
    assert len(collecting.spans) == tracing.counts.totals()["exported"] == SMALL.max_queue_spans


async def test_an_outage_is_counted_and_logged_once_with_its_end(
    tracing: Tracing, collecting: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    collecting.status = 401
    for batch_number in (1, 2):
        end_spans(tracing, 1)
        await eventually(lambda: tracing.counts.totals()["failed"] == batch_number, "the batch failed")  # noqa: B023
    collecting.status = 200
    end_spans(tracing, 1)
    await eventually(lambda: tracing.counts.totals()["exported"], "a batch got through")
    await eventually(lambda: len(caplog.messages) == 2, "the end is logged")
    began, ended = caplog.messages
    assert "it answered 401" in began
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in began
    assert "sesame" not in caplog.text
    assert "takes spans again" in ended


async def test_a_collector_that_is_away_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{own_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    traces = Tracing(SMALL, "tollgate-test", {})
    for batch_number in (1, 2):
        end_spans(traces, 1)
        await eventually(lambda: traces.counts.totals()["failed"] == batch_number, "the batch failed")  # noqa: B023
    await traces.close()
    [line] = caplog.messages
    assert "(no connection)" in line


async def test_the_end_of_a_process_sends_what_waits(collecting: Collector) -> None:
    traces = Tracing(TraceSettings(delay_ms=3_600_000), "tollgate-test", {})
    end_spans(traces, 3)
    await traces.close()
    assert len(collecting.spans) == 3


async def test_the_end_of_a_process_does_not_wait_for_a_collector_that_hangs(
    collecting: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.tracing.provider.FLUSH_S", 0.1)
    collecting.going_on.clear()
    traces = Tracing(SMALL, "tollgate-test", {})
    end_spans(traces, 5)
    await traces.close()
    assert "did not take the last 5 spans" in caplog.text
