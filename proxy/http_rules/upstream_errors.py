"""What a caller gets of an upstream's error answer (docs/reference/inference.md#upstream-errors). Pure.

The server's own error passes through with its status, but a refused target credential is our trouble, never the
caller's; and whatever the body says, it does not say our credential, nor where the upstream lives.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from policy.endpoints import Target, is_platform_hosted
from proxy.dialects.error_envelopes import in_envelope, message_of
from proxy.exchange import Answered
from proxy.http_rules.headers import returned_headers
from proxy.http_rules.masking import TooManyEscapesError, mask
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
"""So much of an error's text is kept for the status line; the listener cuts it further."""


def raise_target_fault(status: int, target: Target) -> None:
    """Raise for statuses that speak of us and the target rather than of the caller's request."""
    if not 400 <= status <= 599:
        raise BadUpstreamAnswerError
    if status in _CREDENTIAL_STATUSES and target.secret_id is not None:
        raise TargetCredentialError


def error_for_caller(
    status: int, headers: Sequence[tuple[str, str]], body: bytes, target: Target, dialect: str | None = None
) -> Answered:
    """The error answer for the caller, when `raise_target_fault` had nothing against it.

    `dialect`: the caller's dialect where the call was translated.
    """
    kept = [
        (name, value) for name, value in returned_headers(headers) if name not in ("content-type", "content-language")
    ]
    if status == 529 and not any(name == "retry-after" for name, _ in kept):
        kept.append(("retry-after", "1"))
    if body.strip():
        kept.insert(0, ("content-type", "application/json"))
        error = _error_object(body)
        if error is None:
            text = body.decode("utf-8", "replace").strip()
            return Answered(status, kept, orjson.dumps({"error": text}), text[:MAX_REASON_CHARS])
        if dialect is not None and isinstance(error["error"], dict):
            body = orjson.dumps(in_envelope(error, status, dialect))
        return Answered(status, kept, body, message_of(error)[:MAX_REASON_CHARS])
    if status == 500 and is_platform_hosted(target.provider):
        raise ModelRaisedError
    return flat(status, UPSTREAM_MESSAGES.get(status, f"The upstream answered {status}"), "UPSTREAM_ERROR", kept)


def host_of(url: str) -> str | None:
    """The host, with its port, if it is one that nothing but a host is called by."""
    host = urlsplit(url).netloc
    return host if "." in host or ":" in host else None


def without_secrets(body: bytes, *secrets: str | None) -> bytes:
    """`body` with none of `secrets` in it, as they are or escaped as in JSON and URLs; nothing of a body that cannot be
    searched. Some servers echo the credential that they refuse, or name themselves.
    """
    try:
        for secret in secrets:
            if secret:
                body = mask(body, secret.encode("utf-8", "surrogateescape"))
    except TooManyEscapesError:
        return b""
    return body


def _error_object(body: bytes) -> dict[str, Any] | None:
    """The body, if it is a JSON object with a member `error`."""
    if not is_surely_within_bounds(body):  # it holds absurdly much: told as text
        return None
    try:
        json = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return json if isinstance(json, dict) and "error" in json else None
