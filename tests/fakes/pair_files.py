"""A certificate and its key in two files, as an operator has them, and as certbot and Kubernetes renew them."""

import datetime
import os
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime.tls.pair import Pair

LOCALHOST = "localhost"
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class PairFiles:
    """The two files. `issue` replaces them by a new certificate and a new key."""

    directory: Path

    @property
    def cert_file(self) -> Path:
        return self.directory / "server.pem"

    @property
    def key_file(self) -> Path:
        return self.directory / "server-key.pem"

    @property
    def settings(self) -> dict[str, str]:
        return {"TOLLGATE_TLS_CERT_FILE": str(self.cert_file), "TOLLGATE_TLS_KEY_FILE": str(self.key_file)}

    def issue(self, name: str = LOCALHOST, days: float = 1) -> "PairFiles":
        certificate, key = self_signed(name, days)
        replace(self.key_file, key)
        replace(self.cert_file, certificate)
        return self

    def read(self) -> Pair:
        return Pair.read(self.cert_file, self.key_file)

    def client_context(self) -> ssl.SSLContext:
        """A client that trusts the certificate, for the name in it."""
        return ssl.create_default_context(cafile=str(self.cert_file))


def self_signed(name: str, days: float = 1) -> tuple[bytes, bytes]:
    """A certificate for the name, and its key, in PEM. It has ended if `days` are below 0."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(
            issuer_name=subject,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=30),
            not_valid_after=now + datetime.timedelta(days=days),
        )
        .add_extension(x509.SubjectAlternativeName(_names(name)), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(_PEM), private


def _names(name: str) -> list[x509.GeneralName]:
    loopback = [x509.IPAddress(ip_address("127.0.0.1"))] if name == LOCALHOST else []
    return [x509.DNSName(name), *loopback]


def replace(path: Path, content: bytes) -> None:
    """Replace a file in one step, as certbot does."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def shown_name(port: int) -> str:
    """The name in the certificate that a new connection to this port sees."""
    der = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))
    subject = x509.load_der_x509_certificate(der).subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
