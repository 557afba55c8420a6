"""An upstream that says under a 200 that it failed: the forms in which servers do so, in bodies and in events.

Pure. Such an answer passes as it came, but is not counted as one, and bills nothing that was not reported.
"""

from typing import Any

import orjson

Json = dict[str, Any]

ERROR_KEY = b'"error"'
"""In every event or body that tells of a failure. Text of a model cannot hold it: there, quotes are escaped."""

MAX_FAILURE_BYTES = 64 << 10
"""A response that failed without output echoes little more than its settings."""
_FAILED = b'"failed"'
_ANSWERS = ("choices", "content", "data", "output")


def reports_failure(event: Json, holder: str | None = None) -> bool:
    """Whether an event of a stream says that its answer failed. `holder`: the member around the event's answer."""
    inner = event.get(holder) if holder else None
    return _has_error(event) or (isinstance(inner, dict) and _has_error(inner))


def is_failure(body: Json) -> bool:
    """Whether a whole body is an error instead of an answer; an answer that says something beside it is one.

    So is a response of the Responses API that has failed: its SDKs read `status` and `error`, and would repeat a 502.
    """
    if body.get("object") == "response" and isinstance(body.get("status"), str):
        return False
    if not body.get("error") and body.get("type") != "error" and body.get("object") != "error":
        return False
    return not any(body.get(name) for name in _ANSWERS)


def is_empty_failure(body: bytes) -> bool:
    """Whether a whole answer is a response of the Responses API that failed without any output."""
    if len(body) > MAX_FAILURE_BYTES or _FAILED not in body:
        return False
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(response, dict) or response.get("object") != "response":
        return False
    return response.get("status") == "failed" and not response.get("output")


def failure_details(event: Json) -> tuple[str, str]:
    """Kind and message of the failure that an event tells of."""
    error = event.get("error")
    if isinstance(error, str):
        return "api_error", error
    told = error if isinstance(error, dict) else event
    kind, message = told.get("type"), told.get("message")
    return kind if isinstance(kind, str) else "api_error", message if isinstance(message, str) else ""


def _has_error(told: Json) -> bool:
    return bool(told.get("error")) or told.get("type") == "error" or told.get("object") == "error"
