"""The span that a task works for: log lines and exemplars ask."""

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry.trace import Span, format_span_id, format_trace_id

from runtime.log_schema import FIELDS


@dataclass(slots=True, eq=False)
class SpanIds:
    """A span's ids in hexadecimal, as log lines show them."""

    trace_id: str
    span_id: str
    is_sampled: bool


def ids_of(span: Span) -> SpanIds:
    context = span.get_span_context()
    return SpanIds(format_trace_id(context.trace_id), format_span_id(context.span_id), context.trace_flags.sampled)


class Work:
    """A request that is being answered, by the task that created this. `end` it."""

    __slots__ = ("_task", "ids", "is_open")

    def __init__(self, span: Span) -> None:
        self.ids = ids_of(span)
        self.is_open = True
        self._task = asyncio.current_task()

    @property
    def is_of_this_task(self) -> bool:
        """Return whether the running code works for this request.

        A context outlives its request: connections, timers and background tasks that a request created keep it.
        """
        return self.is_open and self._task is not None and _running_task() is self._task


CURRENT: ContextVar[Work | None] = ContextVar("work", default=None)


def current_ids() -> SpanIds | None:
    """The ids of the span that the running code works for; None if it works for no request."""
    work = CURRENT.get()
    return work.ids if work is not None and work.is_of_this_task else None


class _AddIds(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        ids = current_ids()
        if ids is not None:
            members = getattr(record, FIELDS, {}) | {"trace_id": ids.trace_id, "span_id": ids.span_id}
            setattr(record, FIELDS, members)
        return True


def add_ids_to_log_lines() -> None:
    """Add `trace_id` and `span_id` to this process's log lines about a request."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_AddIds())


def _running_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return None
