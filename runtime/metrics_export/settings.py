"""Reads `TOLLGATE_METRICS`, and the `OTEL_*` variables that matter with it. Imports nothing of OpenTelemetry.

See docs/reference/metrics.md#otlp.
"""

from dataclasses import dataclass

from runtime.collector.variables import check_collector, names_of, one_of
from runtime.environment import Environment, SettingsError

_SIGNAL = "METRICS"
_MIN_INTERVAL_MS = 1000


@dataclass(frozen=True, slots=True)
class MetricExportSettings:
    """The settings of exports. The default is the SDK's."""

    interval_s: float = 60.0
    """`OTEL_METRIC_EXPORT_INTERVAL`: the time between two exports."""


def metric_export_settings(read: Environment, name: str) -> MetricExportSettings | None:
    """None unless the setting `name` is `otlp`. Raises `SettingsError` for the first invalid variable."""
    if not read.parsed(name, _is_otlp, "prometheus"):
        return None
    check_collector(read, _SIGNAL)
    own, common = names_of(_SIGNAL, "ENDPOINT")
    if not (read.has(own) or read.has(common)):
        raise SettingsError(
            f"{common} is not set, and {name}=otlp needs it: expected the collector's URL, such as"
            " http://collector:4318"
        )
    temporality = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    read.parsed(temporality, one_of(("cumulative",)), "cumulative")
    interval_ms = read.parsed("OTEL_METRIC_EXPORT_INTERVAL", _interval_ms, "60000")
    return MetricExportSettings(interval_s=interval_ms / 1000)


def _is_otlp(text: str) -> bool:
    if text not in ("prometheus", "otlp"):
        raise ValueError("expected prometheus or otlp (which is sent beside Prometheus' metrics)")
    return text == "otlp"


def _interval_ms(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < _MIN_INTERVAL_MS:
        raise ValueError(f"expected a number of milliseconds, {_MIN_INTERVAL_MS} or more")
    return int(text)
