"""Sends batches of points by OTLP over HTTP. Blocks: a thread of its own calls it."""

from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import Metric, MetricExportResult, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from runtime.collector.http_session import CollectorSession


class Sender:
    """The collector, as the `OTEL_*` variables say."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("tollgate", version("tollgate"))
        self._session = CollectorSession(_rejected_points)
        self._exporter = OTLPMetricExporter(session=self._session)

    def send(self, metrics: Sequence[Metric]) -> str:
        """Send one batch. Returns why the collector did not take it; "" if it did."""
        scope = ScopeMetrics(self._scope, metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        self._session.cause = ""
        if self._exporter.export(data) is MetricExportResult.SUCCESS:
            return self._session.cause
        return self._session.cause or "the exporter failed"


def _rejected_points(answer: bytes) -> int:
    return int(ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points)
