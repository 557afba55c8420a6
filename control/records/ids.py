"""New identifiers, which sort by creation time, and new secrets, which nobody can guess."""

import secrets
import string

from ulid import ULID

from policy.credentials import PREFIX_CHARS, join_key

_LETTERS_AND_DIGITS = string.ascii_letters + string.digits
_SECRET_BYTES = 24  # 192 bits


def new_id(kind: str) -> str:
    """`kind` and a ULID: ordered by id means ordered by creation."""
    return f"{kind}_{ULID()}"


def new_request_id() -> str:
    """A ULID, as the proxy gives its requests."""
    return str(ULID())


def new_key() -> str:
    """The plaintext of a new API key."""
    prefix = "".join(secrets.choice(_LETTERS_AND_DIGITS) for _ in range(PREFIX_CHARS))
    return join_key(prefix, secrets.token_urlsafe(_SECRET_BYTES))


def new_nonce() -> bytes:
    """Return 12 random bytes for `policy.sealing.seal`."""
    return secrets.token_bytes(12)
