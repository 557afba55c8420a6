"""The error of every call that has no success: the API's own answer, another server's, or none at all."""

from typing import Any

import httpx


class TollgateError(Exception):
    """A call failed. Its text names the status, the reason and the fields at fault, and contains no credential.

    `status`: of the answer; None if there was none. `code`: the API's, such as `NOT_FOUND`; `NO_ANSWER` if nothing
    answered, `FOREIGN_ANSWER` if the answer is not the API's. `details`: the fields at fault, each with `field` and
    `message`. `request_id`: what the server's log and audit trail have. `retry_after_s`: when a repeat may succeed.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(code, message, status)
        self.code = code
        self.message = message
        self.status = status
        self.details: list[dict[str, Any]] = []
        self.request_id: str | None = None
        self.retry_after_s: float | None = None

    def __str__(self) -> str:
        fields = [f"{one.get('field')}: {one.get('message')}" for one in self.details]
        lines = [f"{self.status or ''} {self.code}: {self.message}".strip(), *fields]
        return "\n  ".join(lines)


def error_of(answer: httpx.Response) -> TollgateError:
    """Return the error that an answer other than success means. A proxy in between may have written it."""
    body = _body(answer)
    message = body.get("error")
    if isinstance(message, str):
        error = TollgateError(str(body.get("code")), message, answer.status_code)
        error.details = [one for one in body.get("details") or [] if isinstance(one, dict)]
    else:
        where = f"{answer.request.method} {answer.request.url.path}"
        error = TollgateError("FOREIGN_ANSWER", f"{where}: {answer.reason_phrase}", answer.status_code)
    error.request_id = answer.headers.get("x-request-id")
    error.retry_after_s = _seconds(body.get("retry_after")) or _seconds(answer.headers.get("retry-after"))
    return error


def no_answer(failure: httpx.TransportError) -> TollgateError:
    """Return the error of a request that nothing answered. A change that was asked for may have taken effect."""
    request = failure.request
    reason = str(failure) or type(failure).__name__
    return TollgateError("NO_ANSWER", f"{request.method} {request.url.path}: no answer ({reason})")


def _body(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _seconds(value: object) -> float | None:
    """Return the number of seconds that a `retry_after` states; None of a date, or of what is no number at all."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) else 0.0
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None
