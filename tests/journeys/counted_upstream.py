"""An upstream that says for each call which tokens it cost: those that its caller asked for, distinct per call.

A question is `input/cached/output/pieces/pause_ms`; the answer's text ends in the first three, so that the caller of a
stream without usage knows them too.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiohttp import web


class Tokens(NamedTuple):
    """As the provider reports them; `input` holds the cached ones too."""

    input: int
    output: int
    cached: int

    @property
    def total(self) -> int:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class Question:
    """What one call is to cost, in how many pieces it is answered, and how long the upstream waits before each."""

    tokens: Tokens
    pieces: int
    pause_ms: int

    def text(self) -> str:
        return "/".join(map(str, (*self.tokens, self.pieces, self.pause_ms)))

    @classmethod
    def of(cls, text: str) -> "Question":
        *tokens, pieces, pause_ms = map(int, text.split("/"))
        return cls(Tokens(*tokens), pieces, pause_ms)


def tokens_in(text: str) -> Tokens:
    """What the end of an answer's text says that it cost."""
    return Tokens(*map(int, text.rpartition(" ")[2].split("/")))


class CountedUpstream:
    """Start it, give `url` to a deployment as its replica. `asked`: how many calls arrived."""

    def __init__(self) -> None:
        self.asked = 0
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        body = await request.json()
        question = Question.of(body["messages"][-1]["content"])
        try:
            return await (self._stream if body.get("stream") else self._whole)(request, body, question)
        except ConnectionResetError:  # the worker that asked is dead
            return web.Response()

    async def _whole(self, _request: web.Request, body: dict[str, Any], question: Question) -> web.StreamResponse:
        await asyncio.sleep(question.pause_ms / 1000)
        message = {"role": "assistant", "content": "".join(_words(question))}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return web.json_response(_frame(body, "chat.completion", choices) | {"usage": _usage(question.tokens)})

    async def _stream(self, request: web.Request, body: dict[str, Any], question: Question) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in _words(question):
            await asyncio.sleep(question.pause_ms / 1000)
            await response.write(_event(_chunk(body, {"content": word}, None)))
        await response.write(_event(_chunk(body, {}, "stop")))
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = _frame(body, "chat.completion.chunk", []) | {"usage": _usage(question.tokens)}
            await response.write(_event(usage))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _words(question: Question) -> list[str]:
    return ["word "] * (question.pieces - 1) + [f"cost {'/'.join(map(str, question.tokens))}"]


def _usage(tokens: Tokens) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.total,
        "prompt_tokens_details": {"cached_tokens": tokens.cached},
    }


def _frame(body: dict[str, Any], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"], "choices": choices}


def _chunk(body: dict[str, Any], delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return _frame(body, "chat.completion.chunk", [{"index": 0, "delta": delta, "finish_reason": reason}])


def _event(frame: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(frame).encode() + b"\n\n"
