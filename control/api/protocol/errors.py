"""Every error answer of the management API: `{"error", "message", "code", "details"?, "retry_after"?}`.

This module renders all of them: domain errors by `TABLE`, errors of the HTTP request itself as `ProblemError`.
Invalid input is never a 5xx, and no answer contains a secret.

See docs/reference/management-api.md#errors.
"""

import json
import logging
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from control.errors import (
    CheckpointStoreUnavailableError,
    ChildExceedsParentLimitError,
    ConflictError,
    DatabaseUnavailableError,
    DomainError,
    EventsLostError,
    ForbiddenKeyError,
    IdempotencyConflictError,
    IngestTooSlowError,
    InvalidFieldError,
    LimitConflict,
    NoProxyUrlError,
    NotFoundError,
    PreconditionFailedError,
    ProxyUnavailableError,
    RateLimitedError,
    RequestRunningError,
    RoleTooHighError,
    SecretUnreadableError,
    TooManyCallsError,
    UsageUnavailableError,
)
from control.resources.training.errors import (
    EnvironmentTokenError,
    LinkExpiredError,
    TrainingNotEnabledError,
    TrainingUnavailableError,
)
from runtime.shares.places import NoPlaceError

log = logging.getLogger(__name__)

MAX_DETAILS = 50
"""The most details of an error."""
_PHRASES = {413: "Request Entity Too Large"}
"""The phrases that depend on Python's version (3.13: "Content Too Large"). Error codes are made of phrases."""


@dataclass(frozen=True, slots=True)
class Detail:
    """An error in one field. `field` is its path in the body or the query, such as `targets.0.base_url`.

    `conflict`: the limit of another group that forbids it.
    """

    field: str
    message: str
    conflict: LimitConflict | None = None


