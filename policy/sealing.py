"""Encrypts upstream credentials: AES-256-GCM, with the secret's id as additional authenticated data.

Control seals what the operator writes; the proxy unseals it in memory. The caller supplies the nonce.

See docs/reference/management-api.md#secrets.
"""

import base64
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
KEY_BYTES = 32


class SealedWithUnknownKeyError(ValueError):
    """No key in TOLLGATE_SECRET_KEY decrypts the secret. Add the key that sealed it to the list."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def parse_keys(setting: str) -> tuple[bytes, ...]:
    """Parse TOLLGATE_SECRET_KEY: comma-separated base64 keys of 32 bytes each. The first one seals.

    Raises ValueError, without the offending text, if there is no key or one is malformed.
    """
    try:
        keys = tuple(base64.b64decode(part.strip(), validate=True) for part in setting.split(",") if part.strip())
    except ValueError:  # includes binascii.Error, and non-ASCII text
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError("TOLLGATE_SECRET_KEY must be comma-separated base64 keys of 32 bytes each")
    return keys


def seal(keys: Sequence[bytes], secret_id: str, value: str, nonce: bytes) -> str:
    """Encrypt under the first key; returns base64 of nonce and ciphertext.

    `nonce`: 12 random bytes that were never used with this key.
    """
    sealed = AESGCM(keys[0]).encrypt(nonce, value.encode(), secret_id.encode())
    return base64.b64encode(nonce + sealed).decode()


def unseal(keys: Sequence[bytes], secret_id: str, ciphertext: str) -> str:
    """Decrypt with whichever key fits. Raises `SealedWithUnknownKeyError` if none does."""
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
