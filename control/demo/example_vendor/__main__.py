"""`python -m control.demo.example_vendor --port N`: serves the example vendor on loopback until SIGTERM.

Speaks Chat Completions, Responses and Messages. Keeps and logs nothing of a request; any credential is good.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from aiohttp import web

from control.demo.example_vendor.answer import CHARS_PER_TOKEN, Answer, answer_to
from control.demo.example_vendor.wire_forms import (
    Frame,
    Frames,
    chat_chunks,
    chat_completion,
    message,
    message_events,
    response,
    response_events,
)

HOST = "127.0.0.1"
MOST_BODY_BYTES = 64 << 20
WORD_PAUSE_S = 0.02
"""The time between two events of a stream, so that one sees it flow."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application() -> web.Application:
    """The vendor's paths."""
    app = web.Application(client_max_size=MOST_BODY_BYTES)
    app.router.add_get("/health", _health)
    app.router.add_post("/v1/chat/completions", _handler(chat_completion, chat_chunks, end=b"data: [DONE]\n\n"))
    app.router.add_post("/v1/responses", _handler(response, lambda answer, id, _body: response_events(answer, id)))
    app.router.add_post("/v1/messages", _handler(message, lambda answer, id, _body: message_events(answer, id)))
    app.router.add_post("/v1/messages/count_tokens", _count_tokens)
    return app


async def _health(_request: web.Request) -> web.Response:
    return web.Response()


async def _count_tokens(request: web.Request) -> web.Response:
    return web.json_response({"input_tokens": -(-len(await request.text()) // CHARS_PER_TOKEN)})


def _handler(
    whole: Callable[[Answer, str], Frame], events: Callable[[Answer, str, Frame], Frames], end: bytes = b""
) -> Handler:
    """Answers the calls of one dialect. `end`: what a stream ends with."""
    numbers = count(1)

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
            answer = answer_to(body if isinstance(body, dict) else {})
        except (ValueError, RecursionError) as error:
            fault = {"type": "invalid_request_error", "message": str(error)}
            return web.json_response({"type": "error", "error": fault}, status=400)
        id = f"example{next(numbers)}"
        if not body.get("stream"):
            return web.json_response(whole(answer, id))
        return await _stream(request, events(answer, id, body), end)

    return handle


async def _stream(request: web.Request, events: Frames, end: bytes) -> web.StreamResponse:
    answered = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answered.prepare(request)
    for event in events:
        await answered.write(_sse(event))
        await asyncio.sleep(WORD_PAUSE_S)
    await answered.write(end)
    await answered.write_eof()
    return answered


def _sse(event: dict[str, Any]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m control.demo.example_vendor")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    web.run_app(application(), host=HOST, port=port, print=None, access_log=None, handle_signals=True)


if __name__ == "__main__":
    main()
