"""Keys that may write one upload for an hour. Nothing is stored: what they allow is sealed into the session token.

See docs/reference/training.md#uploads.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from control.records.ids import new_id, new_nonce
from policy.sealing import TokenSealer

VALID_MS = 3_600_000
BUCKET = "training_uploads"
"""No DNS label, because of the underscore: so clients put it into the path, whatever the host's name is."""
REGION = "us-east-1"
_SECRET_BYTES = 30


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of a workspace to write the upload `key`, for whoever signs with the secret, until it expires."""

    workspace_id: str
    key: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    expires_at_ms: int


def new_grant(workspace_id: str, now_ms: int) -> Grant:
    """A grant for a key that nobody has used."""
    access_key_id = f"TG{secrets.token_hex(9).upper()}"
    return Grant(
        workspace_id, f"{new_id('upload')}.tar", access_key_id, secrets.token_urlsafe(_SECRET_BYTES), now_ms + VALID_MS
    )


class GrantSealer:
    """Makes the session tokens of grants, and reads them."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._tokens = TokenSealer(secret_keys, "tollgate upload grant")

    def seal(self, grant: Grant) -> str:
        values = [grant.workspace_id, grant.key, grant.access_key_id, grant.secret_access_key, grant.expires_at_ms]
        return self._tokens.seal(values, new_nonce())

    def open(self, token: str) -> Grant | None:
        """Return the grant, also an expired one; None for any text that was not sealed here."""
        values = self._tokens.open(token)
        return None if values is None else Grant(*values)
