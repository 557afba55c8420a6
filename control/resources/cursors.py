"""Cursors of lists: opaque, of unreserved URL characters, authenticated, valid for one workspace and one kind of list.

A cursor says where its list continues. It also carries the list's parameters, because the API ignores others beside it.

See docs/reference/management-api.md#paging.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from control.errors import InvalidFieldError

_MAC_BYTES = 16


class CursorSigner:
    """Signs cursors with the first of TOLLGATE_SECRET_KEY's keys and accepts what any of them signed."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._secret_keys = secret_keys

    def sign(self, workspace_id: str, kind: str, payload: dict[str, Any]) -> str:
        """A cursor from which `open` recovers `payload`, for the same workspace and kind only."""
        body = json.dumps(payload, separators=(",", ":")).encode()
        mac = _mac(_derived(self._secret_keys[0]), workspace_id, kind, body)
        return base64.urlsafe_b64encode(mac + body).decode().rstrip("=")

    def open(self, workspace_id: str, kind: str, cursor: str) -> dict[str, Any]:
        """The payload. `InvalidFieldError` unless the cursor was signed for this workspace and kind."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid() from None
        mac = raw[:_MAC_BYTES]
        body = raw[_MAC_BYTES:]
        keys = map(_derived, self._secret_keys)
        if not any(hmac.compare_digest(mac, _mac(key, workspace_id, kind, body)) for key in keys):
            raise _invalid()
        payload: dict[str, Any] = json.loads(body)
        return payload


def _derived(secret_key: bytes) -> bytes:
    return hmac.digest(secret_key, b"tollgate cursor", "sha256")


def _mac(key: bytes, workspace_id: str, kind: str, body: bytes) -> bytes:
    head = f"{len(workspace_id)}:{workspace_id}{len(kind)}:{kind}".encode()
    return hmac.new(key, head + body, hashlib.sha256).digest()[:_MAC_BYTES]


def _invalid() -> InvalidFieldError:
    return InvalidFieldError("cursor", "invalid cursor")
