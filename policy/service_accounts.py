"""Service accounts of VENDOR_C: base64 of a JSON object with an RSA private key. Pure.

Control reads one before it stores it, the proxy before it signs with it. This module bounds the key's size and checks
the key itself: OpenSSL's check holds the interpreter lock for 0.4 s at 4096 bits and for 6 to 14 s at 8192.
"""

import base64
import binascii
from typing import Any

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

MIN_KEY_BITS = 2048
MAX_KEY_BITS = 4096
MAX_SECRET_CHARS = 65_536
"""The most characters of base64; control bounds every secret alike. Real service accounts have fewer than 4 000."""
_MAX_EXPONENT_BITS = 33


class ServiceAccountError(ValueError):
    """A service account cannot be used. The message quotes nothing from it."""


def service_account_fields(secret: str) -> dict[str, Any]:
    """The JSON object in a secret's value; empty if the secret is something else.

    Raises `ServiceAccountError` if the secret is too long.
    """
    if len(secret) > MAX_SECRET_CHARS:
        raise ServiceAccountError(f"a service account has at most {MAX_SECRET_CHARS} characters of base64")
    try:
        fields = orjson.loads(base64.b64decode(secret, validate=True))
    except (binascii.Error, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def check_secret(secret: str) -> None:
    """Raise `ServiceAccountError` if the secret is a service account with an unusable key.

    Takes 60 ms for a key of 4096 bits and holds the interpreter lock for at most half of that at once.
    """
    fields = service_account_fields(secret)
    if "private_key" in fields:
        private_key(fields["private_key"])


def private_key(pem: object) -> rsa.RSAPrivateKey:
    """Load the account's key. Raises `ServiceAccountError` unless it is consistent and of an accepted size."""
    try:
        if not isinstance(pem, str):
            raise TypeError
        # `_is_sound` replaces OpenSSL's validation, after the size check.
        key = load_pem_private_key(pem.encode(), password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ServiceAccountError("private_key must be an RSA private key in PEM without a passphrase") from None
    if not isinstance(key, rsa.RSAPrivateKey) or not MIN_KEY_BITS <= key.key_size <= MAX_KEY_BITS:
        raise ServiceAccountError(f"private_key must be an RSA key of {MIN_KEY_BITS} to {MAX_KEY_BITS} bits")
    if not _is_sound(key.private_numbers()):
        raise ServiceAccountError("private_key is damaged: its numbers do not belong together")
    return key


def _is_sound(numbers: rsa.RSAPrivateNumbers) -> bool:
    """Check a key as OpenSSL does, with one Fermat test instead of 64 Miller-Rabin rounds.

    It detects a damaged key. A key with forged primes harms only the account's owner.
    """
    p = numbers.p
    q = numbers.q
    d = numbers.d
    public = numbers.public_numbers
    return (
        min(p, q) > 1 << (MIN_KEY_BITS // 4)
        and p * q == public.n
        and p % 2 == q % 2 == public.e % 2 == 1
        and 1 < public.e < 1 << _MAX_EXPONENT_BITS
        and 0 < d < public.n
        and d * public.e % (p - 1) == d * public.e % (q - 1) == 1
        and numbers.dmp1 == d % (p - 1)
        and numbers.dmq1 == d % (q - 1)
        and 0 < numbers.iqmp < p
        and numbers.iqmp * q % p == 1
        and pow(3, p - 1, p) == pow(3, q - 1, q) == 1
    )
