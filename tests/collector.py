"""A scripted OpenTelemetry collector: takes spans and metrics by OTLP over HTTP, decoded with its own types."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True)
class ReceivedSpan:
    """One span, ids in hexadecimal. `parent_id`: "" for the root of a trace."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    is_error: bool


@dataclass(frozen=True)
class ReceivedPoint:
    """One point of a metric. `kind`: sum, gauge or histogram, whose `value` is its sum; `count` and what follows are
    of a histogram."""

    name: str
    unit: str
    kind: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    start_ns: int
    time_ns: int
    value: float
    count: int = 0
    buckets: tuple[int, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def stream(self) -> tuple[object, ...]:
        """The identity of its series."""
        return self.name, *sorted(self.attributes.items()), *sorted(self.resource.items())


class Collector:
    """`status`, `answer` and `fields`: how it answers. While `going_on` is not set it answers nothing. `requests`: the
    fields of each request. `points`: of all metrics that it took, in order."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.points: list[ReceivedPoint] = []
        self.answer = b""
        self.fields: dict[str, str] = {}
        self.requests: list[dict[str, str]] = []
        self.status = 200
        self.going_on = threading.Event()
        self.going_on.set()
        self.url = ""

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, fields: dict[str, str], body: bytes) -> int:
        self.requests.append(fields)
        self.going_on.wait(60)
        if self.status == 200:
            if path == "/v1/metrics":
                self.points += _points(ExportMetricsServiceRequest.FromString(body))
            else:
                assert path == "/v1/traces"
                self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        return self.status

    def latest(self, name: str, **attributes: object) -> ReceivedPoint | None:
        """The newest point of the metric that has these attributes, dots being `__` here, and no others."""
        pairs = {key.replace("__", "."): value for key, value in attributes.items()}
        points = [point for point in self.points if point.name == name and point.attributes == pairs]
        return points[-1] if points else None


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """A collector that listens."""
    taking = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = taking.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            for name, value in {"content-length": str(len(taking.answer)), **taking.fields}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(taking.answer)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        taking.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield taking
        finally:
            taking.going_on.set()
            server.shutdown()
            thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    kind=span.kind,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    attributes=_attributes(span.attributes),
                    resource=resource,
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                )


def _points(request: ExportMetricsServiceRequest) -> Iterator[ReceivedPoint]:
    for group in request.resource_metrics:
        resource = _attributes(group.resource.attributes)
        for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            data = getattr(metric, kind)
            if kind != "gauge":
                assert data.aggregation_temporality == 2, "cumulative"
            if kind == "sum":
                assert data.is_monotonic
            for point in data.data_points:
                assert kind == "gauge" or 0 < point.start_time_unix_nano <= point.time_unix_nano <= time.time_ns()
                here = ReceivedPoint(
                    name=metric.name,
                    unit=metric.unit,
                    kind=kind,
                    attributes=_attributes(point.attributes),
                    resource=resource,
                    start_ns=point.start_time_unix_nano,
                    time_ns=point.time_unix_nano,
                    value=point.sum if kind == "histogram" else getattr(point, point.WhichOneof("value")),
                )
                if kind == "histogram":
                    assert sum(point.bucket_counts) == point.count
                    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                    here = replace(
                        here,
                        count=point.count,
                        buckets=tuple(point.bucket_counts),
                        bounds=tuple(point.explicit_bounds),
                    )
                yield here


def _attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind is not None else None
