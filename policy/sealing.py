"""Upstream credentials under lock: AES-256-GCM, the secret's id as additional authenticated data.

Both planes use it: control seals what the operator writes, the proxy opens it in memory. The caller brings the nonce.

See docs/reference/management-api.md#secrets.
"""

import base64
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
KEY_BYTES = 32


class SealedWithUnknownKeyError(ValueError):
    """The secret cannot be opened with any key of TOLLGATE_SECRET_KEY; add the key it was sealed with to the list."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def parse_keys(setting: str) -> tuple[bytes, ...]:
    """The keys in TOLLGATE_SECRET_KEY: comma-separated base64 of 32 bytes each; the first one seals.

    ValueError, without the offending text, when there is none or one is malformed.
    """
    try:
        keys = tuple(base64.b64decode(part.strip(), validate=True) for part in setting.split(",") if part.strip())
    except ValueError:  # binascii.Error is one, and so is what text beyond ASCII raises
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError("TOLLGATE_SECRET_KEY must be comma-separated base64 keys of 32 bytes each")
    return keys


def seal(keys: Sequence[bytes], secret_id: str, value: str, nonce: bytes) -> str:
    """Base64 of nonce and ciphertext, under the first key. `nonce`: 12 random bytes, never used twice with a key."""
    sealed = AESGCM(keys[0]).encrypt(nonce, value.encode(), secret_id.encode())
    return base64.b64encode(nonce + sealed).decode()


def unseal(keys: Sequence[bytes], secret_id: str, ciphertext: str) -> str:
    """The value again, by whichever key opens it; `SealedWithUnknownKeyError` when none does."""
    try:
        raw = base64.b64decode(ciphertext, validate=True)
    except ValueError:
        raise SealedWithUnknownKeyError from None
    if len(raw) < NONCE_BYTES:
        raise SealedWithUnknownKeyError
    for key in keys:
        try:
            return AESGCM(key).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], secret_id.encode()).decode()
        except InvalidTag:
            continue
    raise SealedWithUnknownKeyError
