"""One worker's path with a long request or answer, on in-memory parts. A program, as memory is measured per process.

`python -m tests.contracts.http.long_content` reads lines `KIND SIZE TIMES` (SIZE in MB) and prints a line of JSON for
each: CPU time, the longest time the loop was blocked (CPU time too, so other programs do not count) and peak memory.
"""

import asyncio
import gc
import json
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import orjson

from proxy.json_text.segmented_body import SegmentedBody
from proxy.records.messages import UpstreamCall
from tests.fakes.path import PathRig
from tests.fakes.upstream_client import JSON, SSE, FakeAnswer, FakeUpstream, answer
from tests.fakes.wire import FakeIncoming, FakeOutgoing

MB = 1_000_000
READ_BYTES = 512 << 10
ANSWER_BYTES = 64 << 10
SLUG_MEMBER = b'{"model":"acme/chat","messages":[{"role":"user","content":'
SMALL_ANSWER = b'{"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'

TEXTS: dict[str, bytes] = {
    "plain": b"The quick brown fox jumps over the lazy dog, and so on. ",
    "letters as escapes": b"\\u0061",
    "line feeds": b"\\n",
    "quotes": b'\\"',
    "backslashes": b"\\\\",
    "quotes and backslashes": b'\\\\\\"',
    "pairs of surrogates": b"\\ud83d\\ude00",
    "beyond ASCII": "é漢😀".encode(),
    "brackets": b"[{,",
    "model": b'\\"model\\":\\"m\\",',
    "base64": b"iVBORw0KGgoAAAANSUhEUgAA",
    "JSON": b'{\\"a\\": [1, \\"b\\\\n\\"], ',
}


