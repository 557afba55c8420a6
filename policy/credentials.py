"""API keys: kinds, prefix, digest, and what each kind may do (docs/reference/management-api.md#api-keys).

A key is `{prefix}.{secret}`, or a text that its owner has registered. The prefix is public: events and logs show it.
The key itself is stored as SHA-256 only.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from enum import StrEnum

KEY_PREFIX = "tg_"
PREFIX_CHARS = 12
_KEY_PATTERN = re.compile(r"tg_[A-Za-z0-9]{12}\.[A-Za-z0-9_-]{27,}")
REGISTERED_PREFIX = "own_"
TOKEN_PREFIX = "jwt_"  # noqa: S105 (public)
TOKEN_ID = "token:"  # noqa: S105 (public)
"""The beginning of the name of a token's holder. Those of keys are digests alone."""
REGISTERED_PATTERN = "[!-~]{24,256}"
"""The form of a key that can be registered. Those in the form of a JWT or of ours are refused beside it."""
_REGISTERED = re.compile(REGISTERED_PATTERN)
_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class KeyKind(StrEnum):
    """A FEDERATED key is minted under a group and can only call models; the other kinds belong to the workspace."""

    FEDERATED = "FEDERATED"
    WORKSPACE_MANAGE_ALL = "WORKSPACE_MANAGE_ALL"
    WORKSPACE_INVOKE = "WORKSPACE_INVOKE"
    WORKSPACE_EXPORT_METRICS = "WORKSPACE_EXPORT_METRICS"


SLUG_CALLERS = (KeyKind.FEDERATED,)
"""The keys that may call slugs (docs/reference/inference.md#credentials)."""
MODEL_CALLERS = (KeyKind.WORKSPACE_MANAGE_ALL, KeyKind.WORKSPACE_INVOKE)
"""The keys that may call `/models/…` paths."""


def may_manage(kind: KeyKind) -> bool:
    """Return whether the key may use the management API."""
    return kind is KeyKind.WORKSPACE_MANAGE_ALL


def may_call_slugs(kind: KeyKind) -> bool:
    return kind in SLUG_CALLERS


def may_export_metrics(kind: KeyKind) -> bool:
    """Return whether the key may read `/metrics`."""
    return kind is KeyKind.WORKSPACE_EXPORT_METRICS


def join_key(prefix_random: str, secret: str) -> str:
    """Build a key from its two random parts: 12 letters or digits, and at least 160 bits in base64url."""
    return f"{KEY_PREFIX}{prefix_random}.{secret}"


def prefix_of(key: str) -> str:
    """The public part of a key, or the empty string if `key` is not well-formed."""
    return key.partition(".")[0] if _KEY_PATTERN.fullmatch(key) else ""


def is_key_prefix(prefix: str) -> bool:
    """Return whether the prefix in an event is that of a key, minted here or registered."""
    return prefix.startswith((KEY_PREFIX, REGISTERED_PREFIX))


def unregistrable(key: str) -> str:
    """The reason why nobody can register `key` as a key of one's own; empty if one can. Never quotes it."""
    if not _REGISTERED.fullmatch(key):
        return "must be 24 to 256 visible ASCII characters, without spaces"
    if key.startswith(KEY_PREFIX):
        return f"must not begin with {KEY_PREFIX}: such keys are minted here, by POST on the list of keys"
    if is_token(key):
        return "must not be three parts of base64url with dots between them, the form of a JWT"
    return ""


def is_token(credential: str) -> bool:
    """Return whether a credential has the form of a JWT. Such ones are never keys, and keys are never tokens."""
    return not credential.startswith(KEY_PREFIX) and _JWT.fullmatch(credential) is not None


def credential_id(credential: str) -> str:
    """The name by which the holder of a credential is kept. No token has the name of a key, nor the other way."""
    return TOKEN_ID + digest_of(credential) if is_token(credential) else digest_of(credential)


def token_prefix(subject: str) -> str:
    """The public name of the caller with a token of this subject."""
    return TOKEN_PREFIX + digest_of(subject)[:PREFIX_CHARS]


def registered_prefix(key: str) -> str:
    """The public name of a registered key: the key itself has no part that may be shown."""
    return REGISTERED_PREFIX + digest_of(key)[:PREFIX_CHARS]


def digest_of(key: str) -> str:
    """SHA-256 of the whole key, in hex. Stored and looked up; a digest of a part could collide (CVE-2026-35030)."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def equals_token(credential: str, token: str) -> bool:
    """Return whether a credential is the operator's `token`. Nothing equals an empty token: none is set then.

    Takes the same time for every credential of the same length.
    """
    presented = credential.encode("utf-8", "surrogateescape")
    return bool(token) and hmac.compare_digest(presented, token.encode("utf-8", "surrogateescape"))


def credentials_in(authorization: Sequence[str], x_api_key: Sequence[str] = ()) -> tuple[str, ...]:
    """The distinct credentials that a request presents; empty if one header presents several.

    `authorization`, `x_api_key`: all values of those headers. The scheme is case-insensitive (RFC 9110 11.1). A client
    that also talks to another server may send that server's credential in the second header.

    See docs/reference/inference.md#credentials.
    """
    if not x_api_key and len(authorization) == 1 and authorization[0].startswith("Bearer "):  # nearly every call
        key = authorization[0][7:].strip()
        return (key,) if key else ()
    bearers = {_bearer(value) for value in authorization}
    keys = {key.strip() for key in x_api_key if key.strip()}
    if len(bearers) > 1 or len(keys) > 1:
        return ()
    return tuple(dict.fromkeys((*bearers - {""}, *keys)))


def _bearer(authorization: str) -> str:
    """The key, or the empty string if there is none or the scheme is unknown."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() if scheme.lower() in ("bearer", "api-key") else ""
