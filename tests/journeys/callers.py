"""Callers that record what they received: status, request id, tokens, or that the answer broke off.

What they write down is held against the books by `books.py`. They retry nothing.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from policy.billing import Tokens
from tests.upstream.questions import Question, tokens_in

TIMEOUT_S = 30.0
BULKY, BULK = 0.3, 60_000
"""The share of calls with much metadata, and its bytes. Metadata is journaled, so that journals grow by segments."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller of one call knows. `status` is 0 without an answer; `tokens` is None unless it was complete."""

    request_id: str
    entity: str
    asked: Tokens
    streamed: bool
    status: int
    ended_at_s: float
    code: str = ""
    """The `error_code` of a refusal."""
    tokens: Tokens | None = None
    partial: bool = False
    """Some of the answer's text arrived."""
    broke: str = ""
    """How a broken answer broke."""


@dataclass(slots=True)
class _Heard:
    """One answer while it is received."""

    status: int = 0
    code: str = ""
    text: str = ""
    tokens: Tokens | None = None
    complete: bool = False


@dataclass
class Callers:
    """Concurrent callers that each make one call after the other until `stop`. `proxy` returns the URL."""

    session: aiohttp.ClientSession
    proxy: Callable[[], str]
    slug: str
    keys: dict[str, str]
    """API keys by external entity id."""
    chance: random.Random
    told: list[Told] = field(default_factory=list)
    _made: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    def start(self, count: int) -> None:
        self._stopping = False
        self._tasks = [asyncio.create_task(self._call_on_and_on()) for _ in range(count)]

    async def stop(self) -> None:
        """Return when the last answer has ended."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _call_on_and_on(self) -> None:
        while not self._stopping:
            bulk = {"metadata": {"bulk": "x" * BULK}} if self.chance.random() < BULKY else {}
            told = await self.call(self.chance.choice(list(self.keys)), self._question(), **bulk)
            await asyncio.sleep(self.chance.uniform(0.1, 0.3) if not told.status else self.chance.uniform(0, 0.1))

    def _question(self) -> Question:
        chance = self.chance
        tokens = Tokens(
            input=chance.randint(10, 4000), output=chance.randint(1, 2000), cached_input=chance.randint(0, 10)
        )
        pause_ms = chance.choice((0, 5, 20, 100))
        return Question(tokens, chance.randint(1, 8), pause_ms)

    async def call(self, entity: str, question: Question, **more: Any) -> Told:
        """Make one call, plain or streamed at random, and record it."""
        self._made += 1
        request_id = f"call-{self._made:06d}"
        streamed = self.chance.random() < 0.6
        body: dict[str, Any] = {"model": self.slug, "messages": [{"role": "user", "content": question.text()}]} | more
        if streamed:
            body["stream"] = True
            if self.chance.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        heard, broke = _Heard(), ""
        try:
            await self._ask({"Authorization": f"Bearer {self.keys[entity]}", "X-Request-Id": request_id}, body, heard)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            broke = type(error).__name__
        told = Told(
            *(request_id, entity, question.tokens, streamed, heard.status, time.time()),
            code=heard.code,
            tokens=heard.tokens if heard.complete else None,
            partial=bool(heard.text),
            broke=broke,
        )
        self.told.append(told)
        return told

    async def _ask(self, headers: dict[str, str], body: dict[str, Any], heard: _Heard) -> None:
        url = self.proxy() + "/v1/chat/completions"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with self.session.post(url, json=body, headers=headers, timeout=timeout) as answer:
            if answer.status != 200:
                heard.status = answer.status
                heard.code = (await answer.json(content_type=None)).get("error_code", "")
                return
            heard.status = 200
            if body.get("stream"):
                await _hear_stream(answer, heard)
            else:
                whole = await answer.json()
                heard.tokens = _reported(whole["usage"])
                heard.text = whole["choices"][0]["message"]["content"]
                heard.complete = True


async def _hear_stream(answer: aiohttp.ClientResponse, heard: _Heard) -> None:
    """Read a stream. It is complete if `[DONE]` and the end of the body came."""
    done = False
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            continue
        chunk = json.loads(line[len(b"data: ") :])
        for choice in chunk["choices"]:
            heard.text += choice["delta"].get("content") or ""
        if chunk.get("usage"):
            heard.tokens = _reported(chunk["usage"])
    heard.complete = done
    if heard.complete and heard.tokens is None:
        heard.tokens = tokens_in(heard.text)


def _reported(usage: dict[str, Any]) -> Tokens:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Tokens(input=usage["prompt_tokens"], output=usage["completion_tokens"], cached_input=cached)
