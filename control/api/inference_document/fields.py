"""The header fields and query parameters of the inference surface, as components of its document.

See docs/reference/inference.md#headers.
"""

from collections.abc import Iterable, Mapping

from control.api.inference_document.json_schema import Json

SENT_FIELDS: Mapping[str, str] = {
    "x-request-id": "The request's id, 1 to 128 visible ASCII characters. Without it the gateway makes one.",
    "traceparent": "W3C trace context. It goes upstream.",
    "tracestate": "W3C trace context. It goes upstream.",
    "idempotency-key": "It goes upstream, where the target may know it. The gateway itself repeats no answer.",
}
"""Fields of requests on every path that has an upstream."""
SLUG_FIELDS: Mapping[str, str] = {
    "x-request-metadata": "A JSON object of at most 4096 bytes: `requestMetadata` of the billing event. Without it,"
    " the body's `metadata` is.",
    "openai-beta": "It goes upstream.",
    "anthropic-version": "The version of Messages, such as `2023-06-01`. It goes upstream.",
    "anthropic-beta": "Beta features of Messages, separated by commas. They go upstream.",
}
"""Further fields of calls by slug."""
DIRECT_FIELDS: Mapping[str, str] = {
    **{name: SLUG_FIELDS[name] for name in ("openai-beta", "anthropic-version", "anthropic-beta")},
    **dict.fromkeys(
        (
            *("accept-language", "content-encoding", "content-language", "last-event-id", "prefer", "range"),
            *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"),
        ),
        "It goes to the replica.",
    ),
}
"""Further fields of direct calls."""

EVERY_ANSWER: Mapping[str, str] = {
    "x-request-id": "The request's id: the caller's, or a new one. It is the `requestId` of the billing event.",
    "x-content-type-options": "Always `nosniff`.",
    "access-control-allow-origin": "Only where the operator allows origins (`TOLLGATE_CORS_ORIGINS`).",
    "access-control-expose-headers": "Only where the operator allows origins.",
    "vary": "`origin` where the operator allows some origins; that of a replica's answer to a direct call.",
}
REQUIRED = frozenset(("x-request-id", "x-content-type-options"))
RETRY = ("retry-after",)
RATE_LIMITS: Mapping[str, str] = {
    f"x-ratelimit-{figure}-{kind}": about.format(kind=kind)
    for kind in ("requests", "tokens")
    for figure, about in (
        ("limit", "The threshold of the tightest limit on {kind}. Absent without such a limit."),
        ("remaining", "What remains of it."),
        ("reset", "The time until nothing of it is used, such as `20ms`, `1.5s`, `6m0s` or `3h0m5s`."),
    )
}
UPSTREAM_FIELDS: Mapping[str, str] = {
    "content-language": "The upstream's.",
    "cache-control": "The upstream's.",
    "retry-after": "Seconds to wait, or the upstream's date. Always there where the gateway itself refuses with 429"
    " for a limit, or with 529.",
    "retry-after-ms": "The upstream's: milliseconds to wait.",
    "x-should-retry": "The upstream's advice to its SDKs.",
    "request-id": "The upstream's id of the request. Below `/v1/messages` always there, without one of the upstream "
    "the same as `x-request-id`.",
}
NOTICES: Mapping[str, str] = {
    "x-tollgate-left-out": "What a translation left out, of the request or of the answer, by its path. In a stream it "
    "may stand in a comment, too.",
    "x-tollgate-reasoning": '`off; reason="..."`: the target was asked without reasoning, since it could not take it.',
    "x-tollgate-output-cap": "The output cap in tokens to which a HARD spend limit or a prepaid balance lowered"
    " the call.",
}
DIRECT_ANSWERS: Mapping[str, str] = dict.fromkeys(
    (
        *("content-disposition", "content-encoding", "content-range", "accept-ranges"),
        *("etag", "last-modified", "expires", "allow"),
    ),
    "The replica's.",
)
_WHOLE_NUMBERS = frozenset(("x-tollgate-output-cap", *(f"x-ratelimit-limit-{kind}" for kind in ("requests", "tokens"))))
ALLOW = "The methods of the path on 405; else the replica's."


def header_components() -> Json:
    """Every field of answers, for `components.headers`."""
    fields = {**EVERY_ANSWER, **RATE_LIMITS, **UPSTREAM_FIELDS, **NOTICES, **DIRECT_ANSWERS, "allow": ALLOW}
    return {name: _header(name, about) for name, about in fields.items()}


def header_references(names: Iterable[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def parameter_components() -> Json:
    """Every optional parameter that several operations have, for `components.parameters`."""
    fields = {**SENT_FIELDS, **SLUG_FIELDS, **DIRECT_FIELDS}
    return {name: _parameter(name, about) for name, about in fields.items()} | {"beta": _BETA}


def parameter_references(names: Iterable[str]) -> tuple[Json, ...]:
    return tuple({"$ref": f"#/components/parameters/{name}"} for name in names)


_BETA: Json = {
    "name": "beta",
    "in": "query",
    "required": False,
    "description": "It goes upstream where the call is not translated. Other parameters are ignored.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}


def path_parameter(name: str, description: str, **rules: object) -> Json:
    schema = {"type": "string", "minLength": 1, **rules}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _header(name: str, about: str) -> Json:
    kind = "integer" if name in _WHOLE_NUMBERS else "string"
    return {"description": about, "required": name in REQUIRED, "schema": {"type": kind}}


def _parameter(name: str, about: str) -> Json:
    return {"name": name, "in": "header", "required": False, "description": about, "schema": {"type": "string"}}
