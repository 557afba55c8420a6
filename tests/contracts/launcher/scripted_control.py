"""The part of the management API that a launcher uses, over a real socket: one deployment and its rules.

It can go away and come back on the same port, refuse, and post the wake hook as control does.
"""

from typing import Any

import aiohttp
from aiohttp import web

from tests.ports import own_port

API_KEY = "tg_0123456789ab.the-secret-part-of-the-key"
MODEL = "mdl_1"
DEPLOYMENT = "dpl_1"
BASE = f"/v1/models/{MODEL}/deployments/{DEPLOYMENT}"
MOVES = {
    ("SCALED_TO_ZERO", "WAKING_UP"),
    ("DEPLOYING", "WAKING_UP"),
    ("WAKING_UP", "LOADING_MODEL"),
    ("LOADING_MODEL", "FAILED"),
}


class ScriptedControl:
    """`async with` serves it. `history` has what the launcher did, in order."""

    def __init__(self, **deployment: Any) -> None:
        self.load: dict[str, Any] = {"in_flight": 0, "queued": 0, "parked": 0, "last_request_at": None}
        self.deployment: dict[str, Any] = {
            "id": DEPLOYMENT,
            "status": "DEPLOYING",
            "replicas": [],
            "wake_url": None,
            "health": None,
            "max_concurrency": None,
            "error_message": None,
        } | deployment
        self.history: list[tuple[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.refusals: dict[str, tuple[int, str]] = {}
        """Answers with this status and message, by "METHOD /suffix"."""
        self.calls = 0
        self.port = own_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ScriptedControl":
        await self.come_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.go_away()

    async def come_back(self) -> None:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(BASE, self._get)
        app.router.add_patch(BASE, self._patch)
        app.router.add_put(BASE + "/replicas", self._put_replicas)
        app.router.add_put(BASE + "/status", self._put_status)
        app.router.add_post(BASE + "/logs/append", self._append)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def go_away(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def wake(self, method: str = "POST", url: str | None = None) -> int:
        """Post the wake hook, and apply a success as control does."""
        body = {"model_id": MODEL, "deployment_id": DEPLOYMENT, "reason": "request", "parked": 1}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url or self.deployment["wake_url"], json=body) as answer,
        ):
            if answer.ok and self.deployment["status"] in ("SCALED_TO_ZERO", "DEPLOYING"):
                self.deployment["status"] = "WAKING_UP"
            return answer.status

    @property
    def replicas(self) -> list[str]:
        return list(self.deployment["replicas"])

    @property
    def statuses(self) -> list[str]:
        return [value for what, value in self.history if what == "status"]

    def logged(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self.logs if text in line["message"]]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls += 1
        if request.headers.get("authorization") != f"Bearer {API_KEY}":
            return web.json_response({"error": "Authentication failed", "code": "FORBIDDEN"}, status=403)
        refusal = self.refusals.get(f"{request.method} {request.path.removeprefix(BASE)}")
        if refusal is not None:
            return web.json_response({"error": refusal[1], "code": "REFUSED"}, status=refusal[0])
        response: web.StreamResponse = await handler(request)
        return response

    def _answer(self) -> web.Response:
        return web.json_response(self.deployment | {"load": self.load})

    async def _get(self, _request: web.Request) -> web.Response:
        return self._answer()

    async def _patch(self, request: web.Request) -> web.Response:
        changes = await request.json()
        self.history.append(("patch", changes))
        self.deployment |= changes
        return self._answer()

    async def _put_replicas(self, request: web.Request) -> web.Response:
        replicas = (await request.json())["replicas"]
        self.history.append(("replicas", replicas))
        self.deployment |= {"replicas": replicas, "status": "ACTIVE" if replicas else "SCALED_TO_ZERO"}
        self.deployment["error_message"] = None
        return self._answer()

    async def _put_status(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (self.deployment["status"], body["status"]) not in MOVES:
            return web.json_response({"error": "illegal move", "code": "CONFLICT"}, status=409)
        self.history.append(("status", body["status"]))
        self.deployment |= {"status": body["status"], "error_message": body.get("error_message")}
        return self._answer()

    async def _append(self, request: web.Request) -> web.Response:
        lines = (await request.json())["logs"]
        assert 0 < len(lines) <= 1000
        self.logs += lines
        return web.json_response({})


async def call(url: str, content: str = "hello") -> tuple[int, Any]:
    """Call a replica directly. (0, None) if it broke the connection."""
    body = {"messages": [{"role": "user", "content": content}]}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
            session.post(url + "/v1/chat/completions", json=body) as answer,
        ):
            return answer.status, await answer.json()
    except (aiohttp.ClientError, TimeoutError):
        return 0, None
