"""Asks sources over HTTP: each address is checked before it is dialled, and each redirect as if it had been named.

Credentials go to the source's own origin alone. No text of an answer gets into an error.

See docs/reference/management-api.md#egress-rules.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from policy.hosts import MAX_REDIRECT_CHARS, EgressRules, HostRuleError, Reach, check_addresses, check_download_url
from runtime.daemon_threads import in_daemon_thread
from runtime.http.checked_dialling import (
    AddressRefusedError,
    Place,
    causes,
    checked_session,
    describe,
    resolve_host,
    trusting,
)
from trainer.backend import WeightsError
from trainer.edges.weights.remote_files import RefusedError, Request, SourceAwayError, origin_of
from trainer.settings import WeightsTerms

MAX_REDIRECTS = 5
MAX_LIST_BYTES = 16 * 1024 * 1024
"""The most bytes of one page of a list."""
READ_TIMEOUT_S = 60.0
_AGENT = "Tollgate-Trainer/1"
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_NOT_NOW = frozenset((408, 425, 429))
_REFUSED = frozenset((401, 403))
_ABSENT = frozenset((404, 410))
REGION = "x-amz-bucket-region"


class OtherRegionError(Exception):
    """The bucket is in another region than was asked."""

    def __init__(self, region: str) -> None:
        super().__init__(region)
        self.region = region


class Downloads:
    """GETs for one job, within an `async with`."""

    def __init__(self, terms: WeightsTerms) -> None:
        self.terms = terms
        self._rules = EgressRules.parse(terms.egress_allow, terms.platform_hosts)
        tls = trusting(None, terms.ca_pem)
        self._sessions = {
            reach: checked_session(partial(self._places, reach), tls, _AGENT, read_timeout_s=READ_TIMEOUT_S)
            for reach in (Reach.OPERATOR, Reach.CUSTOMER)
        }

    async def __aenter__(self) -> "Downloads":
        return self

    async def __aexit__(self, *_error: object) -> None:
        for session in self._sessions.values():
            await session.close()

    @asynccontextmanager
    async def open(self, request: Request, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer with a content. SourceAwayError, also while it is read; OtherRegionError; WeightsError."""
        try:
            answer = await self._answer(request, headers)
            try:
                yield answer
            finally:
                answer.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if any(isinstance(one, AddressRefusedError) for one in causes(error)):
                raise WeightsError(f"{describe(error)} (TOLLGATE_EGRESS_ALLOW)") from None
            if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)):
                raise WeightsError(describe(error)) from None
            raise SourceAwayError(describe(error)) from None

    async def read(self, request: Request) -> tuple[bytes, aiohttp.ClientResponse]:
        """A whole answer, of at most MAX_LIST_BYTES, and its head. SourceAwayError; OtherRegionError; WeightsError."""
        pieces = list[bytes]()
        size_bytes = 0
        async with self.open(request, {}) as answer:
            async for piece in answer.content.iter_any():
                pieces.append(piece)
                size_bytes += len(piece)
                if size_bytes > MAX_LIST_BYTES:
                    raise WeightsError("the source's list of files is too long to be read")
        return b"".join(pieces), answer

    async def read_json(self, request: Request) -> tuple[Any, aiohttp.ClientResponse]:
        """The same for JSON."""
        content, answer = await self.read(request)
        try:
            return await in_daemon_thread(json.loads, content), answer
        except (ValueError, RecursionError):
            raise WeightsError("the source's list of files is not JSON") from None

    async def _answer(self, request: Request, headers: dict[str, str]) -> aiohttp.ClientResponse:
        url = request.url
        is_at_home = True
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url, request)
            own = request.access.headers(url) if is_at_home else {}
            fields = {"Accept-Encoding": "identity"} | headers | own
            session = self._sessions[self._reach(url, request)]
            answer = await session.get(URL(url, encoded=True), headers=fields, allow_redirects=False)
            location = answer.headers.get("Location")
            if answer.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                return answer
            answer.close()
            if answer.status not in _REDIRECTS or location is None or REGION in answer.headers:
                raise _problem(answer, request)
            url = urljoin(url, location)
            is_at_home = is_at_home and origin_of(url) == origin_of(request.url)
        raise WeightsError("the source redirects too often")

    def _reach(self, url: str, request: Request) -> Reach:
        return Reach.OPERATOR if origin_of(url) == request.operator_origin else Reach.CUSTOMER

    def _check(self, url: str, request: Request) -> None:
        """Check the text of a URL that the operator has not set."""
        if self._reach(url, request) is Reach.OPERATOR:
            return
        try:
            check_download_url(url, self._rules, "source", MAX_REDIRECT_CHARS)
        except HostRuleError as error:
            what = "the source" if url == request.url else "the source redirects to a URL that"
            raise WeightsError(f"{what} may not be called ({str(error).removeprefix('source: ')})") from None

    async def _places(self, reach: Reach, host: str, port: int) -> list[Place]:
        link = self._rules.links.get(host.lower())
        if link is not None:
            return [(link.address, link.port)]
        addresses = await resolve_host(host)
        try:
            check_addresses(addresses, reach, self._rules, "source")
        except HostRuleError:
            raise AddressRefusedError from None
        return [(address, port) for address in addresses]


def _problem(answer: aiohttp.ClientResponse, request: Request) -> Exception:
    """Return what an answer without a content means."""
    status = answer.status
    region = answer.headers.get(REGION)
    if region is not None and status not in _REFUSED | _ABSENT and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return OtherRegionError(region)
    if status in _NOT_NOW or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return SourceAwayError(f"the source answered {status}")
    if status in _REFUSED and request.access.is_anonymous:
        reason = f"the source asks for a credential ({status}); name a secret in auth_secret_name, if it has such files"
        return RefusedError(reason)
    if status in _REFUSED:
        return RefusedError(f"the source refuses the credential of auth_secret_name ({status})")
    if status == HTTPStatus.BAD_REQUEST and not request.access.is_anonymous:
        return WeightsError(f"the source answered {status}; check the secret of auth_secret_name, and the region in it")
    if status in _ABSENT:
        return WeightsError(f"the source has no such files ({status})")
    return WeightsError(f"the source answered {status}")
