"""Access tokens for VENDOR_C: a service account's signed assertion goes out, a bearer token comes back (RFC 7523).

A token is kept until it expires and renewed beside the traffic shortly before; one request at a time per account,
however many calls wait for it. Secrets, assertions and tokens are never logged and never in an error's text.
"""

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from policy.endpoints import EndpointRuleError
from policy.hosts import EgressRules, Reach, check_base_url
from policy.service_accounts import ServiceAccountError
from proxy.dialects import vendor_c
from proxy.exchange import UpstreamAnswer, UpstreamCall, UpstreamUnreachableError
from proxy.refusals import TargetCredentialError

FETCH_TIMEOUT_S = 10.0
RENEW_BEFORE_S = 300.0
RETRY_AFTER_S = 5.0
"""How long a renewal that failed is left alone, as long as the old token still serves."""
USELESS_BELOW_S = 10.0
"""A token this close to its end may be dead before it arrives."""
MAX_ANSWER_BYTES = 65_536
MAX_ACCOUNTS = 1_024
"""So many accounts' keys are kept, the bad ones' place included."""
log = logging.getLogger(__name__)
_HEADERS = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}


class TokenRequestSender(Protocol):
    """The way out."""

    async def send(self, call: UpstreamCall) -> UpstreamAnswer: ...


@dataclass(slots=True)
class _Kept:
    value: str
    renew_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class TokenEndpoints:
    """Where a service account may send us for its token: the customer wrote that URL, so the customers' rules hold.

    `operator_base_url` is VENDOR_C's own base URL: a token endpoint beside it (same origin) is the operator's.
    """

    rules: EgressRules
    operator_base_url: str = ""

    def reach(self, token_uri: str) -> Reach:
        """Raises `EndpointRuleError` when the URL may not be dialled."""
        if self.operator_base_url and _origin(token_uri) == _origin(self.operator_base_url):
            return Reach.OPERATOR
        check_base_url(token_uri, self.rules)
        return Reach.CUSTOMER


class VendorCTokens:
    """One per event loop. `clock`: monotonic seconds, as `UpstreamCall.deadline` has them."""

    def __init__(
        self, upstream: TokenRequestSender, endpoints: TokenEndpoints, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._upstream = upstream
        self._endpoints = endpoints
        self._clock = clock
        self._kept: dict[bytes, _Kept] = {}
        self._fetching: dict[bytes, asyncio.Task[str]] = {}
        self._accounts: dict[bytes, vendor_c.ServiceAccount | None] = {}
        self._reading = threading.Lock()

    async def token(self, secret_value: str) -> str:
        """A token for the service account in `secret_value` (base64 of its JSON).

        Raises TargetCredentialError when the account is malformed or refused, UpstreamError when none can be had now.
        """
        account = hashlib.sha256(secret_value.encode("utf-8", "surrogateescape")).digest()
        kept = self._kept.get(account)
        now = self._clock()
        if kept is not None and now < kept.renew_at:
            return kept.value
        fetching = self._fetching.get(account) or self._begin(account, secret_value)
        if kept is not None and now < kept.expires_at:
            return kept.value
        return await asyncio.shield(fetching)

    async def aclose(self) -> None:
        for task in list(self._fetching.values()):
            task.cancel()
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    def _begin(self, account: bytes, secret_value: str) -> "asyncio.Task[str]":
        task = self._fetching[account] = asyncio.ensure_future(self._fetch(account, secret_value))
        task.add_done_callback(lambda done: self._ended(account, done))
        return task

    def _ended(self, account: bytes, task: "asyncio.Task[str]") -> None:
        del self._fetching[account]
        kept = self._kept.get(account)
        if not task.cancelled() and task.exception() is not None and kept is not None:
            kept.renew_at = self._clock() + RETRY_AFTER_S

    async def _fetch(self, account: bytes, secret_value: str) -> str:
        token_uri, form = await asyncio.to_thread(self._signed, account, secret_value)
        asked_at = self._clock()
        token = await self._ask(token_uri, form)
        lifetime_s = token.lifetime_s
        self._kept = {key: kept for key, kept in self._kept.items() if asked_at < kept.expires_at}
        self._kept[account] = _Kept(
            token.value,
            asked_at + max(lifetime_s - RENEW_BEFORE_S, lifetime_s / 2),
            asked_at + lifetime_s - USELESS_BELOW_S,
        )
        return token.value

    def _signed(self, digest: bytes, secret_value: str) -> tuple[str, bytes]:
        """Where to ask, and the signed form. In a thread: a signature takes 6 ms, without the interpreter's lock."""
        account = self._account(digest, secret_value)
        if account is None:
            raise TargetCredentialError
        return account.token_uri, vendor_c.token_request(account, int(time.time()))

    def _account(self, digest: bytes, secret_value: str) -> vendor_c.ServiceAccount | None:
        """Read once per secret's version, bad ones included: the key is checked then."""
        with self._reading:
            if digest not in self._accounts:
                if len(self._accounts) >= MAX_ACCOUNTS:
                    del self._accounts[next(iter(self._accounts))]
                try:
                    self._accounts[digest] = vendor_c.service_account(secret_value)
                except ServiceAccountError as error:
                    log.warning("A VENDOR_C secret is unusable (%s); its calls are answered 502. Store it anew.", error)
                    self._accounts[digest] = None
            return self._accounts[digest]

    async def _ask(self, token_uri: str, form: bytes) -> vendor_c.AccessToken:
        try:
            reach = self._endpoints.reach(token_uri)
        except EndpointRuleError:
            raise TargetCredentialError from None
        deadline = self._clock() + FETCH_TIMEOUT_S
        call = UpstreamCall(token_uri, "POST", _HEADERS, form, deadline, FETCH_TIMEOUT_S, reach)
        answer = await self._upstream.send(call)
        try:
            body = await _bounded(answer)
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


async def _bounded(answer: UpstreamAnswer) -> bytes:
    body = b""
    while piece := await answer.read():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise UpstreamUnreachableError("the token endpoint's answer is too long")
    return body


def _origin(url: str) -> str:
    return "/".join(url.lower().split("/", 3)[:3])
