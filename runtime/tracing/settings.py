"""Reads `TOLLGATE_TRACES`, and those `OTEL_*` variables whose bad values would otherwise end a process later.

The SDK reads all others itself. Imports nothing of OpenTelemetry.

See docs/reference/traces.md#settings.
"""

from dataclasses import dataclass

from runtime.collector.variables import check_collector
from runtime.environment import Environment, SettingsError


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The settings of the queue in which spans wait for the collector. The defaults are the SDK's."""

    max_queue_spans: int = 2048
    """`OTEL_BSP_MAX_QUEUE_SIZE`: spans that wait, those being sent included. Further ones are dropped."""
    max_batch_spans: int = 512
    """`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`."""
    delay_ms: int = 5000
    """`OTEL_BSP_SCHEDULE_DELAY`: the time between two batches that are not full."""


def trace_settings(read: Environment, name: str) -> TraceSettings | None:
    """None unless the setting `name` is `otlp`. Raises `SettingsError` for the first invalid variable."""
    if not read.parsed(name, _is_otlp, "off"):
        return None
    check_collector(read, "TRACES")
    usual = TraceSettings()
    settings = TraceSettings(
        max_queue_spans=read.count("OTEL_BSP_MAX_QUEUE_SIZE", usual.max_queue_spans),
        max_batch_spans=read.count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", usual.max_batch_spans),
        delay_ms=read.count("OTEL_BSP_SCHEDULE_DELAY", usual.delay_ms),
    )
    if settings.max_batch_spans > settings.max_queue_spans:
        raise SettingsError("OTEL_BSP_MAX_EXPORT_BATCH_SIZE: expected at most OTEL_BSP_MAX_QUEUE_SIZE")
    return settings


def _is_otlp(text: str) -> bool:
    if text not in ("off", "otlp"):
        raise ValueError("expected off or otlp")
    return text == "otlp"
