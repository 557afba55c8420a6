"""The span of a management call. Imported only where `TOLLGATE_TRACES` asks for traces.

Calls of machines (probes, scrapes, `/internal/`) have none: they would be most of all spans.

See docs/reference/traces.md#spans.
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from opentelemetry.trace import SpanKind, Status, StatusCode

from control.edges.telemetry.metrics import Metrics
from runtime.collector.resource import CONTROL_SERVICE
from runtime.tracing.current import CURRENT, Work, add_ids_to_log_lines, current_ids
from runtime.tracing.propagation import parent_of
from runtime.tracing.provider import Tracing
from runtime.tracing.settings import TraceSettings

API_PREFIX = "/v1/"
SERVER_ERROR = 500


class ControlTracing:
    """The process's tracer. `metrics` shows exemplars, and what became of spans."""

    def __init__(self, settings: TraceSettings, metrics: Metrics) -> None:
        self._tracing = Tracing(settings, CONTROL_SERVICE, {})
        metrics.exemplar = _exemplar
        metrics.watch_spans(self._tracing.counts.totals)
        add_ids_to_log_lines()

    @property
    def middleware(self) -> Middleware:
        """Return the middleware that goes outside of all others, so that a span's status is that of the answer."""
        tracer = self._tracing.tracer

        @web.middleware
        async def trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
            resource = request.match_info.route.resource
            route = resource.canonical if resource else ""
            if not route.startswith(API_PREFIX):
                return await handler(request)
            headers = request.headers
            parent = parent_of(headers.getall("traceparent", ()), headers.getall("tracestate", ()))
            attributes = {"http.request.method": request.method, "http.route": route, "url.scheme": "http"}
            span = tracer.start_span(f"{request.method} {route}", parent, SpanKind.SERVER, attributes)
            work = Work(span)
            token = CURRENT.set(work)
            try:
                answer = await handler(request)
                span.set_attribute("http.response.status_code", answer.status)
                if answer.status >= SERVER_ERROR:
                    span.set_attribute("error.type", str(answer.status))
                    span.set_status(Status(StatusCode.ERROR))
                return answer
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                work.is_open = False
                CURRENT.reset(token)
                span.end()

        return trace_request

    async def close(self, _app: web.Application) -> None:
        """Send the last spans to the collector."""
        await self._tracing.close()


def _exemplar() -> dict[str, str] | None:
    ids = current_ids()
    return {"trace_id": ids.trace_id} if ids is not None and ids.is_sampled else None
