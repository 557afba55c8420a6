"""Egress resolves, checks every address and dials only a checked one; on both event loops."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address

import pytest

from policy.hosts import Address, EgressRules, Reach
from proxy.edges.upstream import egress as egress_module
from proxy.edges.upstream.egress import Egress, Origin, Resolver
from proxy.errors import UpstreamTimeoutError, UpstreamUnreachableError

BOTH_LOOPS = True
SOON_S = 20.0


class Resolving:
    """A resolver that answers from a table and records its queries."""

    def __init__(self, **names: str) -> None:
        self.names = {name.replace("_", "."): addresses.split() for name, addresses in names.items()}
        self.queries: list[str] = []

    async def __call__(self, host: str) -> tuple[Address, ...]:
        self.queries.append(host)
        if host not in self.names:
            raise OSError("no such name")
        return tuple(ip_address(address) for address in self.names[host])


class Line(asyncio.Protocol):
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class Listening:
    """A server on loopback that counts connections."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.accepted = 0


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    place = Listening("127.0.0.1", 0)

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place.accepted += 1
        writer.close()

    server = await asyncio.start_server(accept, place.host, 0)
    place.port = server.sockets[0].getsockname()[1]
    yield place
    server.close()
    await server.wait_closed()


async def connect(
    egress: Egress, host: str, port: int | None, reach: Reach = Reach.REPLICA, within_s: float = SOON_S
) -> tuple[str, int]:
    """Connect; return the peer's address and port."""
    line = await egress.connect(Origin("http", host, port, reach), Line, time.perf_counter() + within_s)
    peer = line.transport.get_extra_info("peername")
    line.transport.close()
    egress.close()
    return str(peer[0]), int(peer[1])


LOOPBACK = EgressRules.parse("127.0.0.0/8")


async def test_checked_address_is_the_one_dialled(listening: Listening) -> None:
    resolve = Resolving(model_example="127.0.0.1")
    egress = Egress(LOOPBACK, 5.0, resolve=resolve)
    assert await connect(egress, "model.example", listening.port) == ("127.0.0.1", listening.port)
    assert resolve.queries == ["model.example"]


@pytest.mark.parametrize(
    "answers", ["10.0.0.1", "8.8.8.8 10.0.0.1", "10.0.0.1 8.8.8.8", "8.8.8.8 ::1", "::ffff:7f00:1"]
)
async def test_name_with_one_forbidden_address_is_not_dialled(answers: str) -> None:
    egress = Egress(EgressRules(), 5.0, resolve=Resolving(rebound_example=answers))
    with pytest.raises(UpstreamUnreachableError, match="may not be dialled"):
        await connect(egress, "rebound.example", 443, Reach.CUSTOMER)


async def test_allowed_networks_do_not_apply_to_customers(listening: Listening) -> None:
    egress = Egress(LOOPBACK, 5.0, resolve=Resolving(model_example="127.0.0.1"))
    with pytest.raises(UpstreamUnreachableError):
        await connect(egress, "model.example", listening.port, Reach.CUSTOMER)
    assert listening.accepted == 0


@pytest.mark.parametrize("reach", Reach)
async def test_metadata_address_is_never_dialled(reach: Reach) -> None:
    rules = EgressRules.parse("0.0.0.0/0")
    for host in ("169.254.169.254", "sly.example"):
        egress = Egress(rules, 5.0, resolve=Resolving(sly_example="169.254.169.254"))
        with pytest.raises(UpstreamUnreachableError, match="may not be dialled"):
            await connect(egress, host, 80, reach)


async def test_each_connection_resolves_and_checks_the_name_again(listening: Listening) -> None:
    """DNS rebinding: an allowed first answer does not allow the second."""
    resolve = Resolving(model_example="127.0.0.1")
    egress = Egress(LOOPBACK, 5.0, resolve=resolve)
    await connect(egress, "model.example", listening.port)
    resolve.names["model.example"] = ["10.0.0.1"]
    with pytest.raises(UpstreamUnreachableError, match="may not be dialled"):
        await connect(egress, "model.example", listening.port)


@pytest.mark.parametrize("reach", Reach)
async def test_link_is_dialled_without_resolving(listening: Listening, reach: Reach) -> None:
    resolve = Resolving()
    rules = EgressRules.parse(f"model.internal=127.0.0.1:{listening.port}")
    egress = Egress(rules, 5.0, resolve=resolve)
    assert await connect(egress, "model.internal", None, reach) == ("127.0.0.1", listening.port)
    assert resolve.queries == []


