"""An identity provider for the console's login: a real HTTP server with real keys, in the shapes of three vendors.

Its documents, paths and claims are those that Keycloak, Microsoft Entra ID and Google publish. It checks what a client
must send, and says no as the specifications demand; a test may change what it says.
"""

import base64
import hashlib
import json
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import unquote_plus, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.issuer import rsa_key
from tests.ports import own_port

Json = dict[str, Any]
CLIENT_ID = "tollgate-console"
CLIENT_SECRET = "s3cr+t of the/console"
TENANT = "833ced3d-cb2e-41de-92f1-29e2af035ddc"


@dataclass(frozen=True)
class Shape:
    """The ways of a vendor. `path`: of the issuer; `places`: paths of the endpoints; `document`: further metadata."""

    path: str
    places: dict[str, str]
    document: Json
    claims: Json


KEYCLOAK = Shape(
    "/realms/acme",
    {
        "authorization": "/realms/acme/protocol/openid-connect/auth",
        "token": "/realms/acme/protocol/openid-connect/token",
        "jwks": "/realms/acme/protocol/openid-connect/certs",
        "end_session": "/realms/acme/protocol/openid-connect/logout",
    },
    {
        "token_endpoint_auth_methods_supported": ["private_key_jwt", "client_secret_basic", "client_secret_post"],
        "code_challenge_methods_supported": ["plain", "S256"],
        "authorization_response_iss_parameter_supported": True,
    },
    {
        "typ": "ID",
        "azp": CLIENT_ID,
        "sid": "2f0e8a4c-7c57-4f55-9d0c-6d3a4a1f5c11",
        "acr": "1",
        "realm_access": {"roles": ["default-roles-acme", "offline_access", "tollgate-operator"]},
        "resource_access": {"account": {"roles": ["manage-account"]}},
        "preferred_username": "ada",
        "email": "ada@acme.example",
        "email_verified": True,
        "name": "Ada Lovelace",
    },
)
ENTRA = Shape(
    f"/{TENANT}/v2.0",
    {
        "authorization": f"/{TENANT}/oauth2/v2.0/authorize",
        "token": f"/{TENANT}/oauth2/v2.0/token",
        "jwks": f"/{TENANT}/discovery/v2.0/keys",
        "end_session": f"/{TENANT}/oauth2/v2.0/logout",
    },
    {"token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt"]},
    {
        "ver": "2.0",
        "tid": TENANT,
        "oid": "cb7eda1b-d09a-40ae-b8bb-37836ebc6abd",
        "roles": ["Tollgate.Admin"],
        "groups": ["0760b6cf-170e-4a14-91b3-4b78e0739963"],
        "preferred_username": "ada@acme.example",
        "name": "Ada Lovelace",
    },
)
GOOGLE = Shape(
    "",
    {"authorization": "/o/oauth2/v2/auth", "token": "/token", "jwks": "/oauth2/v3/certs"},
    {
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        "code_challenge_methods_supported": ["plain", "S256"],
    },
    {
        "azp": CLIENT_ID,
        "hd": "acme.example",
        "email": "ada@acme.example",
        "email_verified": True,
        "at_hash": "HK6E_P6Dh8Y93mRNtsDB1Q",
        "name": "Ada Lovelace",
    },
)


@dataclass
class Grant:
    """The login that a code stands for."""

    nonce: str
    challenge: str
    redirect_uri: str
    claims: Json


