"""Posts a webhook message to a customer's URL. Control makes no other outgoing HTTP call.

Resolves the name, checks every address and dials a checked one. Follows no redirect and reads no proxy environment
variable. Errors name neither host nor address, and quote nothing from the receiver.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from control.resources.webhook_messages import Attempt
from policy.hosts import Address, EgressRules, HostRuleError, Reach, check_addresses, check_base_url

CONNECT_TIMEOUT_S = 5.0
MAX_RETRY_AFTER_S = 86_400
_READ_BYTES = 4096
Resolve = Callable[[str], Awaitable[list[Address]]]


class AddressRefusedError(OSError):
    """The name resolves to an address that may not be dialled."""


class _CheckedResolver(AbstractResolver):
    """Gives the connector only addresses that it may dial."""

    def __init__(self, rules: EgressRules, resolve: Resolve) -> None:
        self._rules = rules
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        link = self._rules.links.get(host.lower())
        if link is not None:
            return [_resolved(host, link.address, link.port)]
        addresses = await self._resolve(host)
        try:
            check_addresses(addresses, Reach.CUSTOMER, self._rules, "url")
        except HostRuleError:
            raise AddressRefusedError from None
        if not addresses:
            raise OSError("no address")
        return [_resolved(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Nothing to close."""


def _resolved(host: str, address: Address, port: int) -> ResolveResult:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return ResolveResult(
        hostname=host, host=str(address), port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )


async def resolve_host(host: str) -> list[Address]:
    """Resolve a name with the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


class WebhookClient:
    """Posts messages. A receiver has `timeout_s` to answer. Only tests replace `resolve`."""

    def __init__(
        self, rules: EgressRules, timeout_s: float, ca_file: str | None = None, resolve: Resolve = resolve_host
    ) -> None:
        self._rules = rules
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._tls = ssl.create_default_context()
        if ca_file is not None:
            self._tls.load_verify_locations(ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """Make one attempt. Never raises; takes at most `timeout_s`."""
        started_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        status, error, retry_after_s = None, None, 0
        try:
            check_base_url(url, self._rules)
            async with asyncio.timeout(self._timeout_s):
                status, retry_after_s = await self._exchange(url, headers, body)
        except HostRuleError:
            error = "the URL may not be called"
        except TimeoutError:
            error = "no answer in time"
        except (aiohttp.ClientError, OSError) as failure:
            error = _describe(failure)
        duration_ms = int((time.monotonic() - started_s) * 1000)
        if status is not None and not 200 <= status < 300:
            error = f"answered {status}"
        return Attempt(at_ms, duration_ms, status, error, retry_after_s * 1000)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _exchange(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        async with self._open().post(url, headers=headers, data=body, allow_redirects=False) as answer:
            await answer.content.read(_READ_BYTES)  # the rest is not read; the connection is closed
            after = answer.headers.get("Retry-After", "")
            seconds = int(after) if after.isascii() and after.isdecimal() and len(after) < 9 else 0
            return answer.status, min(seconds, MAX_RETRY_AFTER_S)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_CheckedResolver(self._rules, self._resolve), use_dns_cache=False, limit=0, ssl=self._tls
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                trust_env=False,
                headers={"User-Agent": "Tollgate-Webhooks/1"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session


def _describe(failure: BaseException) -> str:
    """The failure as the customer reads it: its kind, never its text."""
    chain: BaseException | None = failure
    while chain is not None:
        if isinstance(chain, AddressRefusedError):
            return "the name resolves to an address that may not be called"
        chain = chain.__cause__ or chain.__context__
    if isinstance(failure, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)):
        return "the TLS handshake failed"
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return "the name does not resolve"
    if isinstance(failure, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return "the connection was refused"
    return "the connection broke off"
