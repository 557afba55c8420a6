"""A model server that speaks Chat Completions."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.upstream.behaviours import chunked, head
from tests.upstream.exchange import Behaviour, Exchange


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 12
    completion_tokens: int = 5
    cached_tokens: int = 4

    def wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def chat(
    words: Sequence[str] = ("Hello", " there", "!"), usage: Usage | None = Usage(), *, role_first: bool = True
) -> Behaviour:
    """Answer plain or streamed as the request asks; send usage in a stream only if the request asks for it.

    A stream waits at the gate after each piece of text.
    """

    async def behave(exchange: Exchange) -> None:
        request = json.loads(await exchange.read_body() or b"{}")
        model = request.get("model", "unknown")
        if not request.get("stream"):
            await send_json(exchange, json.dumps(chat_body(model, words, usage)).encode())
            return
        await begin_events(exchange)
        for frame in chat_frames(model, words, usage if wants_usage(request) else None, role_first=role_first):
            await send_event(exchange, frame)
            if b'"content":' in frame:
                await exchange.gate.passed()
        await end_events(exchange)

    return behave


def wants_usage(request: dict[str, Any]) -> bool:
    return bool((request.get("stream_options") or {}).get("include_usage"))


async def send_json(exchange: Exchange, body: bytes) -> None:
    await exchange.send(head(200, {"content-type": "application/json", "content-length": str(len(body))}) + body)


async def begin_events(exchange: Exchange) -> None:
    await exchange.send(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))


async def send_event(exchange: Exchange, frame: bytes) -> None:
    """Send one SSE frame as a chunk in a write of its own."""
    await exchange.send(chunked(frame, end=False))
    await asyncio.sleep(0)


async def end_events(exchange: Exchange) -> None:
    await exchange.send(chunked())


def event(value: Any) -> bytes:
    """The SSE frame of a JSON value."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def chat_body(model: str, words: Sequence[str], usage: Usage | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(words)}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    return body | ({"usage": usage.wire()} if usage else {})


def chat_frames(model: str, words: Sequence[str], usage: Usage | None, *, role_first: bool = True) -> list[bytes]:
    """The SSE frames of a streamed answer, `[DONE]` included."""
    deltas: list[dict[str, Any]] = [*({"content": word} for word in words), {}]
    if role_first:
        deltas.insert(0, {"role": "assistant", "content": ""})
    choices = [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in deltas]
    rest = {"usage": None} if usage else {}
    frames = [chat_chunk(model, [choice]) | rest for choice in choices]
    if usage:
        frames.append(chat_chunk(model, []) | {"usage": usage.wire()})
    return [*map(event, frames), DONE]


def chat_chunk(model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}
