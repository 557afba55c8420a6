"""Turns an upstream's error answer into the caller's. Pure.

The server's own error passes with its status. A refused target credential is the gateway's fault, not the caller's.
No body contains the target's credential or the upstream's host.

See docs/reference/inference.md#upstream-errors.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from policy.endpoints import Target, is_platform_hosted
from proxy.answers import Answered
from proxy.http_rules.error_envelopes import Json, in_envelope, message_of
from proxy.http_rules.headers import returned_headers
from proxy.http_rules.masking import TooManyEscapesError, mask, mask_fields
from proxy.json_text.json_bounds import is_surely_within_bounds
from proxy.refusals import (
    UPSTREAM_MESSAGES,
    BadUpstreamAnswerError,
    ModelRaisedError,
    TargetCredentialError,
    flat,
)

_CREDENTIAL_STATUSES = frozenset((401, 402, 403))
MAX_REASON_CHARS = 1000
"""Most characters of an error's text kept for the status line; the HTTP server shortens it further."""


def raise_target_fault(status: int, target: Target) -> None:
    """Raise `BadUpstreamAnswerError` if `status` is no error, `TargetCredentialError` for a refused credential."""
    if not 400 <= status <= 599:
        raise BadUpstreamAnswerError
    if status in _CREDENTIAL_STATUSES and target.secret_id is not None:
        raise TargetCredentialError


def error_for_caller(
    status: int, headers: Sequence[tuple[str, str]], body: bytes, target: Target, dialect: str | None = None
) -> Answered:
    """Return the error answer for the caller. Call `raise_target_fault` first.

    `dialect`: the caller's dialect if the call was translated. Raises `ModelRaisedError` for an empty 500 of a platform
    model.
    """
    fields = [
        (name, value) for name, value in returned_headers(headers) if name not in ("content-type", "content-language")
    ]
    if status == 529 and not any(name == "retry-after" for name, _ in fields):
        fields.append(("retry-after", "1"))
    if body.strip():
        fields.insert(0, ("content-type", "application/json"))
        parsed = _parsed(body)
        error = _error_object(parsed)
        if error is None:
            text = body.decode("utf-8", "replace").strip()
            return Answered(status, fields, orjson.dumps({"error": text}), text[:MAX_REASON_CHARS])
        if dialect is not None and isinstance(error["error"], dict):
            body = orjson.dumps(in_envelope(error, status, dialect))
        elif error is not parsed:
            body = orjson.dumps(error)
        return Answered(status, fields, body, message_of(error)[:MAX_REASON_CHARS])
    if status == 500 and is_platform_hosted(target.provider):
        raise ModelRaisedError
    return flat(status, UPSTREAM_MESSAGES.get(status, f"The upstream answered {status}"), "UPSTREAM_ERROR", fields)


def host_of(url: str) -> str | None:
    """The URL's host and port. None for a bare word without dot or port: hiding it could hide ordinary text."""
    host = urlsplit(url).netloc
    return host if "." in host or ":" in host else None


def without_secrets(body: bytes, *secrets: str | None) -> bytes:
    """`body` with all `secrets` hidden, escaped or not; empty if the body has too many escapes to be searched.

    Some servers echo the credential that they refuse, or name their own host.
    """
    try:
        for secret in secrets:
            if secret:
                body = mask(body, secret.encode("utf-8", "surrogateescape"))
    except TooManyEscapesError:
        return b""
    return body


def discreet(answered: Answered, *secrets: str | None) -> Answered:
    """The error with all `secrets` hidden in its fields and its reason: decoding its JSON may have uncovered one."""
    reason = without_secrets(answered.reason.encode("utf-8", "replace"), *secrets)
    answered.reason = reason.decode("utf-8", "replace")
    for secret in secrets:
        answered.headers = mask_fields(answered.headers, secret)
    return answered


def _parsed(body: bytes) -> Any:
    """The body's JSON; None if it is none."""
    if not is_surely_within_bounds(body):  # too many values to parse: passed as text
        return None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _error_object(parsed: Any) -> Json | None:
    """The object with a member `error` that a body is. Google has it in an array; Mistral, SGLang and older vLLM have
    the error's members in the body itself."""
    if isinstance(parsed, list) and len(parsed) == 1:
        parsed = parsed[0]
    if not isinstance(parsed, dict):
        return None
    if "error" in parsed:
        return parsed
    return {"error": parsed} if parsed.get("object") == "error" else None
