"""Measures streams from the caller's side: `python -m bench.studies.streams`, a JSON plan on stdin, one line out.

`flood` opens many streams and keeps them open together. `paced` starts streams at a steady rate, in turn over several
routes, while others stay open in the background. A stall is a gap between two reads of one stream that exceeds the
upstream's interval by 250 ms.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

STALL_S = 0.25
FLOOD_GAP_S = 0.001
LAST_FRAMES = (b"[DONE]", b"message_stop")
"""One of these is near the end of a complete stream: of Chat Completions, or of Messages."""


@dataclass(slots=True)
class Watch:
    """One stream as its caller sees it."""

    longest_gap_s: float
    asked_at: float = 0.0
    first_read_at: float = 0.0
    last_read_at: float = 0.0
    stalls: int = 0
    tail: bytes = b""
    frames: int = 0
    refused: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_whole(self) -> bool:
        return any(last in self.tail for last in LAST_FRAMES) and self.tail.endswith(b"0\r\n\r\n")


class StreamClient(asyncio.Protocol):
    """Sends one request when connected, and records when bytes arrive."""

    def __init__(self, request: bytes, watch: Watch) -> None:
        self._request = request
        self._watch = watch
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._watch.asked_at = time.perf_counter()
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's has no such base class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        watch = self._watch
        if not watch.first_read_at:
            watch.first_read_at = now
            watch.refused = not data.startswith(b"HTTP/1.1 200")
        elif now - watch.last_read_at > watch.longest_gap_s:
            watch.stalls += 1
        watch.last_read_at = now
        watch.frames += data.count(b"data: {")
        watch.tail = (watch.tail + data)[-64:]
        if watch.is_whole or watch.refused:
            watch.ended.set()
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.ended.set()


@dataclass(frozen=True, slots=True)
class Route:
    """A gateway's port, the request to send, and the interval of frames that it asks for."""

    port: int
    request: bytes
    interval_s: float

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> "Route":
        body = plan["body"].encode()
        head = f"POST {plan['path']} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in plan["headers"].items())
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        return cls(plan["port"], request, plan["interval_ms"] / 1000)

    async def open(self) -> Watch:
        """Connect and send the request; the stream then runs by itself."""
        watch = Watch(self.interval_s + STALL_S)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: StreamClient(self.request, watch), "127.0.0.1", self.port)
        return watch


async def flood(route: Route, count: int) -> dict[str, float]:
    """Open `count` streams, a thousand a second: the question is how many can be open, not how fast they open."""
    watches = []
    for _ in range(count):
        watches.append(await route.open())
        await asyncio.sleep(FLOOD_GAP_S)
    await _all_ended(watches)
    return summary(watches)


async def paced(routes: Sequence[Route], background: Route, plan: Mapping[str, Any]) -> list[dict[str, float]]:
    """Start `count` streams per route in turn, one every `gap_ms`, while `open` others run. One summary per route."""
    others = [await background.open() for _ in range(plan["open"])]
    await asyncio.sleep(0.5)
    watches: list[list[Watch]] = [[] for _ in routes]
    due = time.perf_counter()

    async def ask(place: int) -> None:
        watches[place].append(await routes[place].open())

    asking = []
    for number in range(plan["count"] * len(routes)):
        due += plan["gap_ms"] / 1000
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        asking.append(asyncio.create_task(ask(number % len(routes))))
    await asyncio.gather(*asking)
    await _all_ended([*others, *(watch for some in watches for watch in some)])
    return [summary(some) for some in watches]


async def _all_ended(watches: Sequence[Watch]) -> None:
    async with asyncio.timeout(120):
        for watch in watches:
            await watch.ended.wait()


def summary(watches: Sequence[Watch]) -> dict[str, float]:
    """The figures of one run. Streams that broke off are counted."""
    firsts = sorted(watch.first_read_at - watch.asked_at for watch in watches if watch.first_read_at)
    return {
        "streams": len(watches),
        "at_once": _at_once(watches),
        "refused": sum(watch.refused for watch in watches),
        "broken": sum(not watch.is_whole and not watch.refused for watch in watches),
        "frames": sum(watch.frames for watch in watches),
        "stalls": sum(watch.stalls for watch in watches),
        "first_byte_p50_us": firsts[len(firsts) // 2] * 1e6,
        "first_byte_p99_us": firsts[len(firsts) * 99 // 100] * 1e6,
    }


def _at_once(watches: Sequence[Watch]) -> int:
    """The largest number of streams between first and last byte at one time."""
    turns = sorted([(watch.first_read_at, 1) for watch in watches] + [(watch.last_read_at, -1) for watch in watches])
    most = running = 0
    for _, change in turns:
        running += change
        most = max(most, running)
    return most


async def _follow(plan: Mapping[str, Any]) -> object:
    routes = [Route.of(route) for route in plan["routes"]]
    if plan["form"] == "flood":
        return await flood(routes[0], plan["count"])
    return await paced(routes, Route.of(plan["background"]), plan)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_follow(json.load(sys.stdin)))))
