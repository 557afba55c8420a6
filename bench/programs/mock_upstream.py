"""A cheap Chat Completions upstream: fixed answers from a bare asyncio.Protocol on uvloop.

`python -m bench.programs.mock_upstream PORT [CHUNKS] [INTERVAL_MS]`. A request that asks to stream gets CHUNKS
frames, one every INTERVAL_MS, then usage and [DONE]; a prompt that contains `[9 frames every 50 ms]` sets its own pace.
Any other request gets one small completion.

Frames are due at fixed times from the start of their stream, because real streams come from many machines and are not
in step. Timed from the previous frame, streams fall into step whenever this process pauses: with 500 streams at 10
frames a second, 10 frames were sent at once in the first second and 30 in the ninth; now it is 8 to 10.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

_USAGE = (
    b'"usage":{"prompt_tokens":12,"completion_tokens":8,"total_tokens":20,"prompt_tokens_details":{"cached_tokens":4}}'
)
_BODY = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"mock","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"The quick brown fox jumps over the lazy dog, again and again."},'
    b'"finish_reason":"stop"}],' + _USAGE + b"}"
)
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_FRAME_START = b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"mock",'
_PACE = re.compile(rb"\[(\d+) frames every (\d+) ms\]")


def _chunk(frame: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(frame), frame)


_DELTA = _chunk(_FRAME_START + b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n')
_LAST = (
    _chunk(_FRAME_START + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    + _chunk(_FRAME_START + b'"choices":[],' + _USAGE + b"}\n\n")
    + _chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)


class MockUpstream(asyncio.Protocol):
    """One connection; requests are answered in order, pipelining included."""

    def __init__(self, chunks: int, interval_s: float) -> None:
        self._usual = self._pace = (chunks, interval_s)
        self._buffer = bytearray()
        self._body_left = -1
        self._streaming = False
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's has no such base class

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._take_request():
            self._answer()

    def _take_request(self) -> bool:
        if self._body_left < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = bytes(self._buffer[:end]).lower()
            del self._buffer[: end + 4]
            at = head.find(b"content-length:")
            self._body_left = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._streaming = False
        taken = self._buffer[: self._body_left]
        if b'"stream":true' in taken:
            self._streaming, said = True, _PACE.search(taken)
            self._pace = (int(said[1]), int(said[2]) / 1000) if said else self._usual
        self._body_left -= len(taken)
        del self._buffer[: len(taken)]
        if self._body_left:
            return False
        self._body_left = -1
        return True

    def _answer(self) -> None:
        if self._transport is None:
            return
        if self._streaming:
            self._transport.write(_STREAM_HEAD)
            self._tick(self._pace[0], asyncio.get_running_loop().time())
        else:
            self._transport.write(_ANSWER)

    def _tick(self, left: int, due: float) -> None:
        """`due`: when this frame was due, by the loop's clock. The next is due one interval later."""
        if self._transport is None:
            return
        self._transport.write(_DELTA if left else _LAST)
        if left:
            due += self._pace[1]
            asyncio.get_running_loop().call_at(due, self._tick, left - 1, due)


async def serve(port: int, chunks: int, interval_s: float) -> None:
    """Serve until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockUpstream(chunks, interval_s), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    chunks_asked = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    interval_ms = float(sys.argv[3]) if len(sys.argv) > 3 else 10
    uvloop.run(serve(int(sys.argv[1]), chunks_asked, interval_ms / 1000))
