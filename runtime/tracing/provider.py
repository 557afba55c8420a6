"""A process's tracer, and the bounded queue between it and the collector.

A span that ends goes into the queue of the SDK's batch processor, whose thread sends it by OTLP over HTTP. What finds
the queue full is dropped and counted. Nothing here waits, `close` excepted, which waits at most `FLUSH_S`.

See docs/reference/traces.md#delivery.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

from runtime.collector.http_session import CollectorSession
from runtime.collector.resource import resource_of
from runtime.daemon_threads import in_daemon_thread
from runtime.log_lines import OutageLog
from runtime.tracing.settings import TraceSettings

FLUSH_S = 1.0
"""The time that a process which ends waits for the collector to take the last spans."""
OUTCOMES = ("exported", "failed", "dropped")
_LOGGED_BY_US = "opentelemetry.trace"
"""The logger of the library that would write a line per caller's malformed header field."""
log = logging.getLogger(__name__)


class SpanCounts:
    """Counts of ended spans: `exported`, `failed` (the collector did not take them), `dropped` (queue full)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._last_totals = dict(self._counts)
        self._queue_length = 0

    def enters(self, most: int) -> bool:
        """Count a span as waiting, or as dropped if `most` wait already. Whether it may wait."""
        with self._lock:
            if self._queue_length >= most:
                self._counts["dropped"] += 1
                return False
            self._queue_length += 1
            return True

    def leave(self, spans: int, outcome: str) -> None:
        with self._lock:
            self._queue_length -= spans
            self._counts[outcome] += spans

    def totals(self) -> dict[str, int]:
        """Return the counts by outcome, since the process began."""
        with self._lock:
            return dict(self._counts)

    def drain(self) -> dict[str, int]:
        """Return the counts by outcome, since this was last called."""
        before = self._last_totals
        self._last_totals = self.totals()
        return {outcome: count - before[outcome] for outcome, count in self._last_totals.items()}

    @property
    def waiting(self) -> int:
        """Spans that have ended, and were neither sent nor given up."""
        return self._queue_length


class Tracing:
    """`tracer` makes spans. `counts` says what became of them."""

    def __init__(self, settings: TraceSettings, service: str, attributes: Mapping[str, str]) -> None:
        """`service`: the value of `service.name`, unless the environment has one. `attributes`: of the resource."""
        logging.getLogger(_LOGGED_BY_US).setLevel(logging.CRITICAL)
        self.counts = SpanCounts()
        self._provider = TracerProvider(resource=resource_of(service, attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(_BoundedProcessor(settings, self.counts))
        self.tracer: Tracer = self._provider.get_tracer("tollgate", version("tollgate"))

    async def close(self) -> None:
        """Send what waits. Spans that end later are lost."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await in_daemon_thread(self._provider.shutdown)
        except TimeoutError:
            log.warning(
                "The OTLP collector did not take the last %d spans within %g s; they are lost."
                " Check OTEL_EXPORTER_OTLP_ENDPOINT and the collector.",
                *(self.counts.waiting, FLUSH_S),
            )


class _BoundedProcessor(SpanProcessor):
    """The SDK's batch processor, with a bound that also holds what is being sent, and counts what it drops."""

    def __init__(self, settings: TraceSettings, counts: SpanCounts) -> None:
        self._max_waiting = settings.max_queue_spans
        self._counts = counts
        self._batches = BatchSpanProcessor(
            _CountingExporter(counts),
            max_queue_size=settings.max_queue_spans,
            schedule_delay_millis=settings.delay_ms,
            max_export_batch_size=settings.max_batch_spans,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None: ...

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled and self._counts.enters(self._max_waiting):
            self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)


class _CountingExporter(SpanExporter):
    """Sends batches by OTLP over HTTP, in the batch processor's thread; logs outages of the collector."""

    def __init__(self, counts: SpanCounts) -> None:
        self._counts = counts
        self._outage = OutageLog(log)
        self._session = CollectorSession(_rejected_spans)
        self._exporter = OTLPSpanExporter(session=self._session)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._session.cause = ""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
            if self._session.cause:
                result = SpanExportResult.FAILURE
        finally:
            self._counts.leave(len(spans), "exported" if result is SpanExportResult.SUCCESS else "failed")
        if result is SpanExportResult.SUCCESS:
            self._outage.ends("The OTLP collector takes spans again.")
        else:
            cause = self._session.cause or "the exporter failed"
            self._outage.begins(
                f"The OTLP collector does not take spans ({cause}); they are lost and counted as"
                " tollgate_trace_spans_total{outcome=failed}. Check OTEL_EXPORTER_OTLP_ENDPOINT and the collector."
            )
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _rejected_spans(answer: bytes) -> int:
    return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