@dataclass
class LoginProvider:
    """One running provider. Tests change its fields: `claims` of whoever logs in next, `altered` tokens, `refusal`."""

    shape: Shape
    origin: str
    key: rsa.RSAPrivateKey = field(default_factory=rsa_key)
    kid: str = "key-1"
    subject: str = "f:7b0c:ada"
    claims: Json = field(default_factory=dict)
    document: Json = field(default_factory=dict)
    altered: Callable[[Json], Json] | None = None
    signed: Callable[[Json], str] | None = None
    refusal: Json | None = None
    has_secret: bool = True
    asks: bool = False
    """True: it shows a page on which the person agrees, as at a first login."""
    grants: dict[str, Grant] = field(default_factory=dict)
    forms: list[Json] = field(default_factory=list)
    logouts: list[Json] = field(default_factory=list)

    @property
    def issuer(self) -> str:
        return self.origin + self.shape.path

    def sign(self, claims: Json, key: Any = None, alg: str = "RS256", **header: Any) -> str:
        return jwt.encode(claims, key or self.key, algorithm=alg, headers={"kid": self.kid, **header})

    def routes(self) -> list[web.RouteDef]:
        places = self.shape.places
        routes = [
            web.get(f"{self.shape.path}/.well-known/openid-configuration", self._discover),
            web.get(places["authorization"], self._authorize),
            web.post(places["token"], self._redeem),
            web.get(places["jwks"], self._keys),
            web.get("/elsewhere", self._lead_on),
        ]
        return routes + ([web.get(places["end_session"], self._log_out)] if "end_session" in places else [])

    async def _discover(self, _request: web.Request) -> web.Response:
        names = {"authorization": "authorization_endpoint", "token": "token_endpoint", "jwks": "jwks_uri"}
        names["end_session"] = "end_session_endpoint"
        endpoints = {names[name]: self.origin + path for name, path in self.shape.places.items()}
        return web.json_response({"issuer": self.issuer, **endpoints, **self.shape.document, **self.document})

    async def _keys(self, _request: web.Request) -> web.Response:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        ours = {**public, "kid": self.kid, "use": "sig", "alg": "RS256"}
        for_encryption = {**public, "kid": "enc", "use": "enc", "alg": "RSA-OAEP"}
        return web.json_response({"keys": [for_encryption, ours]})

    async def _lead_on(self, _request: web.Request) -> web.Response:
        raise web.HTTPFound(self.origin + self.shape.places["jwks"])

    async def _authorize(self, request: web.Request) -> web.Response:
        query = request.query
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        answer: Json = {"state": query["state"]}
        if self.shape.document.get("authorization_response_iss_parameter_supported"):
            answer["iss"] = self.issuer
        if self.refusal is not None:
            answer |= self.refusal
        else:
            code = secrets.token_urlsafe(16)
            claims = {**self.shape.claims, **self.claims}
            self.grants[code] = Grant(query["nonce"], query["code_challenge"], query["redirect_uri"], claims)
            answer["code"] = code
        address = f"{query['redirect_uri']}?{urlencode(answer)}"
        if not self.asks:
            raise web.HTTPFound(address)
        page = f'<!doctype html><html lang="en"><title>Sign in</title><a href="{escape(address)}">Continue as Ada</a>'
        return web.Response(text=page, content_type="text/html")

    async def _redeem(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        self.forms.append(form)
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        grant = self.grants.pop(str(form["code"]), None)
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if grant is None or (grant.challenge, grant.redirect_uri) != (challenge, form["redirect_uri"]):
            return web.json_response({"error": "invalid_grant", "error_description": "Code not valid"}, status=400)
        now_s = int(time.time())
        times = {"iat": now_s, "exp": now_s + 300, "auth_time": now_s}
        names = {"iss": self.issuer, "aud": CLIENT_ID, "sub": self.subject, "nonce": grant.nonce}
        claims = {**names, **times, **grant.claims}
        claims = claims if self.altered is None else self.altered(claims)
        token = self.sign(claims) if self.signed is None else self.signed(claims)
        return web.json_response({"access_token": "opaque", "token_type": "Bearer", "id_token": token})

    def _is_client(self, request: web.Request, form: Json) -> bool:
        header = request.headers.get("Authorization", "")
        methods = self.shape.document["token_endpoint_auth_methods_supported"]
        if not self.has_secret:
            return not header and "client_secret" not in form and form.get("client_id") == CLIENT_ID
        if "client_secret_basic" in methods:
            id, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
            return (unquote_plus(id), unquote_plus(secret)) == (CLIENT_ID, CLIENT_SECRET)
        return not header and (form.get("client_id"), form.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)

    async def _log_out(self, request: web.Request) -> web.Response:
        self.logouts.append(dict(request.query))
        raise web.HTTPFound(request.query["post_logout_redirect_uri"])


@asynccontextmanager
async def running_provider(
    shape: Shape = KEYCLOAK, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[LoginProvider]:
    """A provider at a port of its own. `localhost` is another site than 127.0.0.1, for browsers."""
    port = own_port()
    provider = LoginProvider(shape, f"{'http' if tls is None else 'https'}://{host}:{port}")
    app = web.Application()
    app.router.add_routes(provider.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        yield provider
    finally:
        await runner.cleanup()
