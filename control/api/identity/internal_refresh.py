"""`POST /internal/v1/identity_providers/{id}/refresh`: a proxy has met a token of a key that it does not know.

The answer says whether the provider's keys were fetched, now or just before. They reach proxies as policy.
"""

from aiohttp import web

from control.api.protocol import authentication
from control.api.protocol.dependencies import DEPENDENCIES


async def _post(request: web.Request) -> web.Response:
    dependencies = request.app[DEPENDENCIES]
    authentication.check_internal(request, dependencies.settings.internal_token)
    is_fetched = await dependencies.key_refresher.refresh(request.match_info["id"])
    return web.json_response({"fetched": is_fetched})


ROUTES = [web.post("/internal/v1/identity_providers/{id:[0-9a-f]{64}}/refresh", _post)]
