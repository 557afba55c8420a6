"""Every error answer of the management API: `{"error", "code", "details"?, "retry_after"?}`.

One place renders them all, so a failure of ours is 503 or 500 with nothing secret in it, and bad input never is.

See docs/reference/management-api.md#errors.
"""

import json
import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from control.edges.sql.database import DatabaseAwayError

log = logging.getLogger(__name__)

_PHRASES = {413: "Request Entity Too Large"}
"""Python 3.13 says "Content Too Large". The error codes are made of these, and may not depend on the version."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What is wrong with one field; `field` is its path in the body or the query, such as `targets.0.base_url`."""

    field: str
    message: str


class ProblemError(Exception):
    """An answer other than success: raised anywhere below a handler, rendered by `render_problems`."""

    def __init__(self, status: int, code: str, message: str, details: Iterable[Detail] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = tuple(details)
        self.retry_after_s: int | None = None


def bad_request(message: str, *details: Detail) -> ProblemError:
    return ProblemError(400, "INVALID_REQUEST", message, details)


def bad_field(field: str, message: str) -> ProblemError:
    """400 about one field; the message is the field's."""
    return ProblemError(400, "INVALID_REQUEST", message, [Detail(field, message)])


def not_found(what: str) -> ProblemError:
    """404; the same whether it never existed, was deleted, or is another workspace's."""
    return ProblemError(404, "NOT_FOUND", f"{what} not found")


def conflict(message: str) -> ProblemError:
    return ProblemError(409, "CONFLICT", message)


def too_many_requests(retry_after_s: int) -> ProblemError:
    """429; `retry_after_s` whole seconds, at least 1."""
    problem = ProblemError(429, "RATE_LIMITED", "Management API rate limit exceeded for this API key")
    problem.retry_after_s = max(1, retry_after_s)
    return problem


def render(problem: ProblemError) -> web.Response:
    body: dict[str, Any] = {"error": problem.message, "code": problem.code}
    if problem.details:
        body["details"] = [{"field": detail.field, "message": detail.message} for detail in problem.details]
    headers = {"Cache-Control": "no-store"}
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tollgate"'
    if problem.retry_after_s is not None:
        body["retry_after"] = problem.retry_after_s
        headers["Retry-After"] = str(problem.retry_after_s)
    return _json(problem.status, body, headers)


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
    except DatabaseAwayError as error:
        log.warning("answered 503: database unreachable (%s)", error.reason)
        return render(ProblemError(503, "DATABASE_UNAVAILABLE", str(error)))
    except web.HTTPException as refusal:
        return _framework_refusal(refusal)
    except (web.RequestPayloadError, HttpProcessingError, ConnectionResetError):  # from reading the body
        return render(bad_request("The body breaks a rule of HTTP, or is not encoded as it says"))
    except Exception as error:  # noqa: BLE001  (the last line of defence; its message may hold a secret, its trace not)
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("bug in %s %s: %s\n%s", request.method, _route(request), type(error).__name__, where)
        return render(ProblemError(500, "INTERNAL_ERROR", "Internal error"))


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else "(no route)"


def _framework_refusal(refusal: web.HTTPException) -> web.Response:
    """What the router and the body reader of aiohttp refuse, in our form."""
    if refusal.status < 400:
        raise refusal
    phrase = _PHRASES.get(refusal.status) or HTTPStatus(refusal.status).phrase
    answer = render(ProblemError(refusal.status, phrase.upper().replace(" ", "_"), phrase))
    if "Allow" in refusal.headers:
        answer.headers["Allow"] = refusal.headers["Allow"]
    return answer
