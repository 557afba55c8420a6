"""One long read is let through in each turn of the loop, whether the bodies are read or not, and whoever came first."""

import asyncio

import pytest

from proxy.edges.http.connection import Connection, Handle
from proxy.edges.http.http_exchange import HttpExchange
from proxy.edges.http.read_turns import LONG_BYTES
from proxy.edges.http.server import READ_BYTES, HttpServer
from proxy.records.messages import Incoming, Outgoing
from tests.proxy.edges.http.test_heads_seen import SinkTransport

CALLERS = 20
HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"


class Callers:
    """Connections of one server. Each caller sends without a pause, and its first read has its head."""

    def __init__(self, handle: Handle, count: int = CALLERS) -> None:
        http = HttpServer(handle)
        http.loop = asyncio.get_running_loop()
        self.transports = [SinkTransport() for _ in range(count)]
        self.connections = [Connection(http) for _ in self.transports]
        for connection, transport in zip(self.connections, self.transports, strict=True):
            connection.connection_made(transport)
        self._unsent = dict.fromkeys(range(count), HEAD)

    def send(self, most_bytes: int = READ_BYTES) -> list[int]:
        """Fill each buffer, as the kernel would in one turn of the loop. Returns how much each connection read."""
        return [self._read(number, most_bytes) for number in range(len(self.transports))]

    def _read(self, number: int, most_bytes: int) -> int:
        if self.transports[number].paused:
            return 0
        buffer = self.connections[number].get_buffer(-1)
        size = min(most_bytes, len(buffer))
        head = self._unsent.pop(number, b"")
        buffer[:size] = head + bytes(size - len(head))
        self.connections[number].buffer_updated(size)
        return size

    async def turns(self, count: int, most_bytes: int = READ_BYTES) -> list[list[int]]:
        reads = []
        for _ in range(count):
            await asyncio.sleep(0)
            reads.append(self.send(most_bytes))
        return reads

    async def close(self) -> None:
        for connection in self.connections:
            connection.connection_lost(None)
        await asyncio.sleep(0)


async def read_all(incoming: Incoming, outgoing: Outgoing) -> None:
    while await incoming.read():
        pass


async def refuse(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answer before the body has come: what still comes is read and dropped."""
    assert isinstance(outgoing, HttpExchange)
    outgoing.keep_alive = False
    outgoing.start(413, [], whole=b"too large")


BOTH = pytest.mark.parametrize("handle", [read_all, refuse])


@BOTH
async def test_many_callers_read_little_more_in_a_turn_than_one(handle: Handle) -> None:
    callers = Callers(handle)
    first, *later = await callers.turns(6 * CALLERS)
    assert sum(first) == READ_BYTES + (CALLERS - 1) * LONG_BYTES, "nobody knew yet that they have so much to send"
    assert max(map(sum, later)) <= READ_BYTES + LONG_BYTES
    of_each = [sum(read) for read in zip(*later, strict=True)]
    assert max(of_each) <= 2 * min(of_each), "each has its turns"
    await callers.close()


@BOTH
async def test_lone_caller_reads_in_every_turn_or_two(handle: Handle) -> None:
    callers = Callers(handle, 1)
    reads = await callers.turns(40)
    assert sum(map(sum, reads)) >= 20 * READ_BYTES - LONG_BYTES
    await callers.close()


async def test_short_reads_never_wait() -> None:
    callers = Callers(read_all)
    assert await callers.turns(10, LONG_BYTES - 1) == [[LONG_BYTES - 1] * CALLERS] * 10
    await callers.close()


async def test_connection_that_closes_while_it_waits_does_not_read_on() -> None:
    callers = Callers(read_all)
    callers.send()
    for connection in callers.connections:
        connection.force_close()
    paused = [transport.paused for transport in callers.transports]
    for _ in range(2 * CALLERS):
        await asyncio.sleep(0)
    assert any(paused)
    assert [transport.paused for transport in callers.transports] == paused
    await callers.close()
