"""API keys: kinds, prefix, digest, and what each kind may do (docs/reference/management-api.md#api-keys).

A key is `{prefix}.{secret}`: the prefix is public (it is in events and logs), the whole is stored as SHA-256 only.
"""

import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum

KEY_PREFIX = "tg_"
PREFIX_CHARS = 12
_KEY_PATTERN = re.compile(r"tg_[A-Za-z0-9]{12}\.[A-Za-z0-9_-]{27,}")


class KeyKind(StrEnum):
    """FEDERATED keys are minted under a group and only infer; the others belong to the workspace."""

    FEDERATED = "FEDERATED"
    WORKSPACE_MANAGE_ALL = "WORKSPACE_MANAGE_ALL"
    WORKSPACE_INVOKE = "WORKSPACE_INVOKE"
    WORKSPACE_EXPORT_METRICS = "WORKSPACE_EXPORT_METRICS"


SLUG_CALLERS = (KeyKind.FEDERATED,)
"""Slug paths are for federated keys only (docs/reference/inference.md#credentials)."""
MODEL_CALLERS = (KeyKind.WORKSPACE_MANAGE_ALL, KeyKind.WORKSPACE_INVOKE)
"""`/models/…` paths are for workspace keys only."""


def may_manage(kind: KeyKind) -> bool:
    """Management scope."""
    return kind is KeyKind.WORKSPACE_MANAGE_ALL


def may_call_slugs(kind: KeyKind) -> bool:
    return kind in SLUG_CALLERS


def may_export_metrics(kind: KeyKind) -> bool:
    """Who may read control's metrics from another machine."""
    return kind is KeyKind.WORKSPACE_EXPORT_METRICS


def join_key(prefix_random: str, secret: str) -> str:
    """The plaintext of a key from its two random parts: 12 letters or digits, and at least 160 bits in base64url."""
    return f"{KEY_PREFIX}{prefix_random}.{secret}"


def prefix_of(key: str) -> str:
    """The public part of a key; the empty string when `key` does not have the form of one."""
    return key.partition(".")[0] if _KEY_PATTERN.fullmatch(key) else ""


def digest_of(key: str) -> str:
    """SHA-256 of the whole key, in hex: what is stored and looked up; never a part of it (CVE-2026-35030)."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def credentials_in(authorization: Sequence[str], x_api_key: Sequence[str] = ()) -> tuple[str, ...]:
    """The credentials that a request presents, by header; none where one header holds several.

    `authorization`, `x_api_key`: all values of those headers. The scheme is case-insensitive (RFC 9110 11.1). Clients
    that know two servers send two credentials, of which one is not for us; the same key in both headers is one.

    See docs/reference/inference.md#credentials.
    """
    if not x_api_key and len(authorization) == 1 and authorization[0].startswith("Bearer "):  # as nearly all calls do
        key = authorization[0][7:].strip()
        return (key,) if key else ()
    bearers = {_bearer(value) for value in authorization}
    keys = {key.strip() for key in x_api_key if key.strip()}
    if len(bearers) > 1 or len(keys) > 1:
        return ()
    return tuple(dict.fromkeys((*bearers - {""}, *keys)))


def _bearer(authorization: str) -> str:
    """The key; empty where there is none, or where the scheme is one that we do not know."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() if scheme.lower() in ("bearer", "api-key") else ""
