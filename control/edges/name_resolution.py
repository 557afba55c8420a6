"""Checks what upstream host names resolve to when a URL is written. The proxy checks again before it dials.

A name that does not resolve in time is accepted: it may resolve later, and the proxy checks it then.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import socket
from ipaddress import ip_address

from policy.hosts import (
    Address,
    EgressRules,
    ParsedBase,
    Reach,
    check_addresses,
    check_base_url,
    check_download_url,
    check_replica_url,
    check_wake_url,
)

RESOLVE_TIMEOUT_S = 2.0


class UpstreamUrlChecker:
    """Checks upstream URLs by their text and by the addresses of their host. Raises `HostRuleError`."""

    def __init__(self, rules: EgressRules) -> None:
        self._rules = rules

    async def check_base_url(self, url: str) -> None:
        await self._check(check_base_url(url, self._rules), Reach.CUSTOMER, "base_url")

    async def check_replica_url(self, url: str) -> None:
        await self._check(check_replica_url(url, self._rules), Reach.REPLICA, "replicas")

    async def check_wake_url(self, url: str) -> None:
        await self._check(check_wake_url(url, self._rules), Reach.REPLICA, "wake_url")

    async def check_download_url(self, url: str, field: str) -> None:
        await self._check(check_download_url(url, self._rules, field), Reach.CUSTOMER, field)

    async def _check(self, parsed: ParsedBase, reach: Reach, field: str) -> None:
        if parsed.address is None and parsed.host not in self._rules.links:
            check_addresses(await self.resolve(parsed.host), reach, self._rules, field)

    async def resolve(self, host: str) -> list[Address]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                entries = await loop.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            return []
        return [ip_address(str(place[0]).partition("%")[0]) for *_, place in entries]
