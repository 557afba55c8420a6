"""A scripted model server of asynchronous requests, in the test's own process.

What it does with a request is in the request's input: `answer`, `status` (for the first `times` attempts), `sleep_s`,
`wait` (until `release` is called), `close` (break the connection), `text` (so many bytes that are no JSON).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.ports import own_port


@dataclass(frozen=True)
class Seen:
    """One attempt, as the model server saw it."""

    request_id: str
    attempt: int
    body: bytes
    path: str
    async_call: bool
    """True for an attempt of an asynchronous request, False for a synchronous call."""


@dataclass
class ModelServer:
    """Start it, list `url` as a replica, read `calls`."""

    calls: list[Seen] = field(default_factory=list)
    running: int = 0
    most_at_once: int = 0
    url: str = ""
    port: int = field(default_factory=own_port)

    def __post_init__(self) -> None:
        self._released = asyncio.Event()

    async def start(self) -> None:
        app = web.Application(client_max_size=200_000_000)
        app.router.add_post("/predict", self._predict)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    def release(self) -> None:
        """Let every request go on that waits, and all later ones."""
        self._released.set()

    def attempts(self, request_id: str) -> list[int]:
        return [one.attempt for one in self.calls if one.request_id == request_id]

    async def _predict(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        attempt = request.headers.get("x-async-attempt", "")
        id = request.headers["x-request-id"]
        self.calls.append(Seen(id, int(attempt or 0), body, request.path, bool(attempt)))
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await self._act(request, orjson.loads(body), int(attempt or 0))
        finally:
            self.running -= 1

    async def _act(self, request: web.Request, behaviour: Any, attempt: int) -> web.StreamResponse:
        behaviour = behaviour if isinstance(behaviour, dict) else {}
        await asyncio.sleep(behaviour.get("sleep_s", 0))
        if behaviour.get("wait"):
            await self._released.wait()
        if "status" in behaviour and attempt <= behaviour.get("times", 1):
            return web.json_response({"error": behaviour.get("error", "as scripted")}, status=behaviour["status"])
        if behaviour.get("close") and attempt <= behaviour.get("times", 1):
            assert request.transport is not None
            request.transport.abort()
        if "text" in behaviour:
            return web.Response(body=b"\xc3\xa4" * (behaviour["text"] // 2), content_type="text/plain")
        return web.json_response(behaviour.get("answer", {"ok": True}))
