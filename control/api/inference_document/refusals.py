"""Every refusal of the data plane, and which calls it can meet: the error responses of the inference document.

The proxy's own table is `proxy/refusals.py`, which control may not import; a test compares the two.

See docs/reference/inference.md#errors.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from control.api.inference_document.fields import (
    DIRECT_ANSWERS,
    EVERY_ANSWER,
    NOTICES,
    RATE_LIMITS,
    RETRY,
    UPSTREAM_FIELDS,
    header_references,
)
from control.api.inference_document.json_schema import Json, reference

FLAT = "GatewayErrorV1"
ANY_ERROR = "InferenceErrorV1"


class CallKind(Enum):
    """The kinds of calls, by what can refuse them."""

    SLUG = "SlugCall"
    DIRECT = "DirectCall"
    LISTING = "Listing"
    SUBMISSION = "Submission"
    LOOK_UP = "LookUp"

    @property
    def has_upstream(self) -> bool:
        """True if a server's own error may be the answer."""
        return self in (CallKind.SLUG, CallKind.DIRECT)

    @property
    def answer_fields(self) -> Collection[str]:
        """The names of the header fields that an answer may have, a success or not."""
        match self:
            case CallKind.SLUG:
                return (*EVERY_ANSWER, *RATE_LIMITS, *UPSTREAM_FIELDS, *NOTICES)
            case CallKind.DIRECT:
                return (*EVERY_ANSWER, *UPSTREAM_FIELDS, *DIRECT_ANSWERS)
            case CallKind.SUBMISSION | CallKind.LOOK_UP:
                return (*EVERY_ANSWER, *RETRY, *(name for name in RATE_LIMITS if name.endswith("requests")))
        return (*EVERY_ANSWER, *RETRY)


_SLUG = (CallKind.SLUG,)
_DIRECT = (CallKind.DIRECT,)
_ASYNC = (CallKind.SUBMISSION, CallKind.LOOK_UP)
_REPLICAS = (CallKind.SLUG, CallKind.DIRECT)
_BODIES = (CallKind.SLUG, CallKind.DIRECT, CallKind.SUBMISSION)
_LIMITED = (CallKind.SLUG, *_ASYNC)
_MODELS = (CallKind.DIRECT, *_ASYNC)
_ALL = tuple(CallKind)


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """A refusal. `code` None: the body has only `error`. `is_example`: its message says more in each case."""

    status: int
    code: str | None
    message: str
    kinds: tuple[CallKind, ...]
    is_example: bool = False


_BUSY = "Capacity exhausted, try again later"
CASES = (
    ErrorCase(400, "MALFORMED_REQUEST", "model is missing: it is the slug to call", _ALL, is_example=True),
    ErrorCase(400, "UNTRANSLATABLE_REQUEST", "previous_response_id cannot be sent to this target", _SLUG, True),
    ErrorCase(
        400, "AMBIGUOUS_CREDENTIAL", "authorization and x-api-key hold two different API keys; send one", kinds=_ALL
    ),
    ErrorCase(
        400,
        "WEBSOCKET_UNSUPPORTED",
        "WebSockets are not supported; POST to predict, or call a path below sync/, and read the answer as a stream",
        _MODELS,
    ),
    ErrorCase(400, "ABOVE_SPEND_LIMIT", "This call may cost up to 12 USD, more than the limit of 10 USD", _SLUG, True),
    ErrorCase(401, None, "Unauthorized", _ALL),
    ErrorCase(402, "BILLING_SUSPENDED", "The workspace is suspended for billing", _ALL),
    ErrorCase(
        402, "BALANCE_EXHAUSTED", "The prepaid balance has no credit left for this call; ask for a top-up", _SLUG
    ),
    ErrorCase(
        402, "UNPRICED", "acme/chat has no price in USD, and a spend limit or prepaid balance binds", _SLUG, True
    ),
    ErrorCase(403, None, "Authentication failed", _ALL),
    ErrorCase(404, "NOT_FOUND", "There is nothing at this path", _ALL),
    ErrorCase(
        404, "MODEL_NOT_FOUND", "The model or deployment does not exist", (*_REPLICAS, *_ASYNC, CallKind.LISTING)
    ),
    ErrorCase(404, "REQUEST_NOT_FOUND", "The asynchronous request does not exist", (CallKind.LOOK_UP,)),
    ErrorCase(405, "METHOD_NOT_ALLOWED", "the path supports POST", _ALL, is_example=True),
    ErrorCase(408, "REQUEST_TIMEOUT", "The request did not arrive in time", _ALL),
    ErrorCase(
        413,
        "PAYLOAD_TOO_LARGE",
        "payload size of 100000001 bytes exceeds maximum size of 100000000 bytes",
        _BODIES,
        is_example=True,
    ),
    ErrorCase(415, "UNSUPPORTED_ENCODING", "content-encoding must be identity", (CallKind.SLUG, CallKind.SUBMISSION)),
    ErrorCase(429, "RATE_LIMITED", "Rate limit exceeded for acme/chat: 60 requests a minute", _LIMITED, True),
    ErrorCase(429, "SPEND_LIMIT_EXCEEDED", "The spend limit of 10 USD a day is reached", _SLUG, is_example=True),
    ErrorCase(
        429,
        "CAPACITY_EXCEEDED",
        "An earlier request of the deployment is parked for a replica",
        (CallKind.SUBMISSION,),
    ),
    ErrorCase(
        429,
        "ASYNC_QUEUE_FULL",
        "The workspace's queued requests exceed the memory threshold",
        (CallKind.SUBMISSION,),
    ),
    ErrorCase(500, "MODEL_ERROR", "Internal Server Error (in model/chainlet).", _REPLICAS),
    ErrorCase(500, "NOT_ROUTED", "Failed to route request", _REPLICAS),
    ErrorCase(502, "UPSTREAM_ERROR", "Error making prediction", _REPLICAS),
    ErrorCase(502, "TARGET_CREDENTIAL_REJECTED", "Upstream rejected the target's credential", _SLUG),
    ErrorCase(502, "INTERNAL_GATEWAY_ERROR", "Internal gateway error (request id: …)", _ALL, is_example=True),
    ErrorCase(503, "UPSTREAM_UNREACHABLE", "The upstream cannot be reached", _REPLICAS),
    ErrorCase(503, "NO_REPLICA", "No replica of the deployment is available", (*_REPLICAS, CallKind.SUBMISSION)),
    ErrorCase(503, "TARGET_SECRET_UNAVAILABLE", "The target's credential is not available", _SLUG),
    ErrorCase(503, "TARGET_SECRET_UNUSABLE", "The target's credential is unusable", _SLUG),
    ErrorCase(503, "POLICY_UNAVAILABLE", "The gateway has no policy to answer from", _ALL),
    ErrorCase(503, "LIMITS_UNAVAILABLE", "Limits cannot be checked right now", _LIMITED),
    ErrorCase(503, "METERING_UNAVAILABLE", "The call cannot be recorded right now", _SLUG),
    ErrorCase(503, "ASYNC_NOT_SET_UP", "Asynchronous requests are not set up here", _ASYNC),
    ErrorCase(503, "ASYNC_UNAVAILABLE", "The queue of asynchronous requests does not answer", _ASYNC, is_example=True),
    ErrorCase(504, "UPSTREAM_TIMEOUT", "The prediction exceeded the request timeout", _REPLICAS),
    ErrorCase(529, "CAPACITY_EXHAUSTED", _BUSY, _ALL),
)
LOGGED_ONLY = "CLIENT_CLOSED_REQUEST"
"""The code of 499: in metrics and log alone, since nobody is left to be answered."""
CODES = tuple(dict.fromkeys(case.code for case in CASES if case.code is not None))

