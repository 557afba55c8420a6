"""A replica, and a webhook's receiver on TLS: `python -m bench.programs.async_mock PORT TLS_PORT PEM`.

Both answer every POST at once. `GET /figures` on PORT tells how many came since the last time, and how long each
request took from its caller's hands (its body has `"sent": seconds of the monotonic clock`) to the replica.
"""

import asyncio
import json
import re
import ssl
import sys
import time
from typing import cast

import uvloop

_SENT = re.compile(rb'"sent":\s*([0-9.]+)')
_ANSWER = b'{"output":"The quick brown fox jumps over the lazy dog, again and again."}'


class Figures:
    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.messages = 0

    def take(self) -> bytes:
        text = json.dumps({"waits_s": self.waits_s, "messages": self.messages}).encode()
        self.__init__()  # type: ignore[misc]
        return text


class MockServer(asyncio.Protocol):
    """One connection, as the replica (`is_replica`) or as the receiver."""

    def __init__(self, figures: Figures, is_replica: bool) -> None:
        self._figures = figures
        self._is_replica = is_replica
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's has no such base class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._answer(self._take(head, body))

    def _take(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"get /figures"):
            return self._figures.take()
        if self._is_replica:
            match = _SENT.search(body)
            self._figures.waits_s.append(time.monotonic() - float(match[1]) if match else 0.0)
        else:
            self._figures.messages += 1
        return _ANSWER

    def _answer(self, body: bytes) -> None:
        if self._transport is not None:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._transport.write(head + body)


async def serve(port: int, tls_port: int, pem: str) -> None:
    """Serve until cancelled."""
    loop = asyncio.get_running_loop()
    figures = Figures()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    await loop.create_server(lambda: MockServer(figures, False), "127.0.0.1", tls_port, backlog=4096, ssl=context)
    replica = await loop.create_server(lambda: MockServer(figures, True), "127.0.0.1", port, backlog=4096)
    await replica.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
