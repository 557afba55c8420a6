"""Reads `TOLLGATE_TRACES`, and those `OTEL_*` variables whose bad values would otherwise end a process later.

The SDK reads all others itself. Imports nothing of OpenTelemetry.

See docs/reference/traces.md#settings.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from runtime.environment import Environment, SettingsError, number

PROTOCOL = "http/protobuf"
_PROTOCOL_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TIMEOUT_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_COMPRESSION_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
_ENDPOINT_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADERS_NAMES = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_HEADER = re.compile(r"[ \t]*[!#-'*+.0-9A-Z^-z|~\-]+[ \t]*=[ !#-+\--:<-\[\]-~]*|[ \t]*")
"""The form of headers that the SDK takes. Of others it logs the text, which is a credential, and leaves them out."""
_COMPRESSIONS = ("none", "gzip", "deflate")


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
    for name in _PROTOCOL_NAMES:
        read.parsed(name, _one_of((PROTOCOL,)), PROTOCOL)
    for name in _COMPRESSION_NAMES:
        read.parsed(name, _one_of(_COMPRESSIONS), "none")
    for name in _ENDPOINT_NAMES:
        read.parsed(name, _url, "http://localhost:4318")
    for name in _HEADERS_NAMES:
        read.parsed(name, _headers, "none=")
    for name in _TIMEOUT_NAMES:
        read.parsed(name, lambda text: number(float, text, "a number of seconds"), "10")
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


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL such as http://collector:4318")
    return text


def _headers(text: str) -> str:
    if not all(map(_HEADER.fullmatch, text.split(","))):
        raise ValueError("expected name=value, several separated by commas, special characters URL-encoded")
    return text


def _one_of(values: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"expected {' or '.join(values)}")
        return text

    return parse
