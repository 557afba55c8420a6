"""A counted upstream with moods: what a call's `user` says decides how its answer ends, or when it goes on.

refuses: 500. hangs up: closes before the head. cuts: closes after the first piece. waits, stops: not before `gate`
opens, the one before the head, the other after the first piece; then it closes.
"""

import asyncio
import json
from typing import Any

from aiohttp import web

from tests.journeys.counted_upstream import CountedUpstream, Question

PIECE = {"index": 0, "delta": {"content": "some "}, "finish_reason": None}


class MoodyUpstream(CountedUpstream):
    """`held`: how many calls wait for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.held = 0

    async def stop(self) -> None:
        self.gate.set()
        await super().stop()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        mood = (await request.json()).get("user")
        if mood == "waits":
            await self._wait()
        if mood in ("waits", "hangs up"):
            _hang_up(request)
            return web.Response()
        if mood == "refuses":
            return web.json_response({"error": {"message": "no", "type": "server_error"}}, status=500)
        return await super()._complete(request)

    async def _stream(self, request: web.Request, body: dict[str, Any], question: Question) -> web.StreamResponse:
        if body.get("user") not in ("cuts", "stops"):
            return await super()._stream(request, body, question)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"], "choices": [PIECE]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if body["user"] == "stops":
            await self._wait()
        _hang_up(request)
        return response

    async def _wait(self) -> None:
        self.held += 1
        await self.gate.wait()


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
