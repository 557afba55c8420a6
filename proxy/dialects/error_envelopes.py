"""A vendor's error for a caller of the other dialect: its own members, and those that the caller's SDK looks for.

Pure. Nothing that the vendor said is changed or left out (docs/reference/inference.md#upstream-errors).
"""

from typing import Any

from policy.endpoints import MESSAGES

Json = dict[str, Any]

_KINDS = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""What the Messages dialect calls an error of this status; `api_error` from 500 on, `invalid_request_error` below."""


def in_envelope(error: Json, status: int, dialect: str) -> Json:
    """`error` as `dialect` has it. One that is not nested stays as it is: no SDK looks into it."""
    inner = error.get("error")
    if not isinstance(inner, dict):
        return error
    if dialect != MESSAGES:
        return {**error, "error": {"code": None, "param": None} | inner}
    if not isinstance(inner.get("type"), str):
        inner = inner | {"type": _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")}
    return {**error, "type": "error", "error": inner}


def message_of(error: Json) -> str:
    """What an error object says to a reader; empty where it says nothing in a known place."""
    inner = error.get("error")
    said = inner.get("message") if isinstance(inner, dict) else inner
    return said if isinstance(said, str) else ""
