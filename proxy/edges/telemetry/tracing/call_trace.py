"""The spans of one call: the server span, and below it `admit`, `replica` and one client span per request upstream."""

from time import perf_counter

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from policy.endpoints import Target
from proxy.accounting.request_report import RequestReport
from proxy.edges.telemetry.tracing import attributes
from proxy.edges.telemetry.tracing.attributes import Attributes
from proxy.records.messages import Incoming, Received, UpstreamCall
from proxy.records.request_fields import RequestFields
from runtime.tracing.current import Work
from runtime.tracing.propagation import NO_PARENT, fields_of, parent_of

CLIENT_ERROR = 400
LEFT_STATUS = 499


class CallTrace(Work):
    """Created when the head of a request has arrived. `finish` ends all spans. An unsampled call has no children."""

    __slots__ = (
        *("_received_at", "_request_attributes", "_sent_at", "_server", "_tracer", "_upstream", "_within"),
        "is_recorded",
    )

    def __init__(self, tracer: Tracer, incoming: Incoming) -> None:
        path = incoming.request_target.partition("?")[0]
        parent = NO_PARENT
        if incoming.header("traceparent") is not None:
            parent = parent_of(incoming.header_values("traceparent"), incoming.header_values("tracestate"))
        self._server = tracer.start_span(
            attributes.server_span_name(incoming.method, path),
            parent,
            SpanKind.SERVER,
            attributes.of_request(incoming.method, path),
        )
        super().__init__(self._server)
        self.is_recorded = self._server.is_recording()
        self._tracer = tracer
        self._within = set_span_in_context(self._server, NO_PARENT)
        self._request_attributes: Attributes = {}
        self._upstream: Span | None = None
        self._received_at = incoming.received_at
        self._sent_at = 0.0

    def child(self, name: str) -> Span:
        """Start a span of our own work. The caller ends it."""
        return self._tracer.start_span(name, self._within)

    def asks(self, target: Target, request: Received) -> None:
        """Note the target of the next request upstream, a call to a slug."""
        path = request.facts.path
        self._request_attributes = attributes.of_target(target, path, request.slug, request.streaming)

    def sends(self, call: UpstreamCall) -> None:
        """Start the span of a request that is about to leave, and name it in the request's fields."""
        parent = self._server
        if self.is_recorded:
            self._end_upstream()
            target = self._request_attributes
            self._sent_at = perf_counter()
            name = attributes.client_span_name(call, target)
            described = target | attributes.of_upstream(call)
            parent = self._upstream = self._tracer.start_span(name, self._within, SpanKind.CLIENT, described)
        fields = fields_of(parent)
        headers = {name: value for name, value in call.headers.items() if name not in ("traceparent", "tracestate")}
        call.headers = RequestFields(headers | fields)

    def answered(self, status: int) -> None:
        """Record the status of the upstream's answer, whose head has arrived."""
        if self._upstream is not None:
            self._upstream.set_attribute("http.response.status_code", status)
            if status >= CLIENT_ERROR:
                fail(self._upstream, str(status))

    def not_answered(self, error: BaseException) -> None:
        """End the span of a request that failed before the head of an answer arrived."""
        if self._upstream is not None:
            fail(self._upstream, type(error).__name__)
            self._end_upstream()

    def finish(self, report: RequestReport) -> None:
        """End all spans of a call that has ended."""
        self.is_open = False
        if not self.is_recorded:
            return
        if self._upstream is not None:
            self._describe_answer(self._upstream, report)
            self._end_upstream()
        self._server.set_attributes(attributes.of_report(report))
        if report.status >= attributes.SERVER_ERROR:
            self._server.set_status(Status(StatusCode.ERROR))
        self._server.end()

    def _describe_answer(self, upstream: Span, report: RequestReport) -> None:
        if self._request_attributes:
            upstream.set_attributes(attributes.of_usage(report))
            if report.first_byte_s is not None and self._request_attributes["gen_ai.request.stream"]:
                waited_s = report.first_byte_s - (self._sent_at - self._received_at)
                upstream.set_attribute("gen_ai.response.time_to_first_chunk", max(waited_s, 0.0))
        if report.status >= attributes.SERVER_ERROR or report.status == LEFT_STATUS:
            fail(upstream, report.cause or str(report.status))

    def _end_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.end()
            self._upstream = None


def fail(span: Span, error_type: str) -> None:
    """Mark a span as failed."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))
