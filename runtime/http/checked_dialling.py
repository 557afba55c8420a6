"""Outgoing HTTP to URLs that others chose: a session that dials only checked addresses, and reads no proxy variable.

What may be dialled is the caller's to say (`places`). Failures are described without host and address.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

CONNECT_TIMEOUT_S = 5.0
Address = IPv4Address | IPv6Address
Place = tuple[Address, int]
"""An address and a port."""
Places = Callable[[str, int], Awaitable[Sequence[Place]]]
"""The places that may be dialled for a host and a port. AddressRefusedError if one of them may not."""


class AddressRefusedError(OSError):
    """The name resolves to an address that may not be dialled."""


async def resolve_host(host: str) -> list[Address]:
    """Resolve a name with the system's resolver."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries))


@cache
def trusting(ca_file: str | None, ca_pem: str = "") -> ssl.SSLContext:
    """Return the TLS context that all clients of the process share: reading the system's authorities takes 20 ms.

    It trusts those of a file, or of a text, besides.
    """
    context = ssl.create_default_context()
    if ca_file is not None or ca_pem:
        context.load_verify_locations(ca_file, cadata=ca_pem or None)
    return context


def checked_session(
    places: Places, tls: ssl.SSLContext, agent: str, *, reuse: bool = True, read_timeout_s: float | None = None
) -> aiohttp.ClientSession:
    """A session that dials only `places`. `agent`: the User-Agent. `reuse`: keep connections for further calls."""
    connector = aiohttp.TCPConnector(
        resolver=_CheckedResolver(places), use_dns_cache=False, force_close=not reuse, limit=0, ssl=tls
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s),
        trust_env=False,
        headers={"User-Agent": agent},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


class _CheckedResolver(AbstractResolver):
    """Gives the connector only addresses that it may dial."""

    def __init__(self, places: Places) -> None:
        self._places = places

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        places = await self._places(host, port)
        if not places:
            raise OSError("no address")
        return [_resolved(host, *place) for place in places]

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def _resolved(host: str, address: Address, port: int) -> ResolveResult:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return ResolveResult(
        hostname=host, host=str(address), port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )


def causes(failure: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on."""
    error: BaseException | None = failure
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def describe(failure: BaseException) -> str:
    """The failure as a customer reads it: its kind, never its text."""
    if any(isinstance(error, AddressRefusedError) for error in causes(failure)):
        return "the name resolves to an address that may not be called"
    if isinstance(failure, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)):
        return "the TLS handshake failed"
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return "the name does not resolve"
    if isinstance(failure, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return "the connection was refused"
    return "the connection broke off"
