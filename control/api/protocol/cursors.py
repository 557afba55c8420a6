"""Cursors: opaque, unreserved URL characters, authenticated, and of one workspace and kind of list.

A cursor is where its list goes on; with a cursor the other parameters are not looked at, so it carries them.

See docs/reference/management-api.md#paging.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from control.api.protocol.errors import bad_field

_MAC_BYTES = 16


class Pages:
    """Signs cursors with the first of TOLLGATE_SECRET_KEY's keys and accepts what any of them signed."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._keys = [hmac.digest(key, b"tollgate cursor", "sha256") for key in secret_keys]

    def sign(self, workspace_id: str, kind: str, payload: dict[str, Any]) -> str:
        """The cursor that `open_cursor` turns into `payload` again, for the same workspace and kind alone."""
        body = json.dumps(payload, separators=(",", ":")).encode()
        mac = _mac(self._keys[0], workspace_id, kind, body)
        return base64.urlsafe_b64encode(mac + body).decode().rstrip("=")

    def open_cursor(self, workspace_id: str, kind: str, cursor: str) -> dict[str, Any]:
        """The payload; a 400 when this is not a cursor that was signed for this workspace and kind."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid() from None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not any(hmac.compare_digest(mac, _mac(key, workspace_id, kind, body)) for key in self._keys):
            raise _invalid()
        payload: dict[str, Any] = json.loads(body)
        return payload


def _mac(key: bytes, workspace_id: str, kind: str, body: bytes) -> bytes:
    head = f"{len(workspace_id)}:{workspace_id}{len(kind)}:{kind}".encode()
    return hmac.new(key, head + body, hashlib.sha256).digest()[:_MAC_BYTES]


def _invalid() -> Exception:
    return bad_field("cursor", "invalid cursor")
