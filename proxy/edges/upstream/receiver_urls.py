"""Judges the URLs of result webhooks when a request is accepted. Each address is judged again before it is dialled.

Callers choose these names, so they have threads of their own: name servers that do not answer delay no other look-up. A
name that does not resolve in time is accepted.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio

from policy.hosts import Address, EgressRules, Reach, check_addresses, check_base_url
from proxy.edges.upstream.egress import Resolver

THREADS = 8
MAX_PENDING = 200
"""Look-ups under way. With more, further names count as not resolved."""
RESOLVE_TIMEOUT_S = 2.0


class ReceiverUrls:
    """Checks URLs by their text and by the addresses of their host. Only tests pass `resolver`."""

    def __init__(self, rules: EgressRules, resolver: Resolver | None = None) -> None:
        self._rules = rules
        self._resolver = resolver or Resolver(THREADS)

    def close(self) -> None:
        self._resolver.close()

    async def check(self, url: str, field: str) -> None:
        """Raise `HostRuleError`, which names `field`, unless a customer may name `url` as a receiver."""
        parsed = check_base_url(url, self._rules, field)
        if parsed.address is None and parsed.host not in self._rules.links:
            check_addresses(await self._addresses(parsed.host), Reach.CUSTOMER, self._rules, field)

    async def _addresses(self, host: str) -> tuple[Address, ...]:
        if self._resolver.pending >= MAX_PENDING:
            return ()
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                return await self._resolver(host)
        except OSError:  # also if there was no time
            return ()
