"""A server's certificate and its private key, as two PEM files have them. What does not fit is a `BadPairError`."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from runtime.tls.context import CERT_FILE, KEY_FILE, MemoryFile, server_context

_MAX_BYTES = 1 << 20
_ENCRYPTED = b"ENCRYPTED"


class BadPairError(ValueError):
    """The two files are not a certificate and its key. The message names the setting, the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Pair:
    """`pem`: the certificate, its chain and its key. `ends_at_s`: until when the certificate is valid."""

    pem: bytes = field(repr=False)
    ends_at_s: float

    @classmethod
    def read(cls, certificate: Path, key: Path) -> "Pair":
        """Read and check the two files. Raises `BadPairError`."""
        chain = _certificates(_content(CERT_FILE, certificate))
        private = _private_key(_content(KEY_FILE, key))
        public = private.public_key()
        if chain[0].public_key() != public:
            if any(one.public_key() == public for one in chain):
                raise BadPairError(f"{CERT_FILE}: the server's own certificate must be the first one in the file")
            raise BadPairError(f"{KEY_FILE}: it is not the key of the certificate in {CERT_FILE}")
        encoding = serialization.Encoding.PEM
        texts = [one.public_bytes(encoding) for one in chain]
        texts.append(private.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        pair = cls(b"".join(texts), chain[0].not_valid_after_utc.timestamp())
        pair.context()
        return pair

    def context(self) -> ssl.SSLContext:
        """The context of a server with this pair. Raises `BadPairError`."""
        file = MemoryFile(self.pem)
        try:
            return server_context(file.fd)
        except ssl.SSLError as error:
            raise BadPairError(
                f"{CERT_FILE}: OpenSSL refuses the certificate or its key ({error.reason}); make a stronger one"
            ) from None
        finally:
            file.close()


def _content(name: str, path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise BadPairError(f"{name}: expected a file, not a directory or a device")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadPairError(f"{name}: it cannot be read: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise BadPairError(f"{name}: expected a PEM file of at most 1 MiB")
    return content


def _certificates(content: bytes) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise BadPairError(f"{CERT_FILE}: expected certificates in PEM, the server's own first") from None


def _private_key(content: bytes) -> PrivateKeyTypes:
    if _ENCRYPTED in content:
        raise BadPairError(
            f"{KEY_FILE}: the key is encrypted, and nobody is here to type its password. Write it without one:"
            " openssl pkey -in FILE -out NEW"
        )
    try:
        return serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadPairError(f"{KEY_FILE}: expected a private key in PEM") from None
