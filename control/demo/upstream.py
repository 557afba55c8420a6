"""A scripted model server: speaks the Chat Completions dialect and answers with its own name.

Records the requests it receives, so that a step can check what the proxy sent. `python -m control.demo.upstream NAME
PORT` runs one in a process of its own, which takes a second to load.
"""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

LOADING_S = 1.0
INPUT_TOKENS = 20
CACHED_TOKENS = 5
OUTPUT_TOKENS = 10
USAGE = {
    "prompt_tokens": INPUT_TOKENS,
    "completion_tokens": OUTPUT_TOKENS,
    "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
}


@dataclass
class ScriptedUpstream:
    """Start it, use `url` as a deployment's replica, and read `asked`, the requests it received."""

    name: str
    pause_s: float = 0.0
    """Pause between two pieces of a stream."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/predict", self._predict)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    @property
    def words(self) -> list[str]:
        return ["This ", "is ", self.name, "."]

    async def between_pieces(self) -> None:
        await asyncio.sleep(self.pause_s)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _predict(self, request: web.Request) -> web.Response:
        model_input = await request.json()
        await asyncio.sleep(model_input["takes_s"])
        return web.json_response({"summary": "".join(self.words), "pages": model_input["pages"]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append({"headers": {k.lower(): v for k, v in request.headers.items()}, "body": body})
        if body.get("stream"):
            return await self._stream(request, body)
        message = {"role": "assistant", "content": "".join(self.words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(self._frame(body, "chat.completion", [choice]) | {"usage": USAGE})

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        extra = {"usage": None} if wants_usage else {}
        for word in self.words:
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            await self._send(response, self._frame(body, "chat.completion.chunk", [choice]) | extra)
            await self.between_pieces()
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await self._send(response, self._frame(body, "chat.completion.chunk", [last]) | extra)
        if wants_usage:
            await self._send(response, self._frame(body, "chat.completion.chunk", []) | {"usage": USAGE})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    @staticmethod
    async def _send(response: web.StreamResponse, frame: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(frame).encode() + b"\n\n")

    @staticmethod
    def _frame(body: dict[str, Any], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"], "choices": choices}


async def _serve(name: str, port: int) -> None:
    print(f"{name} loads its weights", flush=True)
    await asyncio.sleep(LOADING_S)
    await ScriptedUpstream(name).start(port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
