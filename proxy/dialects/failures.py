"""Recognizes failures that upstreams report under status 200, in bodies and in events of a stream.

Pure. The caller gets such an answer unchanged, but it counts as failed and is billed only what was reported.
"""

from typing import Any

import orjson

Json = dict[str, Any]

ERROR_KEY = b'"error"'
"""Occurs in every event or body that reports a failure. A model's text cannot contain it: its quotes are escaped."""

MAX_FAILURE_BYTES = 64 << 10
"""A failed response without output is smaller than this: it echoes little more than its settings."""
_FAILED = b'"failed"'
_OUTPUT_MEMBERS = ("choices", "content", "data", "output")


def reports_failure(event: Json, holder: str | None = None) -> bool:
    """Whether an event of a stream reports a failure. `holder`: the member around the answer, if any."""
    inner = event.get(holder) if holder else None
    return _has_error(event) or (isinstance(inner, dict) and _has_error(inner))


def is_failure(body: Json) -> bool:
    """Whether a body is an error and not an answer. A body with any output is an answer, whatever else it has.

    A failed response of the Responses API is an answer too: its SDKs read `status` and `error`, and would retry a 502.
    """
    if body.get("object") == "response" and isinstance(body.get("status"), str):
        return False
    if not body.get("error") and body.get("type") != "error" and body.get("object") != "error":
        return False
    return not any(body.get(name) for name in _OUTPUT_MEMBERS)


def is_empty_failure(body: bytes) -> bool:
    """Whether a body is a response of the Responses API that failed without any output."""
    if len(body) > MAX_FAILURE_BYTES or _FAILED not in body:
        return False
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(response, dict) or response.get("object") != "response":
        return False
    return response.get("status") == "failed" and not response.get("output")


def failed_response_error(body: Json) -> Json | None:
    """The error of a response of the Responses API that failed without any output; None for any other body."""
    if body.get("object") != "response" or body.get("status") != "failed" or body.get("output"):
        return None
    error = body.get("error")
    return error if isinstance(error, dict) else {"message": "", "type": "api_error"}


def failure_details(event: Json) -> tuple[str, str]:
    """Type and message of the failure that an event reports; `api_error` and "" where it does not say."""
    error = event.get("error")
    if isinstance(error, str):
        return "api_error", error
    details = error if isinstance(error, dict) else event
    kind, message = details.get("type"), details.get("message")
    return kind if isinstance(kind, str) else "api_error", message if isinstance(message, str) else ""


def _has_error(value: Json) -> bool:
    return bool(value.get("error")) or value.get("type") == "error" or value.get("object") == "error"
