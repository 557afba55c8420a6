"""Outgoing connections of the proxy: resolves a name, checks every address, dials only a checked address.

All of the proxy's connections to upstreams are made here. Ignores proxy environment variables. TLS trusts the system's
authorities and TOLLGATE_EGRESS_CA_FILE. Error texts never name a host or an address.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from policy.hosts import Address, EgressRules, Reach, refusal
from proxy.errors import UpstreamTimeoutError, UpstreamUnreachableError
from runtime.exhaustion import (
    SPARE_DESCRIPTORS,
    NoLocalPortError,
    highest_descriptor,
    is_exhausted,
    lacks_local_port,
    no_descriptor_is_left,
    out_of_descriptors,
)

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
Resolve = Callable[[str], Awaitable[tuple[Address, ...]]]

RESOLVER_THREADS = 32
"""More than the loop's default, so that one customer's dead name server does not delay all look-ups."""
RESOLVED_FOR_S = 10.0
STAGGER_S = 0.25
"""Seconds that one address may take before the next is tried in parallel (RFC 8305 5)."""
MAX_ADDRESSES = 8


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a URL. `host` has no brackets; `port` is None if the URL has none."""

    scheme: str
    host: str
    port: int | None
    reach: Reach

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"


class Resolver:
    """Calls the system's resolver in threads. One look-up per name at a time; caches answers for `RESOLVED_FOR_S`."""

    def __init__(self, threads: int = RESOLVER_THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolve")
        self._answers: dict[str, tuple[float, tuple[Address, ...]]] = {}
        self._lookups: dict[str, asyncio.Future[tuple[Address, ...]]] = {}

    @property
    def pending(self) -> int:
        """Look-ups that have not ended."""
        return len(self._lookups)

    async def __call__(self, host: str) -> tuple[Address, ...]:
        """The addresses of `host` in the system's order of preference. Raises OSError if there are none."""
        answer = self._answers.get(host)
        if answer is not None and time.perf_counter() < answer[0]:
            return answer[1]
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.ensure_future(self._look_up_in_thread(host))
            lookup.add_done_callback(lambda task: self._lookup_ended(host, task))
        return await asyncio.shield(lookup)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _lookup_ended(self, host: str, lookup: asyncio.Future[tuple[Address, ...]]) -> None:
        del self._lookups[host]
        if not lookup.cancelled():
            lookup.exception()  # mark it as retrieved: all callers may have been cancelled

    async def _look_up_in_thread(self, host: str) -> tuple[Address, ...]:
        addresses = await asyncio.get_running_loop().run_in_executor(self._threads, lookup_addresses, host)
        now = time.perf_counter()
        self._answers = {name: answer for name, answer in self._answers.items() if now < answer[0]}
        self._answers[host] = (now + RESOLVED_FOR_S, addresses)
        return addresses


def lookup_addresses(host: str) -> tuple[Address, ...]:
    try:
        places = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError("not a host name") from None
    return tuple(dict.fromkeys(ip_address(str(place[4][0]).partition("%")[0]) for place in places))


class Egress:
    """Makes connections under `rules`. Only tests pass `resolve`."""

    def __init__(
        self, rules: EgressRules, connect_timeout_s: float, ca_file: str | None = None, resolve: Resolve | None = None
    ) -> None:
        self._rules = rules
        self._connect_timeout_s = connect_timeout_s
        self._resolver = Resolver()
        self._resolve = resolve or self._resolver
        self._tls = ssl.create_default_context()
        self._tls.set_alpn_protocols(["http/1.1"])
        if ca_file is not None:
            self._tls.load_verify_locations(ca_file)

    def close(self) -> None:
        self._resolver.close()

    async def connect(
        self, origin: Origin, protocol: Callable[[socket.socket], ProtocolT], deadline: float
    ) -> ProtocolT:
        """Connect and return the protocol. `deadline`: `perf_counter` seconds.

        Raises `UpstreamUnreachableError`, `UpstreamTimeoutError` if the deadline passed first, or the OSError of a
        process that has run out of descriptors, memory or ports: then no upstream is at fault.
        """
        left_s = deadline - time.perf_counter()
        try:
            async with asyncio.timeout(min(self._connect_timeout_s, left_s)):
                sock = await _race(await self._dial_addresses(origin))
                return await self._wrap(sock, origin, protocol)
        except TimeoutError:
            if left_s < self._connect_timeout_s:
                raise UpstreamTimeoutError("the deadline passed before the upstream was connected") from None
            raise UpstreamUnreachableError("connecting took too long") from None
        except ssl.SSLError:
            raise UpstreamUnreachableError("the TLS handshake failed") from None
        except OSError as error:
            if is_exhausted(error):
                raise
            raise UpstreamUnreachableError("the connection was refused or broke off") from None

    async def _dial_addresses(self, origin: Origin) -> list[tuple[str, int]]:
        """The addresses and ports to dial, best first. Raises if any address of the name is forbidden."""
        link = self._rules.links.get(origin.host) if origin.port is None else None
        if link is not None:
            return [(str(link.address), link.port)]
        addresses = await self._addresses(origin.host)
        if not addresses or any(refusal(address, origin.reach, self._rules) for address in addresses):
            raise UpstreamUnreachableError("the upstream's address may not be dialled")
        port = origin.port or (443 if origin.is_tls else 80)
        return [(str(address), port) for address in addresses[:MAX_ADDRESSES]]

    async def _addresses(self, host: str) -> tuple[Address, ...]:
        try:
            return (ip_address(host),)
        except ValueError:
            pass
        try:
            return await self._resolve(host)
        except OSError as error:
            if is_exhausted(error):
                raise
            if no_descriptor_is_left():
                raise out_of_descriptors() from None
            raise UpstreamUnreachableError("the upstream's name does not resolve") from None

    async def _wrap(
        self, sock: socket.socket, origin: Origin, protocol: Callable[[socket.socket], ProtocolT]
    ) -> ProtocolT:
        """Add transport and TLS to a connected socket. Certificate and SNI go by the URL's host, not the address."""
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: protocol(sock),
                sock=sock,
                ssl=self._tls if origin.is_tls else None,
                server_hostname=origin.host if origin.is_tls else None,
            )
        except BaseException:
            sock.close()
            raise
        return connection