def text(name: str, size: int) -> bytes:
    unit = TEXTS[name]
    return unit * (size // len(unit))


def many(unit: bytes, size: int) -> bytes:
    return (unit + b",") * (size // (len(unit) + 1) - 1) + unit


def with_text(content: bytes) -> bytes:
    return b'%b"%b"}]}' % (SLUG_MEMBER, content)


def escaped_first(content: bytes) -> bytes:
    """An escaped letter in a key, so that every key had to be decoded; this once took 11 s and 5.9 GB."""
    return b'{"mod\\u0065l":"acme/chat","messages":[{"role":"user","content":"\\u0061%b"}]}' % content


def with_list(items: bytes) -> bytes:
    return b'{"model":"acme/chat","input":[%b]}' % items


REQUESTS: dict[str, Callable[[int], bytes]] = {
    **{name: lambda size, name=name: with_text(text(name, size)) for name in TEXTS},  # type: ignore[misc]
    **{f"{name}, and a key": lambda size, name=name: escaped_first(text(name, size)) for name in TEXTS},  # type: ignore[misc]
    "no end": lambda size: with_text(b"a" * size)[:-4],
    "no end of escapes": lambda size: with_text(text("quotes", size))[:-4],
    "objects": lambda size: with_list(many(b"{}", size)),
    "lists in lists": lambda size: with_list(many(b"[[]]", size)),
    "depth": lambda size: with_list(b"[" * size),
    "keys": lambda size: b"{%b}" % many(b'"\\u0061":0', size),
    "short strings": lambda size: with_list(many(b'"abcdefgh"', size)),
    "strings of 1 kB": lambda size: with_list(many(b'"%b"' % (b"text, " * 170), size)),
    "strings of 1 kB with escapes": lambda size: with_list(many(b'"%b"' % (b"text\\n" * 170), size)),
    "numbers": lambda size: with_list(many(b"12", size)),
    "floats": lambda size: with_list(many(b"0.12345678901234567", size)),
    "a number": lambda size: with_list(b"9" * size),
    "spaces": lambda size: with_list(b" " * size),
    "strings of 1 kB in tools": lambda size: (
        b'{"model":"acme/chat","messages":[],"tools":[%b]}' % many(b'"%b"' % (b"text, " * 170), size)
    ),
    "as much as is taken": lambda size: with_list(
        b",".join(
            [
                many(b'"%b"' % (b"a" * 129), min(size // 2, 97_000 * 132)),
                many(b"{}", min(size // 8, 24_000 * 3)),
                many(b"0.12345678901234567", min(size // 4, 270_000 * 20)),
            ]
        )
    ),
}


def whole_answer(content: bytes) -> bytes:
    message = b'{"role":"assistant","content":"%b"}' % content
    head = b'{"id":"x","model":"m","choices":[{"index":0,"message":%b,"finish_reason":"stop"}],' % message
    return head + b'"usage":{"prompt_tokens":1,"completion_tokens":1}}'


ANSWERS: dict[str, Callable[[int], bytes]] = {
    **{name: lambda size, name=name: whole_answer(text(name, size)) for name in TEXTS},  # type: ignore[misc]
    **{
        f"{name}, and a key": lambda size, name=name: whole_answer(text(name, size)).replace(
            b"model", b"mod\\u0065l", 1
        )  # type: ignore[misc]
        for name in TEXTS
    },
    "objects": lambda size: b'{"model":"m","data":[%b]}' % many(b"{}", size),
    "numbers": lambda size: b'{"model":"m","data":[%b]}' % many(b"0.123", size),
    "short strings": lambda size: b'{"model":"m","data":[%b]}' % many(b'"abcdefgh"', size),
    "strings of 1 kB": lambda size: b'{"model":"m","data":[%b]}' % many(b'"%b"' % (b"text, " * 170), size),
    "keys": lambda size: b'{"model":"m",%b}' % many(b'"\\u0061":0', size),
    "no JSON": lambda size: b"[" * size,
    "an error": lambda size: b'{"model":"m","error":"%b"}' % (b"a\\n" * (size // 3)),
}
FRAME = b'data: {"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
STREAMS: dict[str, Callable[[int], bytes]] = {
    "plain": lambda size: (FRAME % text("plain", 200)) * (size // 270),
    "tiny frames": lambda size: b"a\n\n" * (size // 3),
    "tiny frames with returns": lambda size: b"a\r\r" * (size // 3),
    "tiny data": lambda size: b"data:\n\n" * (size // 7),
    "lines": lambda size: b"data:\n" * (size // 6),
    "comments": lambda size: b":\n" * (size // 2),
    "line feeds": lambda size: b"\r\n" * (size // 2),
    "one frame": lambda size: FRAME % text("line feeds", size),
    "one frame with returns": lambda size: b"data: " + b"a\r" * (size // 2),
    "a frame of quotes": lambda size: FRAME % text("quotes", size),
    "a frame of objects": lambda size: b'data: {"model":"m","usage":[%b]}\n\n' % many(b"{}", size),
    "a frame of keys": lambda size: b'data: {"model":"m",%b}\n\n' % many(b'"model":0', size),
    "a frame of commas": lambda size: b'data: {%b "model"\n\n' % (b" ," * (size // 2)),
}


class BodyReadingUpstream(FakeUpstream):
    """Reads a request's body piece by piece, as a socket does."""

    async def send(self, call: UpstreamCall) -> FakeAnswer:
        body = call.body if isinstance(call.body, SegmentedBody) else SegmentedBody(call.body)
        for _ in body.pieces(128 << 10):
            await asyncio.sleep(0)
        return await super().send(call)


@dataclass
class Probe:
    """The longest CPU time that the loop spent on one turn."""

    longest_s: float = 0.0
    last: float = 0.0

    def start(self) -> None:
        self.last = process_time()
        self.turn()

    def turn(self) -> None:
        now = process_time()
        self.longest_s = max(self.longest_s, now - self.last)
        self.last = now
        asyncio.get_running_loop().call_soon(self.turn)


class Discarding(FakeOutgoing):
    """Keeps only the first piece of an answer."""

    def _send(self, how: str, data: bytes) -> None:
        super()._send(how, data)
        self.pieces[1:] = []


def cut(raw: bytes, size: int) -> deque[Any]:
    return deque(raw[at : at + size] for at in range(0, len(raw), size))


def call_of(kind: str, size: int) -> tuple[FakeIncoming, FakeAnswer]:
    direction, _, name = kind.partition(": ")
    path = "/v1/messages" if direction.endswith("translated") else "/v1/chat/completions"
    incoming = FakeIncoming(path)
    if direction.startswith("request"):
        raw = REQUESTS[name](size)
        incoming.parts = cut(raw, READ_BYTES)
        incoming.declared_bytes = len(raw)
        return incoming, answer(SMALL_ANSWER)
    streams = direction.startswith("stream")
    pieces = cut(
        (STREAMS if streams else ANSWERS)[name](size), 1400 if direction == "stream in drops" else ANSWER_BYTES
    )
    incoming.saying({"model": "acme/chat", "messages": [], "stream": streams})
    return incoming, answer(pieces=pieces, headers=SSE if streams else JSON)


async def measure(kind: str, size: int) -> dict[str, Any]:
    rig = PathRig(upstream=BodyReadingUpstream(), max_body_bytes=100 * MB)
    incoming, step = call_of(kind, size)
    rig.upstream.will(step)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak (VmHWM)
    held_before = high_bytes()
    before = process_time()
    probe = Probe()
    outgoing = Discarding()
    probe.start()
    await rig.pipeline.handle(incoming, outgoing)
    cpu_s = process_time() - before
    memory = high_bytes() - held_before
    return {"status": outgoing.status, "cpu_s": cpu_s, "held_s": probe.longest_s, "memory_bytes": memory}


def high_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def parser_s(kind: str, size: int) -> float:
    """CPU time of the parser alone for the whole request."""
    raw = REQUESTS[kind.partition(": ")[2]](size)
    before = process_time()
    with suppress(orjson.JSONDecodeError):
        orjson.loads(raw)
    return process_time() - before


def joining_s(kind: str, size: int, times: int) -> float:
    """CPU time that joining the pieces of an answer takes, the lowest of `times`. A request is not joined: 0.0."""
    pieces = list(call_of(kind, size)[1].pieces) if kind.startswith("answer") else []
    return min(_join_s(pieces) for _ in range(times))


def _join_s(pieces: list[Any]) -> float:
    before = process_time()
    b"".join(pieces)
    return process_time() - before


def main() -> None:
    """Measure each `KIND SIZE TIMES` line of standard input; prints the lowest figures of TIMES runs."""
    for line in sys.stdin:
        kind, size, times = line.rsplit(" ", 2)
        figures = [asyncio.run(measure(kind, int(float(size) * MB))) for _ in range(int(times))]
        print(json.dumps({name: min(each[name] for each in figures) for name in figures[0]}), flush=True)


if __name__ == "__main__":
    main()