class ProblemError(Exception):
    """An answer other than success that has no domain error: about the HTTP request, the key, or the path."""

    def __init__(self, status: int, code: str, message: str, details: Iterable[Detail] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = tuple(details)
        self.retry_after_s: int | None = None


def bad_request(message: str, *details: Detail) -> ProblemError:
    return ProblemError(400, "INVALID_REQUEST", message, details)


TABLE: Mapping[type[DomainError], tuple[int, str]] = {
    InvalidFieldError: (400, "INVALID_REQUEST"),
    ChildExceedsParentLimitError: (400, "CHILD_EXCEEDS_PARENT_LIMIT"),
    NotFoundError: (404, "NOT_FOUND"),  # alike for what never existed, was deleted, or is another workspace's
    NoProxyUrlError: (404, "NO_PROXY_URL"),
    ConflictError: (409, "CONFLICT"),
    EventsLostError: (409, "EVENTS_LOST"),
    PreconditionFailedError: (412, "PRECONDITION_FAILED"),
    IdempotencyConflictError: (409, "IDEMPOTENCY_CONFLICT"),
    RequestRunningError: (409, "IDEMPOTENCY_IN_PROGRESS"),
    RoleTooHighError: (403, "ROLE_TOO_HIGH"),
    RateLimitedError: (429, "RATE_LIMITED"),
    TooManyCallsError: (429, "TOO_MANY_CALLS"),
    DatabaseUnavailableError: (503, "DATABASE_UNAVAILABLE"),
    IngestTooSlowError: (503, "DATABASE_UNAVAILABLE"),
    UsageUnavailableError: (503, "COUNTERS_UNAVAILABLE"),
    ProxyUnavailableError: (503, "PROXY_UNAVAILABLE"),
    SecretUnreadableError: (503, "SECRET_UNREADABLE"),
    EnvironmentTokenError: (403, "ENVIRONMENT_TOKEN_SPENT"),
    ForbiddenKeyError: (403, "KEY_OUT_OF_REACH"),
    TrainingNotEnabledError: (403, "TRAINING_NOT_ENABLED"),
    TrainingUnavailableError: (503, "TRAINING_UNAVAILABLE"),
    LinkExpiredError: (410, "LINK_EXPIRED"),
    CheckpointStoreUnavailableError: (503, "CHECKPOINT_STORE_UNAVAILABLE"),
}
"""Status and code of each domain error; a subclass without a row has its base's."""


def problem_of(error: DomainError) -> ProblemError:
    """The answer for a domain error. An error class missing from `TABLE` is a bug and raises KeyError."""
    kind = next((kind for kind in type(error).__mro__ if kind in TABLE), type(error))
    problem = ProblemError(*TABLE[kind], error.message, _details(error))
    if isinstance(error, RateLimitedError | RequestRunningError):
        problem.retry_after_s = error.retry_after_s
    return problem


def _details(error: DomainError) -> list[Detail]:
    match error:
        case InvalidFieldError():
            return [Detail(error.field, error.message)]
        case ChildExceedsParentLimitError():
            return [Detail(conflict.field, conflict.message, conflict) for conflict in error.conflicts[:MAX_DETAILS]]
    return []


def render(problem: ProblemError) -> web.Response:
    body: dict[str, Any] = {"error": problem.message, "message": problem.message, "code": problem.code}
    if problem.details:
        body["details"] = list(map(_shown, problem.details))
    headers = {"Cache-Control": "no-store"}
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tollgate"'
    if problem.retry_after_s is not None:
        body["retry_after"] = problem.retry_after_s
        headers["Retry-After"] = str(problem.retry_after_s)
    return _json(problem.status, body, headers)


def _shown(detail: Detail) -> dict[str, Any]:
    """An `ErrorDetailV1`."""
    member: dict[str, Any] = {"field": detail.field, "message": detail.message}
    if (conflict := detail.conflict) is not None:
        member["conflict"] = {
            "group_id": conflict.group.id,
            "external_entity_id": conflict.group.external_entity_id,
            "name": conflict.group.name,
            "slug": conflict.slug,
            "type": conflict.type,
            "unit": conflict.unit,
            "threshold": conflict.other,
            "currency": conflict.currency,
            "minimum": conflict.minimum,
            "maximum": conflict.maximum,
        }
    return member


def _json(status: int, body: dict[str, Any], headers: dict[str, str]) -> web.Response:
    text = json.dumps(body, ensure_ascii=False)
    return web.Response(status=status, text=text, content_type="application/json", headers=headers)


@web.middleware
async def render_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost middleware."""
    try:
        return await handler(request)
    except ProblemError as problem:
        return render(problem)
    except tuple(TABLE) as error:
        if isinstance(error, DatabaseUnavailableError):
            log.warning(
                "Answered 503: database unreachable (%s). Check the database server and TOLLGATE_DATABASE_URL.",
                error.reason,
            )
        return render(problem_of(error))
    except NoPlaceError as error:
        return render(problem_of(TooManyCallsError(error.what)))
    except web.HTTPException as refusal:
        return _framework_refusal(refusal)
    except (web.RequestPayloadError, HttpProcessingError, ConnectionResetError):  # from reading the body
        return render(bad_request("The body violates HTTP, or its encoding is not the declared one"))
    except Exception as error:  # noqa: BLE001  (the last line of defence; the message may hold a secret, the trace does not)
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error(
            "Answered 500: bug in %s %s (%s). Please report it.\n%s",
            *(request.method, _route(request), type(error).__name__, where),
        )
        return render(ProblemError(500, "INTERNAL_ERROR", "Internal error"))


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else "(no route)"


def _framework_refusal(refusal: web.HTTPException) -> web.Response:
    """Refusals of aiohttp's router and body reader, in the format of this API."""
    if refusal.status < 400:
        raise refusal
    phrase = _PHRASES.get(refusal.status) or HTTPStatus(refusal.status).phrase
    answer = render(ProblemError(refusal.status, phrase.upper().replace(" ", "_"), _message(refusal) or phrase))
    if "Allow" in refusal.headers:
        answer.headers["Allow"] = refusal.headers["Allow"]
    return answer


def _message(refusal: web.HTTPException) -> str | None:
    """The remedy, where a client asks for what there is not: such as a call of another product."""
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        return f"this path takes only {', '.join(sorted(refusal.allowed_methods))}"
    if isinstance(refusal, web.HTTPNotFound):
        return "no such path; /v1/openapi.json describes those that there are"
    return None
