"""Callers that record what they received: status, request id, tokens, or that the answer was cut off.

`billing_faults.py` compares their records with the billing events. They retry nothing.
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
BULKY = 0.3
"""The share of calls with large metadata. Metadata is journaled, so journals fill segments."""
BULK = 60_000
"""The size of large metadata, in bytes."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as its caller saw it. `status` is 0 without an answer; `tokens` is None unless it was complete."""

    request_id: str
    entity: str
    question_tokens: Tokens
    streamed: bool
    status: int
    ended_at_s: float
    code: str = ""
    """The `error_code` of a refusal."""
    tokens: Tokens | None = None
    partial: bool = False
    """True if some of the answer's text arrived."""
    broken_by: str = ""
    """The name of the error that cut the answer off."""


class ForeignAnswerError(aiohttp.ClientError):
    """A balancer answered in Tollgate's place: it lost its connection to a proxy, or reached none."""


@dataclass(slots=True)
class _AnswerSoFar:
    """One answer while it is received."""

    status: int = 0
    code: str = ""
    text: str = ""
    tokens: Tokens | None = None
    complete: bool = False


@dataclass
class Callers:
    """Concurrent callers. Each makes one call after the other until `stop`. `proxy` returns the proxy's URL."""

    session: aiohttp.ClientSession
    proxy: Callable[[], str]
    slug: str
    keys: dict[str, str]
    """API keys by external entity id."""
    rng: random.Random
    records: list[CallRecord] = field(default_factory=list)
    _call_count: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_stopping: bool = False

    def start(self, count: int) -> None:
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self._call_until_stopped()) for _ in range(count)]

    async def stop(self) -> None:
        """Return when the last answer has ended."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    async def _call_until_stopped(self) -> None:
        while not self._is_stopping:
            bulk = {"metadata": {"bulk": "x" * BULK}} if self.rng.random() < BULKY else {}
            record = await self.call(self.rng.choice(list(self.keys)), self._question(), **bulk)
            await asyncio.sleep(self.rng.uniform(0.1, 0.3) if not record.status else self.rng.uniform(0, 0.1))

    def _question(self) -> Question:
        rng = self.rng
        tokens = Tokens(input=rng.randint(10, 4000), output=rng.randint(1, 2000), cached_input=rng.randint(0, 10))
        pause_ms = rng.choice((0, 5, 20, 100))
        return Question(tokens, rng.randint(1, 8), pause_ms)

    async def call(self, entity: str, question: Question, **more: Any) -> CallRecord:
        """Make one call, plain or streamed at random, and record it."""
        self._call_count += 1
        request_id = f"call-{self._call_count:06d}"
        streamed = self.rng.random() < 0.6
        body: dict[str, Any] = {"model": self.slug, "messages": [{"role": "user", "content": question.text()}]} | more
        if streamed:
            body["stream"] = True
            if self.rng.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        received = _AnswerSoFar()
        broken_by = ""
        try:
            await self._ask(
                {"Authorization": f"Bearer {self.keys[entity]}", "X-Request-Id": request_id}, body, received
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            broken_by = type(error).__name__
        record = CallRecord(
            *(request_id, entity, question.tokens, streamed, received.status, time.time()),
            code=received.code,
            tokens=received.tokens if received.complete else None,
            partial=bool(received.text),
            broken_by=broken_by,
        )
        self.records.append(record)
        return record

    async def _ask(self, headers: dict[str, str], body: dict[str, Any], received: _AnswerSoFar) -> None:
        url = self.proxy() + "/v1/chat/completions"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with self.session.post(url, json=body, headers=headers, timeout=timeout) as answer:
            if answer.content_type not in ("application/json", "text/event-stream"):
                raise ForeignAnswerError
            if answer.status != 200:
                received.status = answer.status
                received.code = (await answer.json()).get("error_code", "")
                return
            received.status = 200
            if body.get("stream"):
                await _read_stream(answer, received)
            else:
                body_read = await answer.json()
                received.tokens = _reported(body_read["usage"])
                received.text = body_read["choices"][0]["message"]["content"]
                received.complete = True


async def _read_stream(answer: aiohttp.ClientResponse, received: _AnswerSoFar) -> None:
    """Read a stream. It is complete if `[DONE]` and the end of the body came."""
    is_complete = False
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            is_complete = True
            continue
        chunk = json.loads(line[len(b"data: ") :])
        for choice in chunk["choices"]:
            received.text += choice["delta"].get("content") or ""
        if chunk.get("usage"):
            received.tokens = _reported(chunk["usage"])
    received.complete = is_complete
    if received.complete and received.tokens is None:
        received.tokens = tokens_in(received.text)


def _reported(usage: dict[str, Any]) -> Tokens:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Tokens(input=usage["prompt_tokens"], output=usage["completion_tokens"], cached_input=cached)
