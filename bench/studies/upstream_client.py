"""CPU per exchange of our upstream client and of aiohttp's, in one process, in one run.

`python -m bench.studies.upstream_client [seconds]`: a cheap server in a child process; this process does nothing but
exchanges, 16 at a time, of a small chat completion (plain, and a stream of 20 events), alternating between the clients
so that a busy moment of the machine hits both. Prints the median CPU µs per exchange of each.
"""

import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import uvloop

from policy.hosts import EgressRules, Reach
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.exchange import UpstreamCall

ROUNDS = 7
AT_ONCE = 16
BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * 60 + b'"}]}'
ANSWER = b'{"id":"x","choices":[{"message":{"content":"' + b"word " * 60 + b'"}}],"usage":{"prompt_tokens":70}}'
HEADERS = {
    "authorization": "Bearer k",
    "content-type": "application/json",
    "accept": "*/*",
    "x-request-id": "1",
}
FIELDS = b"content-type: application/json\r\nserver: s\r\ndate: Sat, 21 Nov 2026 08:00:00 GMT\r\nx-request-id: 1\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\n" + FIELDS + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\n" + FIELDS + b"transfer-encoding: chunked\r\n\r\n"
EVENTS = 20
Exchange = Callable[[str], Awaitable[int]]


class Server(asyncio.Protocol):
    """Answers without looking: one request per read, `/s` streams."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST /s"):
            self.write(STREAM_HEAD)
            self._event(0)
        else:
            self.write(PLAIN)

    def _event(self, number: int) -> None:
        if number == EVENTS:
            self.write(b"0\r\n\r\n")
        else:
            self.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_soon(self._event, number + 1)


async def serve(sock: socket.socket) -> None:
    server = await asyncio.get_running_loop().create_server(Server, sock=sock)
    await server.serve_forever()


def ours(client: HttpUpstream) -> Exchange:
    async def exchange(url: str) -> int:
        call = UpstreamCall(url, "POST", HEADERS, BODY, time.perf_counter() + 60, 60, Reach.OPERATOR)
        answer = await client.send(call)
        size = 0
        while piece := await answer.read():
            size += len(piece)
        return size

    return exchange


def theirs(session: aiohttp.ClientSession) -> Exchange:
    headers = dict(HEADERS)

    async def exchange(url: str) -> int:
        size = 0
        async with session.post(url, data=BODY, headers=headers) as answer:
            async for piece in answer.content.iter_any():
                size += len(piece)
        return size

    return exchange


async def cpu_us(exchange: Exchange, url: str, seconds: float) -> float:
    """CPU µs of this process per exchange, over about `seconds`."""
    done, until = 0, time.perf_counter() + seconds

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < until:
            assert await exchange(url) >= len(ANSWER)
            done += 1

    before = time.process_time()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return (time.process_time() - before) / done * 1e6


async def compare(base: str, seconds: float) -> None:
    client = HttpUpstream(Egress(EgressRules(), 5.0))
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        exchanges = {"HttpUpstream": ours(client), "aiohttp.ClientSession": theirs(session)}
        for kind, path in (("plain", "/p"), (f"stream of {EVENTS}", "/s")):
            found: dict[str, list[float]] = {name: [] for name in exchanges}
            for _ in range(ROUNDS):
                for name, exchange in exchanges.items():
                    found[name].append(await cpu_us(exchange, base + path, seconds / ROUNDS / 4))
            for name, samples in found.items():
                spread = f"({min(samples):.1f} to {max(samples):.1f})"
                print(f"{kind:13} {name:22} {statistics.median(samples):7.1f} µs CPU per exchange {spread}")
    await client.aclose()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 12.0
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    port = listener.getsockname()[1]
    child = os.fork()
    if child == 0:
        uvloop.run(serve(listener))
        os._exit(0)
    listener.close()
    try:
        uvloop.run(compare(f"http://127.0.0.1:{port}", seconds))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
