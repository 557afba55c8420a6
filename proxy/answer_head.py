"""Begins an answer: its head, with the fields that every answer has."""

from time import perf_counter

from proxy.answers import Answered
from proxy.exchange import RequestContext


def begin(context: RequestContext, answered: Answered, whole: bytes | None = None) -> bool:
    """Set the head of an answer. It leaves with the first bytes, or at once with the `whole` body: `Outgoing.start`."""
    context.first_byte_s = perf_counter() - context.incoming.received_at
    request_id = context.request_id
    facts = context.facts
    lines = f"x-request-id: {request_id}\r\n{context.rate_limit_lines}{facts.cors_lines}{context.notice}"
    if facts.answers_request_id and not any(name == "request-id" for name, _ in answered.headers):
        lines += f"request-id: {request_id}\r\n"
    return context.outgoing.start(answered.status, answered.headers, lines, answered.reason, whole)
