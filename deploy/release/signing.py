"""Signatures of a release by an Ed25519 key of the operator: of the checksums, and of the provenance in an envelope.

Ed25519 only: it needs no random number, so that signing again gives the same bytes, and OpenSSL verifies it.
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PASSPHRASE = "RELEASE_KEY_PASSPHRASE"  # noqa: S105  (the name of a variable)
REMEDY = "Make one with: openssl genpkey -algorithm ed25519 -out FILE"


class KeyFileError(Exception):
    """The key cannot be used; the message names the file and the remedy, and never its content."""


def read_key(path: Path, passphrase: str | None) -> Ed25519PrivateKey:
    """Return the private key of a PEM file. Raises `KeyFileError`."""
    secret = passphrase.encode() if passphrase and is_encrypted(path) else None
    if is_encrypted(path) and not secret:
        raise KeyFileError(f"the key {path} is encrypted: set {PASSPHRASE}")
    try:
        key = load_pem_private_key(_content(path), secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        wrong = f" with the passphrase of {PASSPHRASE}" if secret else ""
        raise KeyFileError(f"{path} is no private key in PEM that can be opened{wrong}. {REMEDY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"the key {path} is not of the type Ed25519. {REMEDY}")
    return key


def is_encrypted(path: Path) -> bool:
    """Return whether the key opens with a passphrase alone. Raises `KeyFileError`."""
    return b"ENCRYPTED" in _content(path)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror}") from None


def envelope(payload: bytes, key: Ed25519PrivateKey) -> str:
    """Return the DSSE envelope of an in-toto statement, as a line of JSON."""
    signature = key.sign(pre_authentication(PAYLOAD_TYPE, payload))
    document = {
        "payloadType": PAYLOAD_TYPE,
        "payload": _base64(payload),
        "signatures": [{"keyid": key_id(key), "sig": _base64(signature)}],
    }
    return json.dumps(document) + "\n"


def pre_authentication(type: str, payload: bytes) -> bytes:
    """Return what is signed of an envelope: its type and its payload, each behind its length."""
    return f"DSSEv1 {len(type.encode())} {type} {len(payload)} ".encode() + payload


def key_id(key: Ed25519PrivateKey) -> str:
    """Return the SHA-256 digest of the public key in DER: a hint which key verifies."""
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).hexdigest()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
