"""The admin port: `/healthz`, `/readyz`, `/metrics` (decisions 2). Never on the public port, and never a secret.

The supervisor serves it, so it answers while workers are busy or dead. `/readyz` tells the truth: each check is made
or looked up when asked, and any that fails makes it 503 with the reason.
"""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

Check = Callable[[], Awaitable[str]]
"""Says what is wrong, or "" when all is well."""


def admin_app(checks: Mapping[str, Check], metrics_text: Callable[[], Awaitable[bytes]]) -> web.Application:
    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_request: web.Request) -> web.Response:
        faults = {name: await check() for name, check in checks.items()}
        ready = not any(faults.values())
        body = {"ready": ready, "checks": {name: fault or "ok" for name, fault in faults.items()}}
        return web.json_response(body, status=200 if ready else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await metrics_text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app
