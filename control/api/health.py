"""`/healthz`: this process runs. `/readyz`: its database answers; what is degraded. No credentials.

See docs/reference/management-api.md#health.
"""

from aiohttp import web

from control.api.protocol.dependencies import PARTS
from control.edges.sql.store import current_revision


async def healthz(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    parts = request.app[PARTS]
    async with parts.store.read() as conn:
        degraded = await parts.readiness.degraded(conn, await current_revision(conn))
    return web.json_response({"status": "ready", "degraded": degraded})


ROUTES = [web.get("/healthz", healthz), web.get("/readyz", readyz)]
