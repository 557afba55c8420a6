"""W3C Trace Context: the parent that a request names in its header fields, and the fields that name a span to others.

See docs/reference/traces.md#context.
"""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import Span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
NO_PARENT = Context()
"""An empty context: a span that starts in it begins a trace."""


def parent_of(traceparents: Sequence[str], tracestates: Sequence[str]) -> Context:
    """The context to start a span in, by the values of the two fields. A field that is not valid is as if absent.

    Two `traceparent` fields are not valid either: nobody could say which one counts.
    """
    if len(traceparents) != 1:
        return NO_PARENT
    carrier = {"traceparent": list(traceparents), "tracestate": list(tracestates)}
    return _PROPAGATOR.extract(carrier, NO_PARENT)


def fields_of(span: Span) -> dict[str, str]:
    """`traceparent`, and `tracestate` if the span has one."""
    fields: dict[str, str] = {}
    _PROPAGATOR.inject(fields, set_span_in_context(span, NO_PARENT))
    return fields
