"""An identity provider of our own: real keys, real tokens, and a TLS server for its discovery document and its keys."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.fakes.throwaway_ca import ThrowawayCa
from tests.ports import own_port

AUDIENCE = "tollgate"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True)
class SigningKey:
    """A private key, with the `kid` and the algorithm that its tokens name."""

    kid: str
    alg: str
    private: PrivateKey

    @property
    def public(self) -> dict[str, Any]:
        """The public key as a JWK."""
        algorithm = jwt.get_algorithm_by_name(self.alg)
        members = algorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**members, "kid": self.kid, "alg": self.alg, "use": "sig"}


@cache
def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    """One of each size and number in a test run: making one takes a while."""
    return rsa.generate_private_key(65537, bits)


def new_key(kid: str, alg: str = "ES256") -> SigningKey:
    if alg == "RS256":
        return SigningKey(kid, alg, rsa_key())
    private: PrivateKey = ec.generate_private_key(ec.SECP256R1()) if alg == "ES256" else _ed25519()
    return SigningKey(kid, alg, private)


def _ed25519() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def encoded(value: Any) -> str:
    """The base64url of bytes, of text, or of what is then JSON."""
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: SigningKey, header: Any, claims: Any) -> str:
    """A token with exactly this header and these claims, text or values, signed by the key."""
    text = f"{encoded(header)}.{encoded(claims)}"
    algorithm = jwt.get_algorithm_by_name(key.alg)
    return f"{text}.{encoded(algorithm.sign(text.encode(), key.private))}"


def signed_by_secret(secret: bytes, header: Any, claims: Any) -> str:
    """A token with an HMAC of a secret, such as a public key that everybody knows."""
    text = f"{encoded(header)}.{encoded(claims)}"
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), hashlib.sha256))}"


@dataclass
class Issuer:
    """The provider `https://{name}.example.com`. `answers`: in place of its documents, by path."""

    name: str = "login"
    keys: Sequence[SigningKey] = field(default_factory=lambda: [new_key("first")])
    port: int = field(default_factory=own_port)
    answers: dict[str, web.Response] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"{self.name}.example.com"

    @property
    def url(self) -> str:
        """The name of the issuer in tokens."""
        return f"https://{self.host}/tenant"

    @property
    def jwks_url(self) -> str:
        return f"https://{self.host}/keys"

    @property
    def link(self) -> str:
        return f"{self.host}=127.0.0.1:{self.port}"

    def provider(self, **changes: Any) -> dict[str, Any]:
        """The body that makes it a workspace's identity provider."""
        return {"issuer": self.url, "audience": AUDIENCE, "entity_claim": "org", **changes}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The claims of a token for the group `acme`. A change to None leaves one out."""
        now_s = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "user-1", "org": "acme", "iat": now_s, "exp": now_s + 600}
        return {name: value for name, value in (claims | changes).items() if value is not None}

    def token(self, key: SigningKey | None = None, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token, signed by its first key or by another one."""
        by = key or self.keys[0]
        return signed(by, {"alg": by.alg, "kid": by.kid, "typ": "JWT"} | dict(header or {}), self.claims(**claims))

    async def start(self, ca: ThrowawayCa) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=ca.server_context(self.host)).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path)
        if request.path in self.answers:
            answer = self.answers[request.path]
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        if request.path == "/keys":
            return web.json_response({"keys": [key.public for key in self.keys]})
        if request.path == "/tenant/.well-known/openid-configuration":
            return web.json_response({"issuer": self.url, "jwks_uri": self.jwks_url})
        raise web.HTTPNotFound
