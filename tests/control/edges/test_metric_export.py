"""Control's metrics at a collector: the same figures as on `/metrics`, and the last ones at its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.metrics_export.settings import MetricExportSettings
from tests.collector import Collector, collector
from tests.control.plane import METRICS_TOKEN, running_plane
from tests.waiting import eventually


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        yield running


async def test_controls_metrics_arrive_as_they_are_scraped(collecting: Collector, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/c.db"
    async with running_plane(url, metric_export=MetricExportSettings(interval_s=0.05)) as plane:
        (await plane.get("/v1/models")).ok()
        attributes = {"method": "GET", "route": "/v1/models", "status_code": "200"}
        name = "tollgate_control_requests_total"
        await eventually(lambda: collecting.latest(name, **attributes), "the call's count")
        scraped = await plane.get("/metrics", key=METRICS_TOKEN)
        assert 'tollgate_metric_exports_total{outcome="exported"}' in str(scraped.body)
        (await plane.get("/v1/models")).ok()
    point = collecting.latest(name, **attributes)
    assert point is not None
    assert point.value == 2, "the last figures, at the end"
    assert point.resource["service.name"] == "tollgate-control"
    durations = collecting.latest("tollgate_control_request_duration_seconds", method="GET", route="/v1/models")
    assert durations is not None
    assert (durations.kind, durations.unit, durations.count) == ("histogram", "s", 2)
