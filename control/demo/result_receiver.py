"""A customer's receiver of results: an HTTPS server with a certificate of an authority that lives as long as the demo.

Records what it receives. Signatures are checked with the library that receivers use.
"""

import datetime
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from standardwebhooks import Webhook

HOST = "results.example.com"
_DAY = datetime.timedelta(days=1)


@dataclass
class ResultReceiver:
    """A receiver of results, whose port is open from now on.

    Its host name leads to 127.0.0.1 by `link`, which the product trusts like `ca_file`.
    """

    directory: Path
    messages: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    _runner: web.AppRunner | None = None
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"https://{HOST}/in"

    @property
    def link(self) -> str:
        return f"{HOST}=127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def ca_file(self) -> Path:
        return self.directory / "demo-ca.pem"

    def verified(self, secret: str, number: int = -1) -> Any:
        """A message, by default the last one, parsed. Raises `WebhookVerificationError` unless the secret signed it."""
        headers, body = self.messages[number]
        return Webhook(secret).verify(body, headers)

    async def start(self) -> None:
        """Serve, unless it does already. It cannot start again after `stop`."""
        if self._runner is not None:
            return
        app = web.Application()
        app.router.add_post("/in", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / "demo-receiver.pem")
        await web.SockSite(self._runner, self._listener, ssl_context=context).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def close(self) -> None:
        """Give the port back, whether or not it was started."""
        self._listener.close()

    async def _receive(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.messages.append((headers, await request.read()))
        return web.Response()

    def make_certificates(self) -> None:
        """Write the authority's certificate, and the receiver's with its key."""
        ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tollgate demo")])
        ca = _certificate(ca_name, ca_name, ca_key.public_key(), ca_key)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
        receiver = _certificate(name, ca_name, key.public_key(), ca_key)
        pem = serialization.Encoding.PEM
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        self.ca_file.write_bytes(ca.public_bytes(pem))
        secret = key.private_bytes(pem, *plain)
        (self.directory / "demo-receiver.pem").write_bytes(secret + receiver.public_bytes(pem))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    is_ca = subject == issuer
    now = datetime.datetime.now(datetime.UTC)
    usage = {"digital_signature": not is_ca, "key_cert_sign": is_ca, "crl_sign": is_ca}
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage |= dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - _DAY, now + _DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(issuer_id, critical=False)
    if not is_ca:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
