"""`TOLLGATE_METRICS`, the `OTEL_*` variables that are read with it, and what is not loaded without it."""

import pytest

from runtime.environment import Environment, SettingsError
from runtime.metrics_export.settings import MetricExportSettings, metric_export_settings

ON = {"TOLLGATE_METRICS": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def read(environ: dict[str, str]) -> MetricExportSettings | None:
    return metric_export_settings(Environment(environ), "TOLLGATE_METRICS")


@pytest.mark.parametrize("environ", [{}, {"TOLLGATE_METRICS": ""}, {"TOLLGATE_METRICS": "prometheus"}])
def test_metrics_are_for_prometheus_alone_by_default(environ: dict[str, str]) -> None:
    assert read(environ | {"OTEL_METRIC_EXPORT_INTERVAL": "nonsense"}) is None


def test_the_default_interval_is_the_sdks() -> None:
    assert read(ON) == MetricExportSettings(interval_s=60)
    own = {"TOLLGATE_METRICS": "otlp", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://c.example/v1/metrics"}
    assert read(own | {"OTEL_METRIC_EXPORT_INTERVAL": "1500"}) == MetricExportSettings(interval_s=1.5)


@pytest.mark.parametrize("traces", [{}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}])
def test_otlp_without_a_collector_ends_the_start_and_says_what_to_set(traces: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT is not set, and TOLLGATE_METRICS=otlp"):
        read({"TOLLGATE_METRICS": "otlp", **traces})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOLLGATE_METRICS", "statsd"),
        ("TOLLGATE_METRICS", "OTLP"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/none/hunter2.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "999"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1e4"),
    ],
)
def test_a_bad_value_ends_the_start_with_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: expected") as refused:
        read(ON | {name: value})
    assert "hunter2" not in str(refused.value)
