"""What a caller gets of an upstream's error answer (decisions 2, "Errors"). Pure.

The server's own error passes through with its status, but a refused target credential is our trouble, never the
caller's; and whatever the body says, it does not say our credential, nor where the upstream lives.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

import orjson

from policy.endpoints import Target, is_platform_hosted
from proxy.exchange import Answered
from proxy.headers import passed
from proxy.refusals import (
    UPSTREAM_MESSAGES,
    BadUpstreamAnswerError,
    ModelRaisedError,
    TargetCredentialError,
    flat,
)

_CREDENTIAL_STATUSES = frozenset((401, 402, 403))
_HIDDEN = b"[hidden]"


def refuse_if_ours(status: int, target: Target) -> None:
    """Raise for statuses that speak of us and the target rather than of the caller's request."""
    if not 400 <= status <= 599:
        raise BadUpstreamAnswerError
    if status in _CREDENTIAL_STATUSES and target.secret_id is not None:
        raise TargetCredentialError


def passed_on(status: int, headers: Sequence[tuple[str, str]], body: bytes, target: Target) -> Answered:
    """The error answer for the caller, when `refuse_if_ours` had nothing against it."""
    kept = [(name, value) for name, value in passed(headers) if name not in ("content-type", "content-language")]
    if status == 529 and not any(name == "retry-after" for name, _ in kept):
        kept.append(("retry-after", "1"))
    if body.strip():
        kept.insert(0, ("content-type", "application/json"))
        return Answered(status, kept, body if _is_error_object(body) else _as_error(body))
    if status == 500 and is_platform_hosted(target.provider):
        raise ModelRaisedError
    return flat(status, UPSTREAM_MESSAGES.get(status, f"The upstream answered {status}"), "UPSTREAM_ERROR", kept)


def host_of(url: str) -> str | None:
    """The host, with its port, if it is one that nothing but a host is called by."""
    host = urlsplit(url).netloc
    return host if "." in host or ":" in host else None


def without(body: bytes, *secrets: str | None) -> bytes:
    """`body` with none of `secrets` in it: some servers echo the credential that they refuse, or name themselves."""
    for secret in secrets:
        if secret:
            body = body.replace(secret.encode("utf-8", "surrogateescape"), _HIDDEN)
    return body


def _is_error_object(body: bytes) -> bool:
    try:
        json = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(json, dict) and "error" in json


def _as_error(body: bytes) -> bytes:
    return orjson.dumps({"error": body.decode("utf-8", "replace").strip()})
