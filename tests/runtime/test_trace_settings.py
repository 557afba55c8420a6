"""`TOLLGATE_TRACES`, the `OTEL_*` variables that are read with it, and what is not loaded while traces are off."""

import subprocess
import sys

import pytest

from runtime.environment import Environment, SettingsError
from runtime.tracing.settings import TraceSettings, trace_settings

ON = {"TOLLGATE_TRACES": "otlp"}


def read(environ: dict[str, str]) -> TraceSettings | None:
    return trace_settings(Environment(environ), "TOLLGATE_TRACES")


@pytest.mark.parametrize("environ", [{}, {"TOLLGATE_TRACES": ""}, {"TOLLGATE_TRACES": "off"}])
def test_traces_are_off_by_default(environ: dict[str, str]) -> None:
    assert read(environ | {"OTEL_BSP_MAX_QUEUE_SIZE": "nonsense"}) is None


def test_the_defaults_are_the_sdks() -> None:
    assert read(ON) == TraceSettings(2048, 512, 5000)
    sizes = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    assert read(ON | sizes | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}) == TraceSettings(8, 4, 100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOLLGATE_TRACES", "jaeger"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://collector:4317"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", 'a=1,x-key="hunter2"'),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049"),
    ],
)
def test_a_bad_value_ends_the_start_with_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: expected") as refused:
        read(ON | {name: value})
    assert value not in str(refused.value).partition("expected")[0]
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("value", ["authorization=Bearer%20x", "a=1, b=2,", "x-key=Basic dTpw==", "api-key="])
def test_usual_headers_are_accepted(value: str) -> None:
    assert read(ON | {"OTEL_EXPORTER_OTLP_HEADERS": value, "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example/otlp"})


_LOADED = """
import sys
import control.app, proxy.async_worker.app, proxy.supervisor.app, proxy.worker.app
loaded = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "requests", "google", "runtime.tracing.provider")
loaded += ("runtime.metrics_export.export", "runtime.metrics_export.sender", "runtime.collector.http_session")
print([name for name in loaded if name in sys.modules])
"""


def test_a_process_without_traces_and_otlp_metrics_loads_nothing_for_them() -> None:
    """redis-py loads OpenTelemetry's API by itself where it is installed."""
    result = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n"
