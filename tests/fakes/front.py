"""The HTTP server on a real socket with a test's handler, and a caller that chooses every byte."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from proxy.edges.http.http_limits import HttpLimits
from proxy.edges.http.server import HttpServer
from proxy.records.messages import Incoming, Outgoing
from proxy.refusals import RefusalError, render
from runtime.http.tls_layer import TlsListener
from tests.fakes.pair_files import LOCALHOST, PairFiles
from tests.waiting import PATIENCE_S

Handle = Callable[[Incoming, Outgoing], Awaitable[None]]
pair_of_all: PairFiles | None = None
"""The pair of servers that are given none: None, but for tests that run once more over TLS."""


async def echo(incoming: Incoming, outgoing: Outgoing) -> None:
    """Answer with method, target and body; refuse as the pipeline would."""
    body = b""
    try:
        while part := await incoming.read():
            body += part
    except RefusalError as error:
        answered = render(error, "r-1")
        outgoing.start(answered.status, answered.headers)
        outgoing.finish(answered.final)
        return
    outgoing.start(200, [("content-type", "text/plain"), ("x-length", str(len(body)))])
    outgoing.finish(f"{incoming.method} {incoming.request_target} ".encode() + body[:100])


@dataclass
class Caller:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        if not self.writer.is_closing():  # else the server has closed the connection, and uvloop raises on a write
            self.writer.write(data)

    async def head(self) -> bytes:
        """Read one head. Interim responses are heads too."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of one answer that has a length."""
        head = await self.head()
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
        async with asyncio.timeout(PATIENCE_S):
            body = await self.reader.readexactly(int(length.partition(b": ")[2]))
        return int(head.split(b" ")[1]), head, body

    async def until(self, text: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(text)

    async def read_to_end(self) -> bytes:
        """Read until the server closes the connection. A reset raises ConnectionError."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    def disconnect(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        if sock.fileno() < 0:  # closed already, as the server has closed it
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def connect(port: int, data: bytes = b"", *, reads: bool = True) -> Caller:
    """A caller that has sent `data`. With `reads` false it takes nothing of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    caller = Caller(reader, writer)
    if not reads:
        writer.transport.pause_reading()  # type: ignore[attr-defined] # typeshed has it for reading transports
    caller.send(data)
    return caller


@dataclass
class Front:
    """The server and its port. `tls`: how callers dial it; None: in plain text."""

    server: HttpServer
    port: int
    tls: ssl.SSLContext | None = None
    callers: list[Caller] = field(default_factory=list)

    async def caller(self, receive_buffer: int = 0) -> Caller:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        name = None if self.tls is None else LOCALHOST
        streams = asyncio.open_connection(sock=sock, limit=receive_buffer or 2**16, ssl=self.tls, server_hostname=name)
        caller = Caller(*await streams)
        self.callers.append(caller)
        return caller

    async def ask(self, data: bytes) -> bytes:
        """Send `data`; return everything received until the connection closes."""
        caller = await self.caller()
        caller.send(data)
        return await caller.read_to_end()


@asynccontextmanager
async def listening(
    handle: Handle = echo, options: HttpLimits | None = None, pair: PairFiles | None = None
) -> AsyncIterator[Front]:
    """Serve, with TLS if there is a pair."""
    pair = pair or pair_of_all
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    tls = None if pair is None else TlsListener(pair.read().context(), "error_code")
    client = None if pair is None else pair.client_context()
    front = Front(HttpServer(handle, options, tls=tls), sock.getsockname()[1], client)
    await front.server.start(sock)
    try:
        yield front
    finally:
        for caller in front.callers:
            caller.writer.transport.abort()
        await front.server.drain(0.1)
