"""Access tokens for VENDOR_C: exchanges a service account's signed assertion for a bearer token (RFC 7523).

Caches each token until it expires and renews it in the background shortly before. One request at a time per account,
however many calls wait for it. Secrets, assertions and tokens appear in no log line and no error text.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from policy.endpoints import EndpointRuleError
from policy.hosts import EgressRules, Reach, check_base_url
from policy.service_accounts import ServiceAccountError
from proxy.dialects.vendor_rules import vendor_c
from proxy.errors import UpstreamUnreachableError
from proxy.parts import UpstreamClient
from proxy.records.messages import UpstreamAnswer, UpstreamCall
from proxy.records.request_fields import RequestFields
from proxy.refusals import TargetCredentialError
from runtime.log_lines import cause_of

FETCH_TIMEOUT_S = 10.0
RENEW_BEFORE_S = 300.0
RETRY_AFTER_S = 5.0
"""Pause after a failed renewal while the old token is still valid."""
USELESS_BELOW_S = 10.0
"""A token that expires sooner may be dead when it reaches the vendor."""
MAX_ANSWER_BYTES = 65_536
MAX_ACCOUNTS = 1_024
"""Most accounts whose parsed keys are cached, invalid ones included."""
log = logging.getLogger(__name__)
_HEADERS = RequestFields({"content-type": "application/x-www-form-urlencoded", "accept": "application/json"})


@dataclass(slots=True)
class _CachedToken:
    value: str
    renew_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class TokenEndpoints:
    """The token endpoints that may be dialled. The URL is in the customer's secret, so the rules for customers apply.

    `operator_base_url` is VENDOR_C's base URL: a token endpoint of the same origin belongs to the operator.
    """

    rules: EgressRules
    operator_base_url: str = ""

    def reach(self, token_uri: str) -> Reach:
        """Return whose rules apply to the URL. Raises `EndpointRuleError` if it may not be dialled."""
        if self.operator_base_url and _origin(token_uri) == _origin(self.operator_base_url):
            return Reach.OPERATOR
        check_base_url(token_uri, self.rules)
        return Reach.CUSTOMER


class VendorCTokens:
    """Gets and caches tokens. One per event loop. `clock`: monotonic seconds, the clock of `UpstreamCall.deadline`."""

    def __init__(
        self, upstream: UpstreamClient, endpoints: TokenEndpoints, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._upstream = upstream
        self._endpoints = endpoints
        self._clock = clock
        self._cached: dict[bytes, _CachedToken] = {}
        self._fetching: dict[bytes, asyncio.Task[str]] = {}
        self._accounts: dict[bytes, vendor_c.ServiceAccount | None] = {}
        self._parsing_lock = threading.Lock()

    async def token(self, secret_value: str) -> str:
        """A token for the service account in `secret_value` (base64 of its JSON).

        Raises `TargetCredentialError` if the account is malformed or refused, `UpstreamError` if there is no token now.
        """
        account = hashlib.sha256(secret_value.encode("utf-8", "surrogateescape")).digest()
        cached = self._cached.get(account)
        now = self._clock()
        if cached is not None and now < cached.renew_at:
            return cached.value
        fetching = self._fetching.get(account) or self._begin(account, secret_value)
        if cached is not None and now < cached.expires_at:
            return cached.value
        return await asyncio.shield(fetching)

    async def aclose(self) -> None:
        for task in list(self._fetching.values()):
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    def _begin(self, account: bytes, secret_value: str) -> "asyncio.Task[str]":
        task = self._fetching[account] = asyncio.ensure_future(self._fetch(account, secret_value))
        task.add_done_callback(lambda fetch: self._fetch_ended(account, fetch))
        return task

    def _fetch_ended(self, account: bytes, task: "asyncio.Task[str]") -> None:
        del self._fetching[account]
        cached = self._cached.get(account)
        if not task.cancelled() and task.exception() is not None and cached is not None:
            cached.renew_at = self._clock() + RETRY_AFTER_S

    async def _fetch(self, account: bytes, secret_value: str) -> str:
        token_uri, form = await asyncio.to_thread(self._signed_form, account, secret_value)
        requested_at = self._clock()
        token = await self._request_token(token_uri, form)
        lifetime_s = token.lifetime_s
        self._cached = {key: cached for key, cached in self._cached.items() if requested_at < cached.expires_at}
        self._cached[account] = _CachedToken(
            token.value,
            requested_at + max(lifetime_s - RENEW_BEFORE_S, lifetime_s / 2),
            requested_at + lifetime_s - USELESS_BELOW_S,
        )
        return token.value

    def _signed_form(self, digest: bytes, secret_value: str) -> tuple[str, bytes]:
        """The token endpoint and the signed form. Runs in a thread: a signature takes 6 ms and releases the GIL."""
        account = self._account(digest, secret_value)
        if account is None:
            raise TargetCredentialError
        return account.token_uri, vendor_c.token_request(account, int(time.time()))

    def _account(self, digest: bytes, secret_value: str) -> vendor_c.ServiceAccount | None:
        """Parse each version of a secret once, which includes the check of its key. None if it is invalid."""
        with self._parsing_lock:
            if digest not in self._accounts:
                if len(self._accounts) >= MAX_ACCOUNTS:
                    del self._accounts[next(iter(self._accounts))]
                try:
                    self._accounts[digest] = vendor_c.service_account(secret_value)
                except ServiceAccountError as error:
                    log.warning(
                        "A VENDOR_C secret is unusable (%s); its calls are answered 502. Store it anew.",
                        cause_of(error),
                    )
                    self._accounts[digest] = None
            return self._accounts[digest]

    async def _request_token(self, token_uri: str, form: bytes) -> vendor_c.AccessToken:
        try:
            reach = self._endpoints.reach(token_uri)
        except EndpointRuleError:
            raise TargetCredentialError from None
        deadline = self._clock() + FETCH_TIMEOUT_S
        call = UpstreamCall(token_uri, "POST", _HEADERS, form, deadline, FETCH_TIMEOUT_S, reach)
        answer = await self._upstream.send(call)
        try:
            body = await _read_bounded(answer)
        finally:
            answer.close()
        if 400 <= answer.status < 500 and answer.status not in (408, 429):
            raise TargetCredentialError
        if answer.status != 200:
            raise UpstreamUnreachableError("the token endpoint gives no token at present")
        try:
            return vendor_c.access_token(body)
        except vendor_c.TokenAnswerError:
            raise UpstreamUnreachableError("the token endpoint's answer holds no token") from None


async def _read_bounded(answer: UpstreamAnswer) -> bytes:
    body = b""
    while piece := await answer.read():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise UpstreamUnreachableError("the token endpoint's answer is too long")
    return body


def _origin(url: str) -> str:
    return "/".join(url.lower().split("/", 3)[:3])
