"""The address of a connection's other end, on real sockets: what the kernel says, not the caller."""

import asyncio
import socket

import pytest

from proxy.callers.address_ranges import AddressRanges, number_of
from proxy.callers.caller_addresses import CallerAddresses
from proxy.edges.http.server import HttpServer
from proxy.records.messages import Incoming, Outgoing
from tests.fakes.front import Caller

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 192.0.2.7\r\nX-FORWARDED-FOR: 198.51.100.1\r\n%b\r\n"


async def tell_peer(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answer with the address as it is with no proxy trusted, and with the peer trusted."""
    peer = number_of(incoming.peer)
    own = CallerAddresses(AddressRanges()).of(incoming)
    forwarded = CallerAddresses(AddressRanges(["127.0.0.0/8", "::1/128"])).of(incoming)
    outgoing.start(200, [])
    outgoing.finish(f"{own == peer} {forwarded == number_of('198.51.100.1')} {incoming.peer}".encode())


@pytest.mark.parametrize(
    ("listener", "target", "peer"),
    [("127.0.0.1", "127.0.0.1", b"127.0.0.1"), ("::", "127.0.0.1", b"::ffff:127.0.0.1"), ("::1", "::1", b"::1")],
    ids=["IPv4", "IPv4 at a listener of both", "IPv6"],
)
async def test_peer_is_the_connection_s_whatever_the_head_says(listener: str, target: str, peer: bytes) -> None:
    if not socket.has_ipv6 and ":" in listener:
        pytest.skip("no IPv6 here")
    sock = socket.socket(socket.AF_INET6 if ":" in listener else socket.AF_INET)
    sock.bind((listener, 0))
    server = HttpServer(tell_peer)
    await server.start(sock)
    try:
        caller = Caller(*await asyncio.open_connection(target, sock.getsockname()[1]))
        for fields in (b"", b"", b"x_forwarded_for: 192.0.2.9\r\n"):
            caller.send(REQUEST % fields)
            assert (await caller.answer())[2] == b"True True " + peer
        caller.disconnect()
    finally:
        await server.drain(0.1)
