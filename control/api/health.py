"""`/healthz`: this process runs. `/readyz`: it can do its job: its database answers. No credentials (decisions 6)."""

from aiohttp import web

from control.api.parts import PARTS
from control.edges.store import current_revision


async def healthz(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    async with request.app[PARTS].store.read() as conn:
        await current_revision(conn)
    return web.json_response({"status": "ready"})


ROUTES = [web.get("/healthz", healthz), web.get("/readyz", readyz)]
