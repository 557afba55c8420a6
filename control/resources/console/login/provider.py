"""The identity provider of the console: where browsers log in, what it gives for a code, and whether that is believed.

See docs/reference/console.md#people.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote_plus, urlencode

from control.records.console import LoginAttempt, LoginProviderError, ProviderEndpoints
from control.resources.console.login.login_attempts import AttemptSealer, challenge_of
from policy.identity.login_claims import fault_of_claims
from policy.identity.login_settings import LoginSettings, is_secure_url
from policy.identity.public_keys import usable_keys
from policy.identity.tokens import TokenError, fault_of, is_signed_by, key_for, read_token

SCOPE = "openid email profile"
DISCOVERY_VALID_S = 300.0
MAX_ID_TOKEN_CHARS = 65_536
"""The longest ID token: 200 groups of Entra are 8 kB in it."""
log = logging.getLogger(__name__)


class LoginRefusedError(Exception):
    """The provider, or what it answered, does not let the person in. The text is for that person."""


class ProviderClient(Protocol):
    """Asks the provider over HTTP. Both raise `LoginProviderError`."""

    async def get(self, url: str) -> dict[str, Any]: ...
    async def post(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]: ...
    async def close(self) -> None: ...


class LoginProvider:
    """The provider of these settings. Its discovery document is read again after five minutes."""

    def __init__(self, settings: LoginSettings, client: ProviderClient, secret_keys: Sequence[bytes]) -> None:
        self.settings = settings
        self.attempts = AttemptSealer(secret_keys)
        self._client = client
        self._endpoints: ProviderEndpoints | None = None
        self._read_at_s = float("-inf")

    @classmethod
    def of(
        cls, settings: LoginSettings | None, client: ProviderClient, secret_keys: Sequence[bytes]
    ) -> "LoginProvider | None":
        """The provider, if the settings name one."""
        return None if settings is None else cls(settings, client, secret_keys)

    async def close(self) -> None:
        await self._client.close()

    async def endpoints(self) -> ProviderEndpoints:
        """Raises `LoginProviderError`."""
        if self._endpoints is None or time.monotonic() - self._read_at_s > DISCOVERY_VALID_S:
            url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
            self._endpoints = _endpoints(await self._client.get(url), self.settings.issuer)
            self._read_at_s = time.monotonic()
        return self._endpoints

    async def authorization_url(self, attempt: LoginAttempt) -> str:
        """The address at the provider where a browser logs in. Raises `LoginProviderError`."""
        parameters = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": attempt.redirect_uri,
            "scope": SCOPE,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge_of(attempt),
            "code_challenge_method": "S256",
        }
        return _with_query((await self.endpoints()).authorization, parameters)

    async def logout_url(self, return_to: str) -> str | None:
        """The address where a browser logs out of the provider too; None if there is none, or it is away."""
        try:
            end_session = (await self.endpoints()).end_session
        except LoginProviderError:
            return None
        parameters = {"client_id": self.settings.client_id, "post_logout_redirect_uri": return_to}
        return None if end_session is None else _with_query(end_session, parameters)

    async def claims(self, attempt: LoginAttempt, code: str) -> Mapping[str, Any]:
        """The claims of whoever logged in. Raises `LoginRefusedError`, `LoginProviderError`."""
        endpoints = await self.endpoints()
        text = await self._redeem(endpoints, attempt, code)
        keys = usable_keys(await self._client.get(endpoints.jwks))
        if not keys:
            raise LoginProviderError("it publishes no key of RS256, ES256 or EdDSA")
        try:
            token = read_token(text, MAX_ID_TOKEN_CHARS)
        except TokenError as error:
            raise _distrusted(str(error)) from None
        key = key_for(token, keys)
        if key is None or not await asyncio.to_thread(is_signed_by, token, key):
            raise _distrusted("none of the provider's keys has signed it")
        fault = fault_of(token, time.time()) or fault_of_claims(token.claims, self.settings, attempt.nonce)
        if fault:
            raise _distrusted(fault)
        return token.claims

    async def _redeem(self, endpoints: ProviderEndpoints, attempt: LoginAttempt, code: str) -> str:
        """The ID token that the provider gives for a code."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        headers = {}
        secret = self.settings.client_secret
        if secret and not endpoints.posts_secret:
            headers["Authorization"] = _basic(self.settings.client_id, secret)
        else:
            form["client_id"] = self.settings.client_id
        if secret and endpoints.posts_secret:
            form["client_secret"] = secret
        status, body = await self._client.post(endpoints.token, form, headers)
        if status == 200 and isinstance(body.get("id_token"), str):
            return str(body["id_token"])
        error = str(body.get("error", ""))[:64]
        if error == "invalid_grant":
            raise LoginRefusedError("The identity provider does not accept this login: it was used, or is too old.")
        raise LoginProviderError(f"its token endpoint answered {status} {error!r} and no ID token")


def _endpoints(document: Mapping[str, Any], issuer: str) -> ProviderEndpoints:
    """The endpoints of a discovery document. Raises `LoginProviderError` if the document does not hold."""
    if document.get("issuer") != issuer:
        raise LoginProviderError("its discovery document names another issuer than TOLLGATE_OIDC_ISSUER")
    urls = [document.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
    if not all(isinstance(url, str) and is_secure_url(url) for url in urls):
        raise LoginProviderError("its discovery document lacks an endpoint, or names one without https://")
    end_session = document.get("end_session_endpoint")
    has_end = isinstance(end_session, str) and is_secure_url(end_session)
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    posts_secret = isinstance(methods, list) and "client_secret_basic" not in methods
    names_itself = document.get("authorization_response_iss_parameter_supported") is True
    authorization, token, jwks = map(str, urls)
    return ProviderEndpoints(
        authorization, token, jwks, str(end_session) if has_end else None, posts_secret, names_itself
    )


def _with_query(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"


def _basic(client_id: str, secret: str) -> str:
    """The header field of a client (RFC 6749, 2.3.1): both are encoded as in a form."""
    return "Basic " + base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()


def _distrusted(reason: str) -> LoginRefusedError:
    log.warning(
        "A login to the console was refused: the ID token of the identity provider is not accepted (%s). If it happens"
        " again, check TOLLGATE_OIDC_ISSUER and TOLLGATE_OIDC_CLIENT_ID, the clocks, and the provider's client.",
        reason,
    )
    return LoginRefusedError(f"The identity provider's token is not accepted: {reason}.")