async def test_link_applies_only_to_urls_without_a_port(listening: Listening) -> None:
    egress = Egress(EgressRules.parse(f"model.internal=127.0.0.1:{listening.port}"), 5.0, resolve=Resolving())
    with pytest.raises(UpstreamUnreachableError, match="does not resolve"):
        await connect(egress, "model.internal", 8000)


async def test_next_address_is_tried_when_one_refuses(listening: Listening) -> None:
    # nothing listens at this port of the other loopback addresses: the listener is bound to 127.0.0.1 alone
    egress = Egress(LOOPBACK, 5.0, resolve=Resolving(model_example="127.0.0.9 127.0.0.8 127.0.0.1"))
    assert await connect(egress, "model.example", listening.port) == ("127.0.0.1", listening.port)


async def test_next_address_is_tried_in_parallel_to_one_that_hangs(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = asyncio.Event()
    dial = egress_module.dial

    async def dial_or_hang(host: str, port: int) -> socket.socket:
        if host == "127.0.0.9":
            hanging.set()
            await asyncio.Event().wait()
        return await dial(host, port)

    monkeypatch.setattr(egress_module, "dial", dial_or_hang)
    egress = Egress(LOOPBACK, 5.0, resolve=Resolving(model_example="127.0.0.9 127.0.0.1"))
    assert await connect(egress, "model.example", listening.port) == ("127.0.0.1", listening.port)
    assert hanging.is_set()


async def test_refusal_by_every_address_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        egress = Egress(LOOPBACK, 5.0, resolve=Resolving(model_example="127.0.0.9 127.0.0.1"))
        with pytest.raises(UpstreamUnreachableError, match="refused"):
            await connect(egress, "model.example", port)


async def hang(_host: str, _port: int) -> socket.socket:
    await asyncio.Event().wait()
    raise AssertionError


async def test_connect_timeout_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "dial", hang)
    with pytest.raises(UpstreamUnreachableError, match="too long"):
        await connect(Egress(LOOPBACK, 0.05), "127.0.0.1", 80)
    with pytest.raises(UpstreamUnreachableError, match="too long"):
        await connect(Egress(LOOPBACK, 0.05, resolve=Resolving(a_b="127.0.0.1 127.0.0.2")), "a.b", 80)


async def test_deadline_before_the_connect_timeout_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "dial", hang)
    with pytest.raises(UpstreamTimeoutError):
        await connect(Egress(LOOPBACK, 5.0), "127.0.0.1", 80, within_s=0.05)
    with pytest.raises(UpstreamTimeoutError):
        await connect(Egress(LOOPBACK, 5.0), "127.0.0.1", 80, within_s=-1)


# --- the resolver -----------------------------------------------------------------------------------------------------


async def test_concurrent_lookups_of_a_name_share_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []

    def lookup_addresses(host: str) -> tuple[Address, ...]:
        lookups.append(host)
        return (ip_address("8.8.8.8"),)

    monkeypatch.setattr(egress_module, "lookup_addresses", lookup_addresses)
    resolver = Resolver()
    answers = await asyncio.gather(*(resolver("a.example") for _ in range(50)))
    assert set(answers) == {(ip_address("8.8.8.8"),)}
    await resolver("a.example")
    assert lookups == ["a.example"]
    resolver.close()


async def test_resolved_addresses_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []

    def lookup_addresses(host: str) -> tuple[Address, ...]:
        lookups.append(host)
        return (ip_address("8.8.8.8"),)

    monkeypatch.setattr(egress_module, "lookup_addresses", lookup_addresses)
    monkeypatch.setattr(egress_module, "RESOLVED_FOR_S", 0.0)
    resolver = Resolver()
    await resolver("a.example")
    await resolver("a.example")
    assert len(lookups) == 2
    resolver.close()


async def test_cancelled_lookup_does_not_cancel_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    resolver = Resolver()

    async def ask(_: str) -> tuple[Address, ...]:
        await release.wait()
        return (ip_address("8.8.8.8"),)

    monkeypatch.setattr(resolver, "_look_up_in_thread", ask)
    first, second = (asyncio.ensure_future(resolver("a.example")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    release.set()
    assert await second == (ip_address("8.8.8.8"),)
    resolver.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example", "..", "xn--\x00"])
async def test_name_that_does_not_resolve_is_unreachable(host: str) -> None:
    resolver = Resolver()
    with pytest.raises((OSError, ValueError)):
        await resolver(host)
    egress = Egress(EgressRules(), 5.0)
    with pytest.raises(UpstreamUnreachableError) as failure:
        await connect(egress, host, 80)
    assert host not in str(failure.value)
    resolver.close()


async def test_localhost_resolves() -> None:
    resolver = Resolver()
    assert ip_address("127.0.0.1") in await resolver("localhost")
    resolver.close()
