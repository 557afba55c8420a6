"""Control's outgoing HTTP calls: each dials an address that was checked, follows no redirect, reads no proxy variable.

Resolves the name, checks every address and dials a checked one. Errors name neither host nor address, and quote nothing
from the receiver.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from policy.hosts import Address, EgressRules, HostRuleError, Reach, check_addresses
from runtime.exhaustion import Exhaustion, is_exhausted, no_descriptor_is_left, out_of_descriptors

CONNECT_TIMEOUT_S = 5.0
_READ_BYTES = 4096
Resolve = Callable[[str], Awaitable[list[Address]]]


class AddressRefusedError(OSError):
    """The name resolves to an address that may not be dialled."""


async def resolve_host(host: str) -> list[Address]:
    """Resolve a name with the system's resolver."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries))


@dataclass(frozen=True, slots=True)
class Egress:
    """The rules and means of dialling. `reuse`: keep connections for further calls. Only tests replace `resolve`."""

    rules: EgressRules
    reach: Reach
    ca_file: str | None = None
    resolve: Resolve = resolve_host
    reuse: bool = True


class _CheckedResolver(AbstractResolver):
    """Gives the connector only addresses that it may dial."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        egress = self._egress
        link = egress.rules.links.get(host.lower())
        if link is not None:
            return [_resolved(host, link.address, link.port)]
        addresses = await egress.resolve(host)
        try:
            check_addresses(addresses, egress.reach, egress.rules, "url")
        except HostRuleError:
            raise AddressRefusedError from None
        if not addresses:
            raise OSError("no address")
        return [_resolved(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def _resolved(host: str, address: Address, port: int) -> ResolveResult:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return ResolveResult(
        hostname=host, host=str(address), port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )


@dataclass(frozen=True, slots=True)
class Posted:
    """The outcome of a POST. `status` is None without an answer; `error` is for customers, and empty after a 2xx."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@cache
def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Return the TLS context that all clients of the process share: reading the system's authorities takes 20 ms."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class EgressClient:
    """Posts to URLs whose text `check_url` allows, within `timeout_s`. `agent`: the User-Agent."""

    def __init__(
        self, egress: Egress, agent: str, check_url: Callable[[str, EgressRules], object], timeout_s: float
    ) -> None:
        self._egress = egress
        self._agent = agent
        self._check_url = check_url
        self._timeout_s = timeout_s
        self._tls = _tls(egress.ca_file)
        self._session: aiohttp.ClientSession | None = None
        self._exhaustion = Exhaustion("messages to webhooks or wake hooks were not sent; they are tried again")

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Posted:
        """Make one attempt. Raises nothing, whatever the receiver does."""
        try:
            self._check_url(url, self._egress.rules)
            async with asyncio.timeout(self._timeout_s):
                return await self._send(url, headers, body)
        except HostRuleError:
            return Posted(error="the URL may not be called")
        except TimeoutError:
            return Posted(error="no answer in time")
        except Exception as failure:
            if (shortage := _shortage(failure)) is not None:
                self._exhaustion.note(shortage)
                return Posted(error="the sender has run out of file descriptors, memory or threads")
            if not isinstance(failure, (aiohttp.ClientError, OSError)):
                raise
            return Posted(error=_describe(failure))

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> Posted:
        sent_url = URL(url, encoded=True)  # exactly the text that was checked
        async with self._open().post(sent_url, headers=headers, data=body, allow_redirects=False) as answer:
            await answer.content.read(_READ_BYTES)  # the rest is not read; the connection is closed
        error = "" if 200 <= answer.status < 300 else f"answered {answer.status}"
        return Posted(answer.status, answer.headers, error)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_CheckedResolver(self._egress),
                use_dns_cache=False,
                force_close=not self._egress.reuse,
                limit=0,
                ssl=self._tls,
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                trust_env=False,
                headers={"User-Agent": self._agent},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session


def _chain(failure: BaseException) -> Iterator[BaseException]:
    error: BaseException | None = failure
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _shortage(failure: Exception) -> BaseException | None:
    """The error that tells what this process has run out of, if it has. The resolver does not name it."""
    if isinstance(failure, aiohttp.ClientConnectorDNSError) and no_descriptor_is_left():
        return out_of_descriptors()
    return next(filter(is_exhausted, _chain(failure)), None)


def _describe(failure: BaseException) -> str:
    """The failure as a customer reads it: its kind, never its text."""
    if any(isinstance(error, AddressRefusedError) for error in _chain(failure)):
        return "the name resolves to an address that may not be called"
    if isinstance(failure, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)):
        return "the TLS handshake failed"
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return "the name does not resolve"
    if isinstance(failure, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return "the connection was refused"
    return "the connection broke off"
