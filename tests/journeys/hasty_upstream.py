"""An upstream that streams any text, reports any usage, and stops where a test wants it to.

The request's `user` is JSON: `{"text", "times", "usage"?, "stop"?}`. `stop`: before the usage, until the gate opens.
"""

import asyncio
import json
from typing import Any

from aiohttp import web


class HastyUpstream:
    """Start it, give `url` to a deployment as its replica."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.gate.set()
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        told = json.loads(body["user"])
        if not body.get("stream"):
            choices = [{"index": 0, "message": {"content": told["text"] * told["times"]}, "finish_reason": "stop"}]
            return web.Response(
                body=_with_usage({"model": body["model"], "choices": choices}, told.get("usage")),
                content_type="application/json",
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(told["times"]):
            await response.write(_event(body, [{"index": 0, "delta": {"content": told["text"]}}], None))
        if told.get("stop"):
            await self.gate.wait()
        await response.write(_event(body, [], told.get("usage")) + b"data: [DONE]\n\n")
        return response


def _event(body: dict[str, Any], choices: list[Any], usage: str | None) -> bytes:
    return b"data: " + _with_usage({"id": "c", "model": body["model"], "choices": choices}, usage) + b"\n\n"


def _with_usage(answer: dict[str, Any], usage: str | None) -> bytes:
    """`usage`: JSON text, so that a test can write figures as no encoder would."""
    text = json.dumps(answer)
    return (text[:-1] + f', "usage": {usage}}}' if usage is not None else text).encode()
