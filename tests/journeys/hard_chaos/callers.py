"""Odd callers: random caps, prompts, dialects, streams and departures. They record how each call ended, retry none."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from tests.journeys.hard_chaos.orders import ENDINGS, TIERS, Order
from tests.journeys.hard_chaos.vendor import CHAT, MESSAGES, RESPONSES

PATHS = (CHAT, MESSAGES, RESPONSES)
CAP_MEMBERS = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    MESSAGES: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
}
CAP_HEADER = "x-tollgate-output-cap"
TIMEOUT_S = 60.0
LONG_BYTES = 150_000
LONG = 0.004
"""The share of calls that have the prices of long context."""
SLOW_MS = 3_000
"""The pause before each piece of a slow answer: such calls are open for longer than Redis needs to be rebuilt."""
DEPARTS = 0.1
"""The share of callers who leave before the answer has ended."""
REFUSALS = frozenset(("SPEND_LIMIT_EXCEEDED", "LIMITS_UNAVAILABLE", "CALL_EXCEEDS_LIMIT"))


class CallShape(NamedTuple):
    """A call before its order is in it. `cap`: None for none."""

    path: str
    slug: str
    prompt_bytes: int
    cap: int | None
    answers: int
    stream: bool


class CallEnd(NamedTuple):
    """The end of a call for its caller. `status`: 0 without an answer. `is_whole`: the whole answer arrived."""

    request_id: str
    group: str
    status: int
    code: str
    is_whole: bool
    cap: int | None
    """The lowered cap that the answer told."""
    ended_s: float
    """The time of the monotonic clock."""


@dataclass
class OddCallers:
    """Concurrent callers. Each makes one call after the other until `stop`."""

    session: aiohttp.ClientSession
    fronts: list[str]
    """The URLs of the proxies."""
    slugs: Sequence[str]
    rng: random.Random
    keys: dict[str, str] = field(default_factory=dict)
    """API keys by group. Groups may be added at any time; those added last are called most."""
    ends: list[CallEnd] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _count: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_stopping: bool = False

    def start(self, count: int) -> None:
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self._call_until_stopped()) for _ in range(count)]

    async def stop(self) -> None:
        """Return when the last answer has ended."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    def outcomes(self) -> Counter[str]:
        return Counter(str(end.code or end.status or "cut") for end in self.ends)

    async def _call_until_stopped(self) -> None:
        rng = self.rng
        while not self._is_stopping:
            groups = [*self.keys]
            recent = groups[-11:] if rng.random() < 0.7 else groups
            shape = self.shape()
            body = self.body(shape, self.order(shape))
            end = await self.call(rng.choice(recent), shape.path, body, departs=rng.random() < DEPARTS)
            await asyncio.sleep(rng.uniform(0, 0.3) if end.status == 200 else rng.uniform(0.2, 1))

    def shape(self) -> CallShape:
        rng = self.rng
        path = rng.choice(PATHS)
        cap = rng.choice((1, 16, 64, 300, 1_000, 4_000, 10**9)) if rng.random() < 0.8 else None
        if path == MESSAGES and cap is None:
            cap = 4_000  # the dialect demands one
        prompt_bytes = LONG_BYTES if rng.random() < LONG else rng.choice((0, 100, 1_000, 3_000))
        slug = rng.choice(self.slugs)
        answers = 2 if path == CHAT and slug.endswith("chat") and rng.random() < 0.1 else 1
        return CallShape(path, slug, prompt_bytes, cap, answers, rng.random() < 0.6)

    def order(self, shape: CallShape) -> Order:
        """An order whose input is at most the bytes of the call, as every vendor's is."""
        rng = self.rng
        size = len(self.body(shape, Order()))
        input = rng.choice((size, rng.randint(1, size), rng.randint(1, max(1, size // 4))))
        cached = rng.randint(0, input) if rng.random() < 0.5 else 0
        cache_writes = rng.choice((0, input - cached, rng.randint(0, input - cached)))
        return Order(
            input=input,
            cached=cached,
            cache_writes=cache_writes,
            cache_writes_1h=rng.choice((0, cache_writes, cache_writes // 2)),
            output=rng.choice((1, 20, rng.randint(1, 400), rng.randint(1, 4_000), 9_999_999)),
            tier=rng.choice(TIERS),
            pieces=rng.randint(1, 6),
            pause_ms=rng.choices((0, 20, 100, 300, SLOW_MS), (40, 20, 20, 12, 8))[0],
            words=rng.choice((1, 5, 200)),
            ending=rng.choices(ENDINGS, (70, 10, 8, 5, 4, 3))[0],
        )

    def body(self, shape: CallShape, order: Order) -> bytes:
        text = order.text() + " " + "w" * shape.prompt_bytes
        body: dict[str, Any] = {"model": shape.slug}
        if shape.path == RESPONSES:
            body["input"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]
        if shape.cap is not None:
            members = CAP_MEMBERS[shape.path]
            body[members[shape.prompt_bytes % len(members)]] = shape.cap
        if shape.answers > 1:
            body["n"] = shape.answers
        if shape.stream:
            body["stream"] = True
        return json.dumps(body).encode()

    async def call(
        self, group: str, path: str, body: bytes, *, departs: bool = False, front: str | None = None
    ) -> CallEnd:
        """Make one call and record its end. `departs`: the caller leaves early. `front`: a proxy's URL; or any."""
        self._count += 1
        request_id = f"hard-{self._count:07d}"
        headers = {"Authorization": f"Bearer {self.keys[group]}", "X-Request-Id": request_id}
        url = (front or self.rng.choice(self.fronts)) + path
        status = 0
        code = ""
        cap: int | None = None
        is_whole = False
        timeout = aiohttp.ClientTimeout(total=self.rng.choice((0.02, 0.1, 0.4)) if departs else TIMEOUT_S)
        try:
            async with self.session.post(
                url, data=body, headers=headers | {"Content-Type": "application/json"}, timeout=timeout
            ) as answer:
                status = answer.status
                cap = int(answer.headers[CAP_HEADER]) if CAP_HEADER in answer.headers else None
                text = await answer.read()
                code = _error_code(text) if status != 200 else ""
                is_whole = True
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass  # a process was killed, the vendor broke off, or the caller left
        end = CallEnd(request_id, group, status, code, is_whole, cap, time.monotonic())
        self.ends.append(end)
        self._note_fault(end)
        return end

    def _note_fault(self, end: CallEnd) -> None:
        if end.cap is not None and end.cap < 1:
            self.faults.append(f"{end.request_id} was told a cap of {end.cap}")
        if end.code in ("INTERNAL_GATEWAY_ERROR", "UNPRICED") or (
            end.status == 429 and end.code != "SPEND_LIMIT_EXCEEDED"
        ):
            self.faults.append(f"{end.request_id} was answered {end.status} {end.code}")


def _error_code(text: bytes) -> str:
    """The code of one of our errors; its first words if it has none."""
    try:
        answer = json.loads(text)
    except ValueError:
        return "not JSON"
    error = answer.get("error")
    words = str(error.get("message") if isinstance(error, dict) else error)[:30]
    return str(answer.get("error_code") or answer.get("code") or words)
