"""`/healthz`: the process runs. `/readyz`: its database answers; lists what is degraded. No credentials.

See docs/reference/management-api.md#health.
"""

from aiohttp import web

from control.api.protocol.dependencies import DEPENDENCIES


async def healthz(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    degraded = await request.app[DEPENDENCIES].readiness.degraded()
    return web.json_response({"status": "ready", "degraded": degraded})


ROUTES = [web.get("/healthz", healthz), web.get("/readyz", readyz)]
