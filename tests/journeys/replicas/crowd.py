"""Many callers of one slug and of its model, and the hook that their deployment is woken by."""

import asyncio
from collections import Counter
from typing import Any

import aiohttp
from aiohttp import web

from tests.journeys.conftest import Stage
from tests.ports import own_port

NOISY = 140
QUIET = 20
GROUPS = {"noisy": NOISY, "quiet-1": QUIET, "quiet-2": QUIET, "quiet-3": QUIET}
DIRECT = 20
MAX_CONCURRENCY = 4
"""The bound of each replica."""
TOTAL = sum(GROUPS.values()) + DIRECT


class WakeHook:
    """The operator's hook: counts how often it was asked to wake the deployment."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/wake/secret", self._asked)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        port = own_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}/wake/secret"

    async def _asked(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        return web.Response(status=202)

    async def stop(self) -> None:
        await self._runner.cleanup()


class Crowd:
    """Callers of one slug, and direct callers of its model: each call has an id of its own, and ends once."""

    def __init__(self, stage: Stage, path: str, deployment: str) -> None:
        self.stage = stage
        self.path = path
        self.deployment = deployment
        self.keys: dict[str, str] = {}
        self.answers: dict[str, int] = {}
        """Statuses by request id; 0 for a call that was cut off."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.proxies = [stage.product.proxy]

    def call(self, id: str, key: str, url: str) -> None:
        self.tasks[id] = asyncio.create_task(self._call(id, key, url))

    def call_slug(self, group: str, id: str) -> None:
        self.call(id, self.keys[group], "/v1/chat/completions")

    async def _call(self, id: str, key: str, url: str) -> None:
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": id}
        body = {"model": self.stage.slug, "messages": [{"role": "user", "content": "Hello"}]}
        try:
            proxy = self.proxies[len(self.tasks) % len(self.proxies)]
            async with self.stage.session.post(proxy + url, json=body, headers=headers) as answer:
                await answer.read()
                self.answers[id] = answer.status
        except aiohttp.ClientError:
            self.answers[id] = 0

    def arrive(self) -> None:
        """All calls of all groups, the noisy group first, and the direct calls."""
        for group, count in GROUPS.items():
            for number in range(count):
                self.call_slug(group, f"{group}.{number}")
        for number in range(DIRECT):
            self.call(f"direct.{number}", self.stage.operator.api_key, f"{self.path}/production/predict")

    async def until_parked(self, count: int) -> None:
        async def look() -> bool:
            return bool((await self.load())["parked"] == count)

        await self.stage.until(look, f"{count} calls are parked")

    async def load(self) -> Any:
        return (await self.stage.operator.call("GET", self.deployment))["load"]

    async def all_ended(self) -> Counter[int]:
        await asyncio.gather(*self.tasks.values())
        return Counter(self.answers.values())