_WHEN: Mapping[int, str] = {
    400: "The request is malformed, or its target cannot be asked this. The message names the field.",
    401: "No credential, or one header with two different values.",
    402: "Billing: the workspace is suspended, credit is used up, or the call cannot be priced.",
    403: "The key or token is unknown, revoked, expired, or not for this path.",
    404: "Nothing is there that this key may call.",
    405: "The path does not support the method; `allow` names those it does.",
    408: "The request did not arrive in time. If its head did not, there is no body and no `x-request-id`.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "A limit is reached. Wait at least `retry-after` seconds.",
    500: "The model failed, or no replica became ready in time.",
    502: "The upstream failed. Retry with backoff.",
    503: "A part of the gateway or the upstream is not available. Retry with backoff.",
    504: "The upstream took too long.",
    529: "Capacity is exhausted. Wait at least `retry-after` seconds; retry with backoff and jitter.",
}
_UPSTREAMS = " The upstream's own error of this status has this form, too."


def cases_of(kind: CallKind) -> Iterator[ErrorCase]:
    return (case for case in CASES if kind in case.kinds)


def error_references(kind: CallKind) -> Json:
    """The error responses of an operation, by status."""
    statuses = dict.fromkeys(str(case.status) for case in cases_of(kind))
    ranges = ("4XX", "5XX") if kind.has_upstream else ()
    return {status: {"$ref": f"#/components/responses/{kind.value}{status}"} for status in (*statuses, *ranges)}


def error_components() -> Json:
    """The error responses of all kinds of calls, for `components.responses`."""
    responses: Json = {}
    for kind in CallKind:
        for status in dict.fromkeys(case.status for case in cases_of(kind)):
            responses[f"{kind.value}{status}"] = _response(kind, status)
        if kind.has_upstream:
            for digit in "45":
                responses[f"{kind.value}{digit}XX"] = _upstream_response(kind)
    return responses


def _response(kind: CallKind, status: int) -> Json:
    examples = {case.code or "error": {"value": _body(case)} for case in cases_of(kind) if case.status == status}
    passes = kind.has_upstream and status not in (401, 402, 403, 405, 408)
    return {
        "description": _WHEN[status] + (_UPSTREAMS if passes else ""),
        "headers": header_references(_fields(kind, status)),
        "content": {"application/json": {"schema": _schema(kind), "examples": examples}},
    }


def _upstream_response(kind: CallKind) -> Json:
    return {
        "description": "Another error of the upstream, with its status and body. What is no JSON with a member"
        " `error` is "
        'answered as `{"error": "<its text>"}`.',
        "headers": header_references(kind.answer_fields),
        "content": {"application/json": {"schema": _schema(kind)}},
    }


def _schema(kind: CallKind) -> Json:
    return reference(ANY_ERROR if kind.has_upstream else FLAT)


def _fields(kind: CallKind, status: int) -> Collection[str]:
    return dict.fromkeys((*kind.answer_fields, *(("allow",) if status == 405 else ())))


def _body(case: ErrorCase) -> Json:
    return {"error": case.message} | ({} if case.code is None else {"error_code": case.code})
