"""`POST /internal/v1/requests`: proxies send rows of the list of requests, possibly more than once.

200: added, now or before. 400 names what is malformed, and nothing of the batch is taken. Workspaces that do not exist
are ignored.
"""

from aiohttp import web

from control.api.protocol.reports import items, received
from control.resources.traffic.requests import add_listed
from policy.traffic import ListedRequest


async def _post(request: web.Request) -> web.Response:
    dependencies, body = await received(request)
    rows = await items(body, "rows", ListedRequest.from_wire)
    await add_listed(dependencies.store, rows, int(dependencies.settings.request_max_rows))
    return web.json_response({})


ROUTES = [web.post("/internal/v1/requests", _post)]
