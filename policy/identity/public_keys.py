"""The public keys of an identity provider that can verify tokens: RSA of 2048 to 4096 bits, P-256 and Ed25519.

Everything else in a key set is ignored (RFC 7517, section 5): symmetric keys, keys for encryption, other curves.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from policy.identity.providers import Wire

MAX_KEYS = 64
"""The most keys of a set that are looked at."""
MAX_KID_CHARS = 256
RSA_BITS = range(2048, 4097)
"""Smaller keys can be broken, larger ones cost too much to verify with."""
MAX_EXPONENT = 2**32
"""A large exponent makes each verification slow. Nearly all keys have 65537."""
_COORDINATE_BYTES = 32
_CURVES = {("EC", "P-256"): ("ES256", ("x", "y")), ("OKP", "Ed25519"): ("EdDSA", ("x",))}


def usable_keys(key_set: Any) -> tuple[Wire, ...] | None:
    """The usable keys of a decoded JWK set, with only those members that verifying needs; None if it is no JWK set.

    Each has the one `alg` that its type allows. Private members are left out.
    """
    keys = key_set.get("keys") if isinstance(key_set, dict) else None
    if not isinstance(keys, list):
        return None
    usable = [_usable(key) for key in keys[:MAX_KEYS] if isinstance(key, dict)]
    return tuple(key for key in usable if key is not None)


def _usable(key: Mapping[str, Any]) -> Wire | None:
    kid = key.get("kid")
    if kid is not None and not (isinstance(kid, str) and 0 < len(kid) <= MAX_KID_CHARS):
        return None
    if key.get("use", "sig") != "sig" or not _may_verify(key.get("key_ops")):
        return None
    alg, numbers = _rsa_numbers(key) if key.get("kty") == "RSA" else _curve_numbers(key)
    if not numbers or key.get("alg", alg) != alg:
        return None
    name = {} if kid is None else {"kid": kid}
    usable = {**name, "kty": key["kty"], "alg": alg, **numbers}
    return usable if _is_sound(usable) else None


def _is_sound(key: Wire) -> bool:
    """Return whether the library takes the key: a point must be on its curve."""
    from jwt import PyJWK, PyJWTError

    try:
        PyJWK(key)
    except (PyJWTError, ValueError):
        return False
    return True


def _may_verify(operations: Any) -> bool:
    return operations is None or (isinstance(operations, list) and "verify" in operations)


def _rsa_numbers(key: Mapping[str, Any]) -> tuple[str, Wire]:
    modulus = int.from_bytes(_decoded(key.get("n")))
    exponent = int.from_bytes(_decoded(key.get("e")))
    is_usable = modulus.bit_length() in RSA_BITS and modulus % 2 and exponent % 2 and 1 < exponent < MAX_EXPONENT
    return "RS256", {"n": key["n"], "e": key["e"]} if is_usable else {}


def _curve_numbers(key: Mapping[str, Any]) -> tuple[str, Wire]:
    kty = key.get("kty")
    crv = key.get("crv")
    if not (isinstance(kty, str) and isinstance(crv, str)) or (kty, crv) not in _CURVES:
        return "", {}
    alg, coordinates = _CURVES[kty, crv]
    if any(len(_decoded(key.get(name))) != _COORDINATE_BYTES for name in coordinates):
        return "", {}
    return alg, {"crv": crv, **{name: key[name] for name in coordinates}}


def _decoded(text: Any) -> bytes:
    """The bytes that unpadded base64url stands for; none if it is no such text."""
    if not isinstance(text, str) or len(text) > 4 * RSA_BITS.stop // 8:
        return b""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
