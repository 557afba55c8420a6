"""A look at upstreams: names, addresses, TCP, TLS. Sends no request and no credential.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from policy.hosts import EgressRules, HostRuleError, Reach, check_addresses
from runtime.http.checked_dialling import resolve_host

_DEADLINE_S = 5.0
_AT_ONCE = 32
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Origin:
    """A server: what a base URL says of it, and who chose it."""

    scheme: str
    host: str
    port: int
    reach: Reach

    @classmethod
    def of(cls, url: str, reach: Reach) -> "Origin":
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, parts.hostname or "", port, reach)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UpstreamLook:
    """`trouble`: why it cannot be reached, or "". `certificate_days`: how long its certificate is valid, with TLS."""

    trouble: str
    certificate_days: float | None = None


class UpstreamLooks:
    """Looks at many servers, some at a time. `ca_file`: TOLLGATE_EGRESS_CA_FILE."""

    def __init__(self, rules: EgressRules, ca_file: str | None = None) -> None:
        self._rules = rules
        self._tls = ssl.create_default_context()
        if ca_file is not None:
            self._tls.load_verify_locations(ca_file)
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def look_at(self, origins: Iterable[Origin]) -> dict[Origin, UpstreamLook]:
        different = list(dict.fromkeys(origins))
        return dict(zip(different, await asyncio.gather(*map(self._look, different)), strict=True))

    async def _look(self, origin: Origin) -> UpstreamLook:
        async with self._places:
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    return await self._connect(origin)
            except TimeoutError:
                return UpstreamLook("no answer in time")
            except HostRuleError as error:
                return UpstreamLook(f"it may not be dialled: {error.message}")
            except ssl.SSLCertVerificationError as error:
                return UpstreamLook(f"its certificate is refused: {error.verify_message}")
            except OSError as error:
                return UpstreamLook(error.strerror or type(error).__name__)

    async def _connect(self, origin: Origin) -> UpstreamLook:
        address, port = await self._address(origin)
        tls = self._tls if origin.scheme == "https" else None
        name = origin.host if tls else None
        _reader, writer = await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
        certificate = writer.get_extra_info("peercert") if tls else None
        writer.close()
        if not certificate:
            return UpstreamLook("")
        return UpstreamLook("", (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / _DAY_S)

    async def _address(self, origin: Origin) -> tuple[str, int]:
        """The address and port that a proxy with the same settings would dial."""
        link = self._rules.links.get(origin.host.lower())
        if link is not None:
            return str(link.address), link.port
        addresses = await resolve_host(origin.host)
        check_addresses(addresses, origin.reach, self._rules, "address")
        if not addresses:
            raise OSError(None, "the name has no address")
        return str(addresses[0]), origin.port
