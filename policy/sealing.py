"""Encrypts upstream credentials: AES-256-GCM, with the secret's id as additional authenticated data.

Control seals what the operator writes; the proxy unseals it in memory. The caller supplies the nonce. Tokens of links
that open without credentials are sealed too, so that their readers learn nothing from them.

See docs/reference/management-api.md#secrets.
"""

import base64
import hmac
import json
from collections.abc import Iterable, Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
KEY_BYTES = 32
_KEY_ID_PURPOSE = b"tollgate secret key, its id"
_KEY_ID_BYTES = 8
_TO_URL = str.maketrans("+/", "-_")
_FROM_URL = str.maketrans("-_", "+/")


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


def key_ids(keys: Iterable[bytes]) -> tuple[str, ...]:
    """Names for keys, which tell nothing of them: for records and messages about which key seals."""
    return tuple(hmac.digest(key, _KEY_ID_PURPOSE, "sha256")[:_KEY_ID_BYTES].hex() for key in keys)


def seal(keys: Sequence[bytes], secret_id: str, value: str, nonce: bytes) -> str:
    """Encrypt under the first key; returns base64 of nonce and ciphertext.

    `nonce`: 12 random bytes that were never used with this key.
    """
    sealed = AESGCM(keys[0]).encrypt(nonce, value.encode(), secret_id.encode())
    return base64.b64encode(nonce + sealed).decode()


def unseal(keys: Iterable[bytes], secret_id: str, ciphertext: str) -> str:
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


class TokenSealer:
    """Seals the tokens of links for one purpose, under keys derived from TOLLGATE_SECRET_KEY's as they are by then."""

    def __init__(self, secret_keys: Sequence[bytes], purpose: str) -> None:
        self._secret_keys = secret_keys
        self._purpose = purpose

    def seal(self, values: Sequence[Any], nonce: bytes) -> str:
        """A token of unreserved URL characters, sealed under the first key. `values`: what JSON can hold."""
        text = json.dumps(values, separators=(",", ":"))
        key = self._derived(self._secret_keys[0])
        return seal((key,), self._purpose, text, nonce).translate(_TO_URL).rstrip("=")

    def open(self, token: str) -> list[Any] | None:
        """Return the values that any of the keys sealed for this purpose; None for any other text."""
        padding = "=" * (-len(token) % 4)
        keys = map(self._derived, self._secret_keys)
        try:
            text = unseal(keys, self._purpose, token.translate(_FROM_URL) + padding)
        except SealedWithUnknownKeyError:
            return None
        values: list[Any] = json.loads(text)
        return values

    def _derived(self, secret_key: bytes) -> bytes:
        return hmac.digest(secret_key, self._purpose.encode(), "sha256")
