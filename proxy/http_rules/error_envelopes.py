"""Completes a vendor's error object with the members that an SDK of the caller's dialect expects.

Pure. Changes and removes nothing that the vendor sent.

See docs/reference/inference.md#upstream-errors.
"""

from typing import Any

from policy.endpoints import MESSAGES

Json = dict[str, Any]

_ERROR_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Error types of the Messages dialect by status. All others: `api_error` from 500 on, else `invalid_request_error`."""


def in_envelope(error: Json, status: int, dialect: str) -> Json:
    """`error` in the envelope of `dialect`. A plain error text is returned unchanged: no SDK reads it."""
    inner = error.get("error")
    if not isinstance(inner, dict):
        return error
    if dialect != MESSAGES:
        return {**error, "error": {"code": None, "param": None} | inner}
    if not isinstance(inner.get("type"), str):
        inner = inner | {"type": _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")}
    return {**error, "type": "error", "error": inner}


def message_of(error: Json) -> str:
    """The message of an error object, for people; empty if it is in no known place."""
    inner = error.get("error")
    message = inner.get("message") if isinstance(inner, dict) else inner
    return message if isinstance(message, str) else ""
