"""Control's outgoing HTTP calls: each dials an address that was checked, follows no redirect, reads no proxy variable.

Resolves the name, checks every address and dials a checked one. Errors name neither host nor address, and quote nothing
from the receiver.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp
from yarl import URL

from control.records.identity.documents import Document
from policy.hosts import Address, EgressRules, HostRuleError, Reach, check_addresses
from runtime.exhaustion import Exhaustion, is_exhausted, no_descriptor_is_left, out_of_descriptors
from runtime.http.checked_dialling import (
    AddressRefusedError,
    Place,
    causes,
    checked_session,
    describe,
    resolve_host,
    trusting,
)

_READ_BYTES = 4096
T = TypeVar("T")
Resolve = Callable[[str], Awaitable[list[Address]]]


@dataclass(frozen=True, slots=True)
class Egress:
    """The rules and means of dialling. `reuse`: keep connections for further calls. Only tests replace `resolve`."""

    rules: EgressRules
    reach: Reach
    ca_file: str | None = None
    resolve: Resolve = resolve_host
    reuse: bool = True

    async def places(self, host: str, port: int) -> list[Place]:
        """The places that may be dialled for a host. AddressRefusedError."""
        link = self.rules.links.get(host.lower())
        if link is not None:
            return [(link.address, link.port)]
        addresses = await self.resolve(host)
        try:
            check_addresses(addresses, self.reach, self.rules, "url")
        except HostRuleError:
            raise AddressRefusedError from None
        return [(address, port) for address in addresses]


@dataclass(frozen=True, slots=True)
class Posted:
    """The outcome of a POST. `status` is None without an answer; `error` is for customers, and empty after a 2xx."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class EgressClient:
    """Calls URLs whose text `check_url` allows, within `timeout_s`. `agent`: the User-Agent."""

    def __init__(
        self, egress: Egress, agent: str, check_url: Callable[[str, EgressRules], object], timeout_s: float
    ) -> None:
        self._egress = egress
        self._agent = agent
        self._check_url = check_url
        self._timeout_s = timeout_s
        self._tls = trusting(egress.ca_file)
        self._session: aiohttp.ClientSession | None = None
        self._exhaustion = Exhaustion(
            "calls to webhooks, wake hooks or identity providers were not made; they are tried again"
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Posted:
        """Make one attempt. Raises nothing, whatever the receiver does."""
        posted = await self._one_attempt(url, lambda: self._send(url, headers, body))
        return Posted(error=posted) if isinstance(posted, str) else posted

    async def get(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Document:
        """Make one attempt to get a document of at most `max_bytes`. Raises nothing, whatever the server does."""
        document = await self._one_attempt(url, lambda: self._fetch(url, headers, max_bytes))
        return Document(error=document) if isinstance(document, str) else document

    async def _one_attempt(self, url: str, attempt: Callable[[], Awaitable[T]]) -> T | str:
        """The outcome of one attempt, or what went wrong."""
        try:
            self._check_url(url, self._egress.rules)
            async with asyncio.timeout(self._timeout_s):
                return await attempt()
        except HostRuleError:
            return "the URL may not be called"
        except TimeoutError:
            return "no answer in time"
        except Exception as failure:
            if (shortage := _shortage(failure)) is not None:
                self._exhaustion.note(shortage)
                return "the sender has run out of file descriptors, memory or threads"
            if not isinstance(failure, (aiohttp.ClientError, OSError)):
                raise
            return describe(failure)

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> Posted:
        sent_url = URL(url, encoded=True)  # exactly the text that was checked
        async with self._open().post(sent_url, headers=headers, data=body, allow_redirects=False) as answer:
            await answer.content.read(_READ_BYTES)  # the rest is not read; the connection is closed
        return Posted(answer.status, answer.headers, _error_of(answer.status))

    async def _fetch(self, url: str, headers: Mapping[str, str], max_bytes: int) -> Document:
        sent_url = URL(url, encoded=True)
        async with self._open().get(sent_url, headers=headers, allow_redirects=False) as answer:
            if error := _error_of(answer.status):
                return Document(error=error)
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    return Document(error=f"answered more than {max_bytes} bytes")
        return Document(bytes(body))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = checked_session(self._egress.places, self._tls, self._agent, reuse=self._egress.reuse)
        return self._session


def _error_of(status: int) -> str:
    return "" if 200 <= status < 300 else f"answered {status}"


def _shortage(failure: Exception) -> BaseException | None:
    """The error that tells what this process has run out of, if it has. The resolver does not name it."""
    if isinstance(failure, aiohttp.ClientConnectorDNSError) and no_descriptor_is_left():
        return out_of_descriptors()
    return next(filter(is_exhausted, causes(failure)), None)
