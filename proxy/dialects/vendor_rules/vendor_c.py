"""VENDOR_C: Chat Completions under a path per project and location, with an OAuth 2.0 token of a service account.

Pure: builds paths, the signed assertion (RFC 7523, RS256) and the token request. `edges/upstream/vendor_c_tokens.py`
sends it and caches the token.
"""

import base64
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from policy.endpoints import VendorCConfig
from policy.service_accounts import ServiceAccountError, private_key, service_account_fields
from proxy.errors import UpstreamUnreachableError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_LIFETIME_S = 3600


class TokenAnswerError(ValueError):
    """The token endpoint did not answer with an access token."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account: who signs, its key, and the URL of its token endpoint. `repr` omits the key."""

    client_email: str
    key_id: str
    token_uri: str
    key: rsa.RSAPrivateKey

    def __repr__(self) -> str:
        return f"ServiceAccount({self.client_email!r})"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An access token and its lifetime. `repr` omits the token."""

    value: str
    lifetime_s: int

    def __repr__(self) -> str:
        return f"AccessToken(lifetime_s={self.lifetime_s})"


def api_path(config: VendorCConfig, request_path: str) -> str:
    """The path of `/v1/chat/completions` or a sibling for this project and location."""
    project = quote(config.project_id, safe="")
    location = quote(config.location, safe="")
    return f"/v1/projects/{project}/locations/{location}/endpoints/openapi{request_path.removeprefix('/v1')}"


def bearer_token(credential: str | None) -> str | None:
    """The credential, checked not to be the stored secret: a private key must never be sent as a token.

    Raises `UpstreamUnreachableError` if it is.
    """
    try:
        raw = base64.b64decode(credential or "", validate=True)
    except ValueError:
        return credential
    if b"private_key" in raw:
        raise UpstreamUnreachableError("no access token was minted for this target")
    return credential


def service_account(secret: str) -> ServiceAccount:
    """Parse a secret's value. Raises `ServiceAccountError`. Takes up to 60 ms: call it once per secret, in a thread."""
    fields = service_account_fields(secret)
    account = fields.get("client_email"), fields.get("private_key_id", ""), fields.get("token_uri")
    if not all(isinstance(field, str) for field in account):
        raise ServiceAccountError("client_email, private_key_id and token_uri must be text")
    email, key_id, token_uri = map(str, account)
    return ServiceAccount(email, key_id, token_uri, private_key(fields.get("private_key")))


def token_request(account: ServiceAccount, now_s: int) -> bytes:
    """The form to POST to `account.token_uri`, as `application/x-www-form-urlencoded`. `now_s`: Unix seconds."""
    return urlencode({"grant_type": GRANT_TYPE, "assertion": assertion(account, now_s)}).encode()


def assertion(account: ServiceAccount, now_s: int) -> str:
    """The signed JWT that requests a token for this account; valid for an hour from `now_s` (Unix seconds)."""
    header = {"alg": "RS256", "typ": "JWT"} | ({"kid": account.key_id} if account.key_id else {})
    claims = {
        "iss": account.client_email,
        "scope": SCOPE,
        "aud": account.token_uri,
        "iat": now_s,
        "exp": now_s + ASSERTION_LIFETIME_S,
    }
    signed = _token_segment(orjson.dumps(header)) + b"." + _token_segment(orjson.dumps(claims))
    signature = account.key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    return (signed + b"." + _token_segment(signature)).decode()


def access_token(answer: bytes) -> AccessToken:
    """Parse the token endpoint's answer. Raises `TokenAnswerError`."""
    try:
        fields: Any = orjson.loads(answer)
        value = fields["access_token"]
        lifetime_s = fields.get("expires_in", ASSERTION_LIFETIME_S)
        if not isinstance(value, str) or not value.isascii() or not value.isprintable() or not value:
            raise TokenAnswerError
        return AccessToken(value, max(0, int(lifetime_s)))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TokenAnswerError from None


def _token_segment(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
