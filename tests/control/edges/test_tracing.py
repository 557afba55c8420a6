"""Spans of management calls: names, attributes, log lines, exemplars; none for machines' calls."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtime.log_schema import log_line
from runtime.tracing.current import add_ids_to_log_lines
from runtime.tracing.settings import TraceSettings
from tests.collector import Collector, collector
from tests.control.plane import METRICS_TOKEN, ControlPlane, running_plane
from tests.waiting import eventually

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"
OPEN_METRICS = {"Accept": "application/openmetrics-text"}


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        yield running


@pytest.fixture
async def plane(collecting: Collector, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    url = f"sqlite+aiosqlite:///{tmp_path}/c.db"
    async with running_plane(url, traces=TraceSettings(delay_ms=10)) as running:
        yield running


async def test_management_call_has_a_span_by_its_route_below_the_callers(
    plane: ControlPlane, collecting: Collector
) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-01"}
    (await plane.get("/v1/models/mdl_none?limit=1", headers=headers)).refused(404)
    (await plane.get("/v1/made/up/by/the/caller")).refused(404)
    assert (await plane.get("/healthz")).status == 200
    assert (await plane.get("/internal/v1/snapshot")).status == 401
    (await plane.get("/v1/models", headers={"traceparent": "garbage"})).ok()
    await eventually(lambda: len(collecting.spans) == 2, "two spans")
    one, other = collecting.spans
    assert (one.name, one.trace_id, one.parent_id) == ("GET /v1/models/{model_id}", TRACE_ID, CALLERS_SPAN)
    assert one.attributes == {
        "http.request.method": "GET",
        "http.route": "/v1/models/{model_id}",
        "url.scheme": "http",
        "http.response.status_code": 404,
    }
    assert not one.is_error
    assert one.resource["service.name"] == "tollgate-control"
    assert (other.name, other.parent_id) == ("GET /v1/models", "")


async def test_log_line_and_exemplar_of_a_management_call_name_its_span(
    plane: ControlPlane, collecting: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    add_ids_to_log_lines()  # to the handler of `caplog`
    (await plane.get("/v1/models")).ok()
    await eventually(lambda: collecting.spans, "a span")
    [span] = collecting.spans
    lines = [json.loads(log_line(record)) for record in caplog.records if record.getMessage() == "request"]
    assert (lines[0]["trace_id"], lines[0]["span_id"]) == (span.trace_id, span.span_id)
    metrics = await plane.get("/metrics", key=METRICS_TOKEN, headers=OPEN_METRICS)
    assert metrics.headers["Content-Type"].startswith("application/openmetrics-text")
    assert f'# {{trace_id="{span.trace_id}"}}' in metrics.body
    assert 'tollgate_trace_spans_total{outcome="dropped"} 0.0' in metrics.body
    plain = await plane.get("/metrics", key=METRICS_TOKEN)
    assert span.trace_id not in plain.body
