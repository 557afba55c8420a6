"""Recognizes failures that upstreams report under status 200, in bodies and in events of a stream.

Pure. Such an answer counts as failed. Where it passes, it passes unchanged; where it is translated, the failure is its
last word (`middle/answer_stream.py`).
"""

from typing import Any

import orjson

Json = dict[str, Any]

ERROR_KEY = b'"error"'
"""Occurs in every event or body that reports a failure. A model's text cannot contain it: its quotes are escaped."""

MAX_FAILURE_BYTES = 64 << 10
"""A failed response without output is smaller than this: it echoes little more than its settings."""
SERVER_FAULT = "api_error"
"""The type of an error that has none."""
_FAILED = b'"failed"'
_MESSAGE_NAMES = ("message", "msg", "detail")
OUTPUT_MEMBERS = ("choices", "content", "data", "output")
TELLING_MEMBERS = frozenset(("error", "object", "status", "type", *OUTPUT_MEMBERS))
"""The members that tell a failure from an answer."""


def reports_failure(event: Json, holder: str | None = None) -> bool:
    """Return whether an event of a stream reports a failure. `holder`: the member around the answer, if any."""
    return failed_part(event, holder) is not None


def failed_part(answer: Json, holder: str | None = None) -> Json | None:
    """The part of an event, or of a body, that has an error: itself, what its `holder` wraps, or one of its choices."""
    inner = answer.get(holder) if holder else None
    if isinstance(inner, dict) and _has_error(inner):
        return inner
    if _has_error(answer):
        return answer
    choices = answer.get("choices")
    parts = choices if isinstance(choices, list) else ()
    return next((part for part in parts if isinstance(part, dict) and part.get("error")), None)


def is_failure(body: Json) -> bool:
    """Return whether a body is an error and not an answer. A body with any output is an answer, whatever else it has.

    A failed response of the Responses API is an answer too: its SDKs read `status` and `error`, and would retry a 502.
    """
    if body.get("object") == "response" and isinstance(body.get("status"), str):
        return False
    if not body.get("error") and body.get("type") != "error" and body.get("object") != "error":
        return False
    return not any(body.get(name) for name in OUTPUT_MEMBERS)


def is_empty_failure(body: bytes) -> bool:
    """Return whether a body is a response of the Responses API that failed without any output."""
    if len(body) > MAX_FAILURE_BYTES or _FAILED not in body:
        return False
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(response, dict) or response.get("object") != "response":
        return False
    return response.get("status") == "failed" and not response.get("output")


def error_within(body: Json) -> Json | None:
    """The error of a body that holds it in place of its answer's rest: of a response that failed, or of one of its
    choices. None for any other body."""
    if body.get("object") == "response":
        if body.get("status") != "failed":
            return None
        error = body.get("error")
        return error if isinstance(error, dict) else {"message": "The response failed", "type": SERVER_FAULT}
    part = None if body.get("error") else failed_part(body)
    error = None if part is None else part.get("error")
    return {"message": error, "type": SERVER_FAULT} if isinstance(error, str) else error


def error_instead(body: Json) -> Json | None:
    """The error of a body that has neither output nor an error object: servers have forms of their own.
    None for any other body."""
    if is_failure(body) or any(body.get(name) is not None for name in OUTPUT_MEMBERS):
        return None
    return {"message": message_instead(body) or "The answer has no output", "type": SERVER_FAULT}


def message_instead(body: Json) -> str:
    """The message of a body or event that has no output; "" if it has none."""
    texts = (body.get(name) for name in _MESSAGE_NAMES)
    return next((text for text in texts if isinstance(text, str) and text), "")


def failure_details(part: Json) -> tuple[str, str]:
    """Type and message of the failure that a part of an answer reports; `api_error` and "" where it does not say."""
    error = part.get("error")
    if isinstance(error, str):
        return SERVER_FAULT, error
    details = error if isinstance(error, dict) else part
    kind = details.get("type")
    message = details.get("message")
    return kind if isinstance(kind, str) else SERVER_FAULT, message if isinstance(message, str) else ""


def _has_error(value: Json) -> bool:
    return bool(value.get("error")) or value.get("type") == "error" or value.get("object") == "error"
