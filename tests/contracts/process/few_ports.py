"""Tests of a machine that has no local port left towards an upstream. `test_local_ports.py` runs them in a network
namespace with few ports and without IPv6.
"""

import asyncio
import errno
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest

from policy.hosts import EgressRules, Reach
from proxy.edges.upstream.egress import Egress, Origin, dial
from proxy.errors import UpstreamUnreachableError
from runtime.exhaustion import is_exhausted
from tests.contracts.process.test_exhaustion import call, degraded
from tests.contracts.process.test_supervisor import World, a_world
from tests.redis_server import private_redis
from tests.waiting import eventually

FIRST_PORT = 40_000
LAST_PORT = 40_049
RESET = struct.pack("ii", 1, 0)


@contextmanager
def all_ports_taken(port: int) -> Iterator[None]:
    """Connect to this port of 127.0.0.1 until no local port is left."""
    with ExitStack() as stack:
        while True:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # so that the port is free again at once
            error = connection.connect_ex(("127.0.0.1", port))
            if error:
                break
        assert error == errno.EADDRNOTAVAIL
        yield


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with private_redis() as redis:
        async with a_world(tmp_path, redis) as world:
            yield world


async def test_call_without_a_local_port_is_shed_and_leaves_no_event(world: World) -> None:
    await world.proxy.start()
    with all_ports_taken(world.upstream.port):
        async with aiohttp.ClientSession() as client:
            for _ in range(3):
                status, headers, body = await call(world, client)
                assert (status, body["error_code"], headers["Retry-After"]) == (529, "CAPACITY_EXHAUSTED", "1")
        (text,) = await degraded(world)
        assert f"Out of local ports: connections to one address and port have those from {FIRST_PORT}" in text
    async with aiohttp.ClientSession() as client:
        status, headers, _ = await call(world, client)
    assert status == 200
    assert int(headers["x-ratelimit-remaining-requests"]) == 1000 - 1, "what was taken was given back"

    async def event_is_shipped() -> bool:
        return len(world.events) == 1 and await world.proxy.metric("tollgate_journal_pending_events") == 0

    await eventually(event_is_shipped)
    log = world.proxy.log.read_text()
    assert "Widen net.ipv4.ip_local_port_range" in log
    assert "Please report" not in log


async def test_lack_of_ports_is_no_fault_of_the_upstream() -> None:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with all_ports_taken(port):
            with pytest.raises(OSError, match="Cannot assign") as failure:
                await dial("127.0.0.1", port)
            assert is_exhausted(failure.value)
        (await dial("127.0.0.1", port)).close()


@pytest.mark.parametrize("address", ["::1", "2001:db8::1"])
async def test_address_of_a_family_that_the_machine_lacks_is_unreachable(address: str) -> None:
    egress = Egress(EgressRules(), connect_timeout_s=5)

    def never(sock: socket.socket) -> asyncio.Protocol:
        raise AssertionError

    with pytest.raises(UpstreamUnreachableError):
        await egress.connect(Origin("http", address, 80, Reach.OPERATOR), never, time.perf_counter() + 5)
    egress.close()