async def _race(places: list[tuple[str, int]]) -> socket.socket:
    """A socket connected to the first address that answers. Tries the next when one fails or is slow (RFC 8305)."""
    if len(places) == 1:
        return await dial(*places[0])
    untried = list(reversed(places))
    running = set[asyncio.Task[socket.socket]]()
    won: asyncio.Task[socket.socket] | None = None
    tried: list[asyncio.Task[socket.socket]] = []
    try:
        while won is None and (untried or running):
            if untried:
                tried.append(asyncio.create_task(dial(*untried.pop())))
                running.add(tried[-1])
            finished, running = await asyncio.wait(
                running, timeout=STAGGER_S if untried else None, return_when=asyncio.FIRST_COMPLETED
            )
            won = next((task for task in finished if task.exception() is None), None)
    finally:
        for task in tried:
            if task is not won:
                task.cancel()
                task.add_done_callback(_discard)
    if won is None:
        errors = [error for task in tried if not task.cancelled() and (error := task.exception()) is not None]
        raise next(filter(is_exhausted, errors), OSError("no address answered"))
    return won.result()


def _discard(task: "asyncio.Task[socket.socket]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def dial(host: str, port: int) -> socket.socket:
    """Connect a socket, unless its descriptor is one of the last, which are reserved for uses other than calls."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sock.fileno() > highest_descriptor(SPARE_DESCRIPTORS):
            raise out_of_descriptors()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except OSError as error:
        sock.close()
        if lacks_local_port(error, family, (host, port)):
            raise NoLocalPortError(*error.args) from None
        raise
    except BaseException:
        sock.close()
        raise
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Enable TCP keep-alive: an upstream may be silent for 20 minutes, and only the kernel notices a dead peer."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # not on every platform
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
