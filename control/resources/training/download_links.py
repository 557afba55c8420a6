"""Links to the files of checkpoints: whoever has one may read that one file until it expires, without credentials.

A link is authenticated, and bound to the workspace, the checkpoint and its very content. It opens nothing by itself:
what it names is looked up like any file.

See docs/reference/training.md#checkpoints.
"""

import base64
import binascii
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass

from control.resources.errors import CheckpointFileNotFoundError, LinkExpiredError

VALID_MS = 3_600_000
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class Link:
    """What a link opens, and until when."""

    workspace_id: str
    checkpoint_id: str
    location: str
    path: str
    expires_at_ms: int


class LinkSigner:
    """Signs links with the first of TOLLGATE_SECRET_KEY's keys and accepts what any of them signed."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._keys = [hmac.digest(key, b"tollgate checkpoint link", "sha256") for key in secret_keys]

    def sign(self, link: Link) -> str:
        """A token of unreserved URL characters."""
        values = [link.workspace_id, link.checkpoint_id, link.location, link.path, link.expires_at_ms]
        body = json.dumps(values, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_mac(self._keys[0], body) + body).decode().rstrip("=")

    def open(self, token: str, now_ms: int) -> Link:
        """CheckpointFileNotFoundError unless the token was signed here; LinkExpiredError."""
        try:
            raw = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise CheckpointFileNotFoundError from None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not any(hmac.compare_digest(mac, _mac(key, body)) for key in self._keys):
            raise CheckpointFileNotFoundError
        link = Link(*json.loads(body))
        if now_ms >= link.expires_at_ms:
            raise LinkExpiredError
        return link


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, "sha256")
