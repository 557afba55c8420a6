"""Header fields and query parameters that are passed on in each direction, and the `x-ratelimit-*` fields. Pure.

Both directions use allow-lists, so that an unforeseen credential, cookie or host is never passed on.

See docs/reference/inference.md#headers.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from proxy.accounting.reservations import LimitStatus
from proxy.answers import AnswerFields, Headers
from proxy.records.messages import Incoming
from proxy.records.request_fields import RequestFields

MAX_METADATA_BYTES = 4096


FORWARDED_FIELDS = (
    "content-type",
    "accept",
    "user-agent",
    "traceparent",
    "tracestate",
    "idempotency-key",
    "openai-beta",
    "anthropic-version",
    "anthropic-beta",
)
"""Request fields that go upstream, besides those that the dialect sets."""
_FIELDS_OF_ONE_CALL = ("traceparent", "tracestate", "idempotency-key")
_JOINED_FIELDS = ("connection", "anthropic-version", "anthropic-beta")
"""Fields of which more than the first value matters."""

RETURNED_FIELDS = frozenset(
    (
        *("content-type", "content-language", "cache-control"),
        *("retry-after", "retry-after-ms", "x-should-retry", "request-id"),
    )
)
"""Fields of an upstream's answer that go to the caller."""

DIRECT_FORWARDED_FIELDS = (
    *FORWARDED_FIELDS,
    *("accept-language", "content-encoding", "content-language", "last-event-id", "prefer", "range"),
    *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"),
)
"""The same for direct calls to platform models: what describes the body, and asks for a part or a version."""

DIRECT_RETURNED_FIELDS = RETURNED_FIELDS | {
    *("content-disposition", "content-encoding", "content-range", "accept-ranges"),
    *("etag", "last-modified", "expires", "vary", "allow"),
}
"""Fields of a replica's answer to a direct call that go to the caller."""

READ_FIELDS = frozenset(("content-type", "content-encoding", "transfer-encoding", "connection"))
"""Fields of an upstream's answer that say how to treat it."""

FORWARDED_PARAMETERS = frozenset(("beta",))
"""Query parameters that go upstream."""
_QUERY_VALUE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def forwarded_headers(
    incoming: Incoming, request_id: str, own: Mapping[str, str], fields: Sequence[str] = FORWARDED_FIELDS
) -> RequestFields:
    """The request fields for the upstream: `own` (dialect and credential), then the caller's allowed ones.

    No hop-by-hop field is in `fields`, but a caller may declare any field hop-by-hop (RFC 9110 7.6.1).
    """
    headers = RequestFields({"x-request-id": request_id, "accept-encoding": "identity", **own})
    header = incoming.header
    dropped = _connection_options(incoming) if header("connection") is not None else ()
    for name in fields:
        value = header(name)
        if value is not None and name not in headers and name not in dropped:
            headers[name] = value
    return headers


def forwarded_values(incoming: Incoming) -> tuple[object, ...]:
    """Return what a head says of the fields that go upstream; () if one has another value in each call.

    Calls with the same values have the same fields to forward.
    """
    header = incoming.header
    values = incoming.header_values
    if any(map(header, _FIELDS_OF_ONE_CALL)):
        return ()
    joined = [tuple(values(name)) for name in _JOINED_FIELDS]
    return (incoming.request_target, *map(header, FORWARDED_FIELDS), *joined)


def forwarded_query(target: str) -> str:
    """Return the query for the upstream, without its question mark; each parameter once. `target`: path and query."""
    if "?" not in target:
        return ""
    parameters: dict[str, str] = {}
    for pair in target.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if name in FORWARDED_PARAMETERS and _QUERY_VALUE.fullmatch(value):
            parameters.setdefault(name, value)
    return "&".join(f"{name}={value}" for name, value in parameters.items())


def answer_fields(upstream: Headers, fields: Collection[str] = RETURNED_FIELDS) -> AnswerFields:
    """Read the fields of an upstream's answer in one pass. `fields`: the names of those that go to the caller."""
    content_type = ""
    encoded = False
    connection = ""
    returned: list[tuple[str, str]] = []
    codings: list[str] = []
    for field in upstream:
        name = field[0]
        if name in fields:
            returned.append(field)
        if name not in READ_FIELDS:
            continue
        if name == "content-type":
            content_type = content_type or field[1]
        elif name == "connection":
            connection += f",{field[1]}"
        elif name == "transfer-encoding":
            codings.append(field[1].strip().lower())
        else:
            encoded = encoded or field[1] != "identity"
    if connection:
        dropped = set(_list_items(connection))
        returned = [field for field in returned if field[0] not in dropped]
    longest = max((len(value) for _, value in returned), default=0)
    return AnswerFields(content_type, encoded, tuple(returned), tuple(codings), longest)


def returned_headers(upstream: Headers, fields: Collection[str] = RETURNED_FIELDS) -> Headers:
    """The fields of an upstream's answer that go to the caller."""
    return answer_fields(upstream, fields).returned


def is_encoded(upstream: Headers) -> bool:
    """Return whether a body is compressed."""
    return answer_fields(upstream).encoded


def rate_limit_names(kind: str, limit: int) -> tuple[str, str]:
    """The `x-ratelimit-*` lines of a limit, as they stand before what remains, and before the reset's duration."""
    return (
        f"x-ratelimit-limit-{kind}: {limit}\r\nx-ratelimit-remaining-{kind}: ",
        f"\r\nx-ratelimit-reset-{kind}: ",
    )


def rate_limit_lines(requests: LimitStatus | None, tokens: LimitStatus | None) -> str:
    """Return the `x-ratelimit-*` lines, with CRLF, of the tightest limit of each type; none for a type without one."""
    lines = ""
    for kind, status in (("requests", requests), ("tokens", tokens)):
        if status is not None:
            before, between = rate_limit_names(kind, status.limit)
            lines += f"{before}{max(0, status.remaining)}{between}{duration_text(status.reset_ms)}\r\n"
    return lines


def output_cap_line(cap: int) -> str:
    """The line, with CRLF, that tells a caller to what a spend limit or balance lowered its call's output cap."""
    return f"x-tollgate-output-cap: {cap}\r\n"


def duration_text(ms: int) -> str:
    """A duration in the form of the vendors' rate-limit fields: `20ms`, `1.5s`, `6m0s`, `3h0m5s`."""
    if ms == 60_000:  # nearly every token limit: it was charged just now, so it resets after a whole window
        return "1m0s"
    if ms < 1000:
        return f"{max(0, ms)}ms"
    seconds, rest_ms = divmod(ms, 1000)
    if seconds < 60:
        return f"{ms / 1000:g}s" if rest_ms else f"{seconds}s"
    minutes, seconds = divmod(seconds + (rest_ms > 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"


def _connection_options(incoming: Incoming) -> Collection[str]:
    return {token for value in incoming.header_values("connection") for token in _list_items(value)}


def _list_items(value: str) -> Iterable[str]:
    return (token.strip().lower() for token in value.split(","))
